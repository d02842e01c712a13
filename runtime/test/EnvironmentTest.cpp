#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/Environment.h"
#include <doctest/doctest.h>
#include <set>

using namespace tilewright;

namespace {
Expected<Environment> parse(std::vector<std::string_view> entries) { return Environment::parse(entries); }
} // namespace

TEST_CASE("nothing set gives the defaults") {
  auto environment = parse({});
  REQUIRE(environment);
  CHECK(environment->cacheMaxBytes == uint64_t{2} << 30);
  CHECK(environment->threads == 0);
  CHECK_FALSE(environment->noCompile);
  CHECK(environment->bundles.empty());
  CHECK(environment->unknown.empty());
  CHECK(environment->cacheDirectory() == "");
}

TEST_CASE("every knob of the table is read") {
  auto environment = parse({"TILEWRIGHT_CACHE_DIR=/c", "TILEWRIGHT_CACHE_MAX_BYTES=3M",
                            "TILEWRIGHT_BUNDLES=/a::/b:", "TILEWRIGHT_NVRTC=/n", "TILEWRIGHT_CUDA_DRIVER=/d",
                            "TILEWRIGHT_DUMP_DIR=/u", "TILEWRIGHT_NO_COMPILE=yes", "TILEWRIGHT_THREADS=7"});
  REQUIRE(environment);
  CHECK(environment->cacheDir == "/c");
  CHECK(environment->cacheMaxBytes == 3u << 20);
  CHECK(environment->bundles == std::vector<std::string>{"/a", "/b"});
  CHECK(environment->nvrtc == "/n");
  CHECK(environment->cudaDriver == "/d");
  CHECK(environment->dumpDir == "/u");
  CHECK(environment->noCompile);
  CHECK(environment->threads == 7);
  CHECK(environment->unknown.empty());
}

TEST_CASE("the table is complete: distinct names, help for each, all shown") {
  std::set<std::string_view> names;
  std::string help = environmentHelp();
  for (const Knob &knob : environmentKnobs()) {
    CHECK(names.insert(knob.name).second);
    CHECK(knob.name.substr(0, 11) == "TILEWRIGHT_");
    CHECK_FALSE(knob.help.empty());
    CHECK(help.find(knob.name) != std::string::npos);
  }
  CHECK(names.size() == 18);
}

TEST_CASE("bad values name the variable, the value and what is accepted") {
  for (std::string_view entry :
       {"TILEWRIGHT_THREADS=0", "TILEWRIGHT_THREADS=-3", "TILEWRIGHT_THREADS=4096x", "TILEWRIGHT_THREADS=99999999999",
        "TILEWRIGHT_NO_COMPILE=maybe", "TILEWRIGHT_CACHE_MAX_BYTES=2g", "TILEWRIGHT_CACHE_MAX_BYTES=-1",
        "TILEWRIGHT_CACHE_MAX_BYTES=G", "TILEWRIGHT_CACHE_MAX_BYTES=18446744073709551615K"}) {
    CAPTURE(entry);
    auto environment = parse({entry});
    REQUIRE_FALSE(environment);
    std::string text = environment.error().text();
    size_t equals = entry.find('=');
    CHECK(text.find(entry.substr(0, equals)) != std::string::npos);
    CHECK(text.find("found \"" + std::string(entry.substr(equals + 1)) + "\"") != std::string::npos);
    CHECK(text.find("expected") != std::string::npos);
  }
}

TEST_CASE("byte suffixes are powers of 1024 and 0 is unlimited") {
  auto bytes = [](std::string value) {
    std::string entry = "TILEWRIGHT_CACHE_MAX_BYTES=" + value;
    return parse({entry}).value().cacheMaxBytes;
  };
  CHECK(bytes("0") == 0);
  CHECK(bytes("1000") == 1000);
  CHECK(bytes("1K") == 1024);
  CHECK(bytes("5G") == uint64_t{5} << 30);
  CHECK(bytes("1T") == uint64_t{1} << 40);
}

TEST_CASE("an unknown variable with the prefix is kept for a warning, an empty value is not set") {
  auto environment = parse({"TILEWRIGHT_CACHE_DIRR=/x", "TILEWRIGHT_THREADS=", "OTHER=1", "noequals"});
  REQUIRE(environment);
  CHECK(environment->unknown == std::vector<std::string>{"TILEWRIGHT_CACHE_DIRR"});
  CHECK(environment->threads == 0);
}

TEST_CASE("the cache folder: own variable, then XDG, then HOME, then none") {
  CHECK(parse({"HOME=/h"})->cacheDirectory() == "/h/.cache/tilewright");
  CHECK(parse({"HOME=/h", "XDG_CACHE_HOME=/x"})->cacheDirectory() == "/x/tilewright");
  CHECK(parse({"HOME=/h", "XDG_CACHE_HOME=relative"})->cacheDirectory() == "/h/.cache/tilewright");
  CHECK(parse({"HOME=/h", "XDG_CACHE_HOME=/x", "TILEWRIGHT_CACHE_DIR=c"})->cacheDirectory() == "c");
  CHECK(parse({"HOME="})->cacheDirectory() == "");
}

TEST_CASE("CUDA_HOME goes before CUDA_PATH") {
  CHECK(parse({"CUDA_PATH=/p"})->cudaHome == "/p");
  CHECK(parse({"CUDA_HOME=/h", "CUDA_PATH=/p"})->cudaHome == "/h");
}
