#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/cache/KernelKey.h"
#include "TemporaryFolder.h"
#include <doctest/doctest.h>
#include <set>
#include <unistd.h>

using namespace tilewright;

namespace {
KernelKeyInputs sample() { return {"generator", "plan\ntext", {"-a", "-b"}, "sm_90a", "NVRTC 13.0"}; }
} // namespace

TEST_CASE("a key is 64 hex digits and repeatable") {
  std::string key = kernelKey(sample());
  CHECK(key.size() == 64);
  CHECK(key.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(key == kernelKey(sample()));
}

TEST_CASE("the key of one fixed input never changes within a schema") {
  // A change here orphans every cache in the world: raise kKeySchema when it is meant.
  CHECK(kKeySchema == 1);
  CHECK(kernelKey(sample()) == "d773d061ba05e9419b3c2726da1ae6321efe0a0392a99df300c0fcb565ae89ff");
}

TEST_CASE("each field alone changes the key") {
  std::set<std::string> keys{kernelKey(sample())};
  auto changed = [&](auto change) {
    KernelKeyInputs inputs = sample();
    change(inputs);
    CHECK(keys.insert(kernelKey(inputs)).second);
  };
  changed([](auto &i) { i.generatorId += "2"; });
  changed([](auto &i) { i.planText += " "; });
  changed([](auto &i) { i.architecture = "sm_90"; });
  changed([](auto &i) { i.architecture = "sm_80"; });
  changed([](auto &i) { i.compiler = "NVRTC 13.1"; });
  changed([](auto &i) { i.options = {"-a"}; });
  changed([](auto &i) { i.options = {"-b", "-a"}; });
  changed([](auto &i) { i.options = {"-a", "-b", ""}; });
  changed([](auto &i) { i.options = {"-a-b"}; });
  // The same characters, cut differently into fields.
  changed([](auto &i) { i.options = {"-a", "-b", "sm_90a"}, i.architecture = ""; });
  changed([](auto &i) { i.generatorId = "", i.planText = "generatorplan\ntext"; });
}

TEST_CASE("working folder, HOME and cache folder do not change the key") {
  std::string before = kernelKey(sample());
  TemporaryFolder folder;
  std::string workingFolder = std::filesystem::current_path();
  REQUIRE(chdir(folder.path.c_str()) == 0);
  setenv("HOME", folder.path.c_str(), 1);
  setenv("TILEWRIGHT_CACHE_DIR", folder.path.c_str(), 1);
  CHECK(kernelKey(sample()) == before);
  REQUIRE(chdir(workingFolder.c_str()) == 0);
}
