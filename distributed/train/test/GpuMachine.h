// The GPU's backend in a test: on a GPU if there is one, or on a pretended one whose kernels run on the host.
#pragma once

#include "../../../runtime/test/FakeCudaLibrary.h"
#include "HostKernels.h"
#include "tilewright/train/GpuBackend.h"
#include <doctest/doctest.h>
#include <optional>
#include <string>

struct GpuMachine {
  std::shared_ptr<tilewright::Context> context;
  std::unique_ptr<tilewright::train::GpuBackend> backend;

  /// Makes attention's kernels, where a test needs them.
  static inline tilewright::CodeGenerator *generator = nullptr;
  static inline std::string hostCompiler;

  static tilewright::ContextOptions options() {
    tilewright::ContextOptions made;
    made.generator = generator;
    made.hostCompiler = hostCompiler;
    made.cacheDir = "";
    return made;
  }

  static tilewright::Expected<GpuMachine> open(tilewright::ContextOptions options,
                                               const tilewright::train::GpuOptions &how) {
    auto context = tilewright::Context::create(std::move(options));
    if (!context) return propagate(context);
    auto backend = tilewright::train::GpuBackend::create(*context, how);
    if (!backend) return propagate(backend);
    return GpuMachine{std::move(*context), std::move(*backend)};
  }

  /// A pretended GPU's. FAKE_CUDA_PATH and FAKE_CUBLASLT_PATH are the libraries' files, defined by the build.
  static tilewright::ContextOptions pretendedOptions() {
    fakeCuda().execute = runKernelOnHost;
    tilewright::ContextOptions made = options();
    made.environment = tilewright::Environment();
    made.environment->cudaDriver = made.environment->nvrtc = FAKE_CUDA_PATH;
    made.environment->cublasLt = FAKE_CUBLASLT_PATH;
    return made;
  }
  static GpuMachine pretended(const tilewright::train::GpuOptions &how) {
    auto machine = open(pretendedOptions(), how);
    REQUIRE_MESSAGE(machine, (machine ? "" : machine.error().text()));
    return std::move(*machine);
  }

  /// A real one's; nothing without a device, and then the test is skipped.
  static std::optional<GpuMachine> real(const tilewright::train::GpuOptions &how) {
    tilewright::ContextOptions made = options();
    made.cacheDir.reset();
    auto context = tilewright::Context::create(made);
    REQUIRE(context);
    if (!(*context)->device()) {
      MESSAGE("skipped: no device");
      return std::nullopt;
    }
    auto machine = open(made, how);
    REQUIRE_MESSAGE(machine, (machine ? "" : machine.error().text()));
    return std::move(*machine);
  }
};
