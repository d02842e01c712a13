// The driver layer against the fake driver: what is called, in which context, and what errors say.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "FakeCudaLibrary.h"
#include "tilewright/KernelArgs.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/cuda/Module.h"
#include "tilewright/cuda/Stream.h"
#include <doctest/doctest.h>
#include <numeric>

using namespace tilewright;
using namespace tilewright::cuda;

namespace {

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }
std::shared_ptr<const Driver> driver() { return Driver::open(FAKE_CUDA_PATH).value(); }
std::shared_ptr<const Device> device() { return Device::open(driver(), 0).value(); }
const std::vector<char> kCubin = {'c', 'u', 'b'};

} // namespace

TEST_CASE("what the driver says about itself and its devices") {
  Pretend two(fakeCuda().devices, 2);
  auto opened = driver();
  CHECK(opened->version() == 13000);
  CHECK(contains(opened->path(), "tilewright_fake_cuda"));
  REQUIRE(opened->devices().size() == 2);
  const DeviceInfo &info = opened->devices()[1];
  CHECK(info.ordinal == 1);
  CHECK(info.name == "Fake GPU");
  CHECK(info.major == 9);
  CHECK(info.smCount == 132);
  CHECK(info.sharedBytesPerBlock == 232448);
  CHECK(info.totalBytes == int64_t{1} << 37);
}

TEST_CASE("an old driver, no device and failures of cuInit each say what to do") {
  {
    Pretend old(fakeCuda().driverVersion, 11040);
    auto opened = Driver::open(FAKE_CUDA_PATH);
    REQUIRE_FALSE(opened);
    CHECK(contains(opened.error().message, "CUDA 11.4"));
    CHECK(contains(opened.error().message, "12.0"));
    CHECK_FALSE(opened.error().hint.empty());
  }
  {
    Pretend none(fakeCuda().devices, 0);
    auto opened = Driver::open(FAKE_CUDA_PATH);
    REQUIRE_FALSE(opened);
    CHECK(contains(opened.error().hint, "CUDA_VISIBLE_DEVICES"));
  }
  for (int code : {3, 34, 100, 802, 803}) {
    CAPTURE(code);
    Pretend fails(fakeCuda().initCode, code);
    auto opened = Driver::open(FAKE_CUDA_PATH);
    REQUIRE_FALSE(opened);
    CHECK(contains(opened.error().message, "cannot initialise the CUDA driver: CUDA_ERROR_FAKE (a text)"));
    CHECK_FALSE(opened.error().hint.empty());
  }
  CHECK(contains(Driver::open("/nowhere/libcuda.so.1").error().message, "TILEWRIGHT_CUDA_DRIVER"));
  CHECK(contains(Driver::open("libm.so.6").error().message, "is not a CUDA driver"));
}

TEST_CASE("a device number that does not exist") {
  auto opened = Device::open(driver(), 3);
  REQUIRE_FALSE(opened);
  CHECK(contains(opened.error().message, "device 3 does not exist: this process sees 1 device"));
}

TEST_CASE("primary contexts are released, and nothing stays current") {
  {
    auto on = device();
    CHECK(fakeCuda().contexts == 1);
    CHECK(on->synchronize());
    CHECK(on->memory()->freeBytes == 1 << 30);
  }
  CHECK(fakeCuda().contexts == 0);
  CHECK(fakeCuda().pushes == fakeCuda().pops);
}

TEST_CASE("memory: round trips, ranges, and an error that names what is free") {
  auto on = device();
  {
    auto memory = DeviceMemory::allocate(on, 1000);
    REQUIRE(memory);
    CHECK(fakeCuda().allocated == 1000);
    CHECK(reinterpret_cast<uintptr_t>(memory->data()) % 256 == 0);
    std::vector<char> in(900), out(900);
    std::iota(in.begin(), in.end(), 1);
    CHECK(memory->copyFromHost(in.data(), 900, 100));
    CHECK(memory->copyToHost(out.data(), 900, 100));
    CHECK(in == out);
    CHECK(memory->fill(7));
    CHECK(memory->copyToHost(out.data(), 900));
    CHECK(out[899] == 7);
    CHECK_FALSE(memory->copyFromHost(in.data(), 900, 101));
    CHECK_FALSE(memory->copyToHost(out.data(), -1));
    DeviceMemory moved = std::move(*memory);
    CHECK(moved.size() == 1000);
    CHECK(memory->data() == nullptr);
  }
  CHECK(fakeCuda().allocated == 0);
  CHECK(DeviceMemory::allocate(on, 0)->data() == nullptr);
  auto tooMuch = DeviceMemory::allocate(on, int64_t{3} << 30);
  REQUIRE_FALSE(tooMuch);
  CHECK(contains(tooMuch.error().message, "3221225472 bytes (3.00 GiB)"));
  CHECK(contains(tooMuch.error().message, "1073741824 of"));
  CHECK(contains(tooMuch.error().message, "CUDA_ERROR_OUT_OF_MEMORY"));
}

TEST_CASE("streams and events") {
  auto on = device();
  auto stream = Stream::create(on);
  REQUIRE(stream);
  CHECK(stream->synchronize());
  auto begin = Event::create(on), end = Event::create(on);
  CHECK(begin->record(stream->handle()));
  CHECK(end->record(stream->handle()));
  CHECK(end->synchronize());
  CHECK(end->millisecondsSince(*begin).value() == 1.5);
  CHECK(on->isCapturing(stream->handle()).value() == false);
  CHECK(on->isCapturing(nullptr).value() == false);
}

TEST_CASE("a launch goes out as prepared, whichever context is current") {
  auto on = device();
  auto module = Module::load(on, kCubin, {"k", 100000, 256, 13000});
  REQUIRE_MESSAGE(module, module.error().text());
  CHECK(fakeCuda().sharedAttribute == 100000);
  CHECK((*module)->registers() == 168);
  KernelArgs args;
  args.batch = 42;
  void *stream = reinterpret_cast<void *>(0x77);
  auto check = [&](void *function) {
    REQUIRE((*module)->launch(stream, 12, &args));
    const FakeCuda::Launch &launch = fakeCuda().lastLaunch;
    CHECK(launch.function == function);
    CHECK(launch.stream == stream);
    CHECK(launch.blocks == 12);
    CHECK(launch.threads == 256);
    CHECK(launch.sharedBytes == 100000);
    CHECK(launch.batch == 42);
    CHECK(fakeCuda().pushes - fakeCuda().pops == 0);
  };
  void *function = reinterpret_cast<void *>(0x400), *kernel = reinterpret_cast<void *>(0x300);
  check(kernel); // No context is current: the primary one is pushed for the call.
  const DriverApi &api = on->api();
  auto with = [&](uintptr_t context, void *expected, int pushes) {
    void *popped = nullptr;
    api.ctxPushCurrent(reinterpret_cast<void *>(context));
    int before = fakeCuda().pushes;
    REQUIRE((*module)->launch(stream, 12, &args));
    CHECK(fakeCuda().pushes - before == pushes);
    CHECK(fakeCuda().lastLaunch.function == expected);
    api.ctxPopCurrent(&popped);
    CHECK(popped == reinterpret_cast<void *>(context));
  };
  with(0x100, function, 0); // The primary context.
  with(0x110, kernel, 0);   // A host's own context of the same device (the fake's low digit is the device).
  with(0x101, kernel, 1);   // Another device's.
}

TEST_CASE("what a device cannot do is refused with the numbers") {
  auto on = device();
  auto shared = Module::load(on, kCubin, {"k", 240000, 128, 0});
  REQUIRE_FALSE(shared);
  CHECK(contains(shared.error().message, "needs 240000 bytes of shared memory a block"));
  CHECK(contains(shared.error().message, "232448"));
  auto newer = Module::load(on, kCubin, {"k", 0, 128, 14010});
  REQUIRE_FALSE(newer);
  CHECK(contains(newer.error().message, "compiled by CUDA 14.1"));
  CHECK(contains(newer.error().message, "serves only CUDA 13.0"));
  CHECK(Module::load(on, kCubin, {"k", 0, 128, 13090})); // Same major version: allowed.
  Pretend threads(fakeCuda().maxThreads, 384);
  auto registers = Module::load(on, kCubin, {"k", 0, 512, 0});
  REQUIRE_FALSE(registers);
  CHECK(contains(registers.error().message, "512 threads"));
  CHECK(contains(registers.error().message, "384"));
}

TEST_CASE("a cubin that is at fault is told from other failures") {
  auto on = device();
  bool unusable = false;
  fakeCuda().failLoads = 1;
  CHECK_FALSE(Module::load(on, kCubin, {"k", 0, 128, 0}, &unusable));
  CHECK(unusable);
  unusable = false;
  CHECK_FALSE(Module::load(on, kCubin, {"k", 240000, 128, 0}, &unusable));
  CHECK_FALSE(unusable);
}

TEST_CASE("loading, unloading and allocating never disturb another thread's capture") {
  auto on = device();
  fakeCuda().strictCalls = 0;
  {
    auto module = Module::load(on, kCubin, {"k", 0, 128, 0});
    auto memory = DeviceMemory::allocate(on, 100);
  }
  CHECK(fakeCuda().strictCalls == 0);
  CHECK(fakeCuda().loads == fakeCuda().unloads);
}

TEST_CASE("destructors bear a driver that is gone") {
  auto on = device();
  auto module = Module::load(on, kCubin, {"k", 0, 128, 0});
  auto memory = DeviceMemory::allocate(on, 100);
  auto stream = Stream::create(on);
  auto event = Event::create(on);
  Pretend gone(fakeCuda().gone, true);
  KernelArgs args;
  auto launched = (*module)->launch(nullptr, 1, &args);
  REQUIRE_FALSE(launched);
  CHECK(contains(launched.error().message, "cannot launch kernel k (1 blocks of 128 threads"));
  module->reset();
  *memory = {};
  *stream = {};
  *event = {};
  on.reset();
}
