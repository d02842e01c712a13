#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/cuda/CompileReport.h"
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace tilewright::cuda;

namespace {
constexpr std::string_view kLog = R"(ptxas info    : 0 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 528 bytes cmem[0]
ptxas info    : Compile time = 4.2 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    96 bytes stack frame, 120 bytes spill stores, 64 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers, 96 bytes cumulative stack size, 4096 bytes smem
)";
} // namespace

TEST_CASE("figures of the named kernel, or of the first") {
  CompileReport second = parsePtxasLog(kLog, "second");
  CHECK(second.registers == 255);
  CHECK(second.barriers == 3);
  CHECK(second.stackBytes == 96);
  CHECK(second.spillStoreBytes == 120);
  CHECK(second.spillLoadBytes == 64);
  CHECK(second.spillBytes() == 184);
  CHECK(second.sharedBytes == 4096);
  REQUIRE(second.problems.size() == 1);
  CHECK(second.problems[0].find("120 bytes stored, 64 bytes loaded") != std::string::npos);

  for (std::string_view name : {"first", ""}) {
    CompileReport first = parsePtxasLog(kLog, name);
    CHECK(first.registers == 32);
    CHECK(first.sharedBytes == 0);
    CHECK(first.problems.empty());
  }
  CHECK(parsePtxasLog(kLog, "third") == CompileReport{});
  CHECK(parsePtxasLog("", "x") == CompileReport{});
}

TEST_CASE("serialised wgmma is a problem, other advice is not") {
  std::string log =
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due "
      "to insufficient register resources in function 'k'\n"
      "ptxas info    : (C7519) something about wgmma\n"
      "ptxas info    : (C7600) something else\n";
  CompileReport report = parsePtxasLog(log);
  REQUIRE(report.problems.size() == 2);
  CHECK(report.problems[0].find("(C7510) Potential Performance Loss") != std::string::npos);
  CHECK(report.problems[1].find("C7519") != std::string::npos);
}

TEST_CASE("the first line that reports an error") {
  CHECK(firstErrorLine("k.cu(1): warning #1: unused\n  k.cu(3): error: no such thing\nk.cu(4): error: next\n") ==
        "k.cu(3): error: no such thing");
  CHECK(firstErrorLine("ptxas application ptx input, line 20; error   : Unknown symbol\nptxas fatal   : aborted\n") ==
        "ptxas application ptx input, line 20; error   : Unknown symbol");
  CHECK(firstErrorLine("\nnvrtc: nothing known\n") == "nvrtc: nothing known");
  CHECK(firstErrorLine("") == "");
}

TEST_CASE("JSON both ways") {
  CompileReport report = parsePtxasLog(kLog, "second");
  auto back = compileReportFromJson(nlohmann::json(report));
  REQUIRE(back);
  CHECK(*back == report);
  CHECK_FALSE(compileReportFromJson(nlohmann::json{{"registers", "many"}}));
  CHECK_FALSE(compileReportFromJson(nlohmann::json(3)));
}
