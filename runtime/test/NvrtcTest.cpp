// Against the real NVRTC where there is one (no GPU is needed), and the fake one for what the real one never does.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/cuda/Nvrtc.h"
#include "FakeCudaLibrary.h"
#include "TemporaryFolder.h"
#include "tilewright/Environment.h"
#include <doctest/doctest.h>
#include <thread>

using namespace tilewright;
using namespace tilewright::cuda;

namespace {

Nvrtc::Search search() {
  Environment environment = Environment::ofProcess().value();
  return {environment.nvrtc, environment.libraryPath, environment.cudaHome, 0};
}

/// Null, after saying so, when this machine has no NVRTC.
std::shared_ptr<const Nvrtc> realNvrtc() {
  auto nvrtc = Nvrtc::open(search());
  if (nvrtc) return *nvrtc;
  MESSAGE("skipped: ", nvrtc.error().text());
  return nullptr;
}

constexpr std::string_view kKernel = "extern \"C\" __global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }\n";

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

} // namespace

TEST_CASE("a trivial kernel becomes a cubin with its figures, the same bytes each time") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  CHECK(nvrtc->version().major >= 12);
  CHECK(nvrtc->path().front() == '/');
  for (std::string architecture : {"sm_80", "sm_90a"}) {
    auto first = nvrtc->compile({kKernel, "scale", architecture});
    REQUIRE_MESSAGE(first, first.error().text());
    CHECK(std::string_view(first->code.data(), 4) == "\177ELF");
    CHECK(first->report.registers > 0);
    CHECK(first->report.spillBytes() == 0);
    CHECK(first->report.problems.empty());
    CHECK(first->milliseconds > 0);
    auto second = nvrtc->compile({kKernel, "scale", architecture});
    REQUIRE(second);
    CHECK(second->code == first->code);
  }
}

TEST_CASE("PTX on request") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  NvrtcRequest request{kKernel, "scale", "sm_90a"};
  request.output = NvrtcOutput::Ptx;
  auto ptx = nvrtc->compile(request);
  REQUIRE_MESSAGE(ptx, ptx.error().text());
  std::string text(ptx->code.begin(), ptx->code.end());
  CHECK(contains(text, ".target sm_90a"));
  CHECK(contains(text, ".entry scale"));
}

TEST_CASE("spills are problems") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  std::string source =
      "extern \"C\" __global__ void busy(float *x) {\n  float v[64];\n  for (int i = 0; i < 64; ++i) v[i] = "
      "x[i * 32 + threadIdx.x];\n#pragma unroll\n  for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i * 7 "
      "+ 3) % 64];\n  __syncthreads();\n  for (int i = 0; i < 64; ++i) x[i * 32 + threadIdx.x] = v[i];\n}\n";
  NvrtcRequest request{source, "busy", "sm_80"};
  request.options = {"--maxrregcount=24"};
  auto result = nvrtc->compile(request);
  REQUIRE_MESSAGE(result, result.error().text());
  CHECK(result->report.spillStoreBytes > 0);
  REQUIRE(result->report.problems.size() == 1);
  CHECK(contains(result->report.problems[0], "spill"));
}

TEST_CASE("a compile error carries the first error line, the log and the numbered source") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  TemporaryFolder folder;
  NvrtcRequest request{"extern \"C\" __global__ void broken() {\n  undefinedThing();\n}\n", "broken", "sm_80"};
  request.failedDir = folder.path + "/failed";
  auto result = nvrtc->compile(request);
  REQUIRE_FALSE(result);
  const Error &error = result.error();
  CHECK((error.stage == Stage::Compile));
  CHECK(contains(error.message, "broken.cu(2): error"));
  CHECK(contains(error.message, "undefinedThing"));
  CHECK(contains(error.message, "NVRTC"));
  CHECK(contains(error.message, request.failedDir + "/broken.numbered.cu"));
  CHECK(contains(error.log, "1 error detected"));
  CHECK(contains(readFile(request.failedDir + "/broken.numbered.cu"), "    2 |   undefinedThing();"));
}

TEST_CASE("an error of ptxas shows the PTX line") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  TemporaryFolder folder;
  NvrtcRequest request{"extern \"C\" __global__ void broken() { asm volatile(\"mov.q31 %r1, 7;\"); }\n", "broken",
                       "sm_80"};
  request.failedDir = folder.path;
  auto result = nvrtc->compile(request);
  REQUIRE_FALSE(result);
  CHECK(contains(result.error().message, "mov.q31 %r1, 7;"));
  CHECK(contains(readFile(folder.path + "/broken.ptx"), "mov.q31"));
}

TEST_CASE("sm_90a instructions for another target get a hint") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  TemporaryFolder folder;
  NvrtcRequest request{
      "extern \"C\" __global__ void hop() { asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;\"); }\n", "hop",
      "sm_80"};
  request.failedDir = folder.path;
  auto result = nvrtc->compile(request);
  REQUIRE_FALSE(result);
  CHECK(contains(result.error().hint, "sm_90a"));
}

TEST_CASE("unknown architectures and options are named") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  auto unknown = nvrtc->compile({kKernel, "scale", "sm_42"});
  REQUIRE_FALSE(unknown);
  CHECK(contains(unknown.error().message, "sm_42"));
  CHECK(contains(unknown.error().message, "does not know this architecture"));
  NvrtcRequest request{kKernel, "scale", "sm_80"};
  request.options = {"--no-such-option"};
  auto refused = nvrtc->compile(request);
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "--no-such-option"));
}

TEST_CASE("compiles of several threads at once") {
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      std::string name = "kernel" + std::to_string(i);
      auto result = nvrtc->compile({"extern \"C\" __global__ void " + name + "(int *p) { *p = 1; }", name, "sm_80"});
      good += result && result->report.registers > 0;
    });
  for (std::thread &thread : threads)
    thread.join();
  CHECK(good == 8);
}

TEST_CASE("the version peeked from file names is the true one") {
  auto peeked = Nvrtc::peekVersion(search());
  auto nvrtc = realNvrtc();
  if (!nvrtc) return;
  if (peeked.major) CHECK(peeked == nvrtc->version());
  CHECK(Nvrtc::peekVersion(search()) == nvrtc->version()); // Held by this process now.
  CHECK(NvrtcVersion::parse("NVRTC 13.0") == NvrtcVersion{13, 0});
  CHECK(NvrtcVersion::parse("NVRTC 13.0x").major == 0);
  CHECK(NvrtcVersion::parse("LLVM 22.1").major == 0);
}

TEST_CASE("peeking looks for the builtins beside the library and gives up on a choice") {
  TemporaryFolder folder;
  Nvrtc::Search from;
  from.overridePath = folder.path + "/libnvrtc.so.12";
  writeFile(from.overridePath, "");
  CHECK(Nvrtc::peekVersion(from).major == 0);
  writeFile(folder.path + "/libnvrtc-builtins.so.12.8", "");
  writeFile(folder.path + "/libnvrtc-builtins.so.13.0", "");
  CHECK(Nvrtc::peekVersion(from) == NvrtcVersion{12, 8});
  writeFile(folder.path + "/libnvrtc-builtins.so.12.4", "");
  CHECK(Nvrtc::peekVersion(from).major == 0);
}

TEST_CASE("missing libraries say what was tried and how to get them") {
  Nvrtc::Search from;
  from.overridePath = "/nowhere/libnvrtc.so.13";
  auto overridden = Nvrtc::open(from);
  REQUIRE_FALSE(overridden);
  CHECK(contains(overridden.error().message, "TILEWRIGHT_NVRTC names /nowhere/libnvrtc.so.13"));
  CHECK_FALSE(overridden.error().log.empty());

  from.overridePath = "libc.so.6";
  auto wrong = Nvrtc::open(from);
  REQUIRE_FALSE(wrong);
  CHECK(contains(wrong.error().message, "not an NVRTC"));

  LibrarySearch nothing{"the thing", "", "", {"libthing.so.2", "libthing.so.1"}, {"/a", "/b"}, "buy one"};
  auto missing = DynamicLibrary::open(nothing);
  REQUIRE_FALSE(missing);
  for (const char *part : {"the thing", "libthing.so.2", "libthing.so.1", "/a", "/b"})
    CHECK(contains(missing.error().message, part));
  CHECK(missing.error().hint == "buy one");
}

TEST_CASE("builtins that are missing are named with their exact version") {
  Nvrtc::Search from;
  from.overridePath = FAKE_CUDA_PATH;
  auto nvrtc = Nvrtc::open(from);
  REQUIRE(nvrtc);
  Pretend code(fakeCuda().compileCode, 7);
  auto result = (*nvrtc)->compile({kKernel, "scale", "sm_90a"});
  REQUIRE_FALSE(result);
  CHECK(contains(result.error().message, "libnvrtc-builtins.so.13.0"));
  CHECK(contains(result.error().hint, "LD_LIBRARY_PATH"));
}
