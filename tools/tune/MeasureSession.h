// Checks and times candidates of one problem, in the process that it lives in.
//
// A candidate is right if it gives right results on a small problem of the same family: the same machine code (batch,
// heads and lengths are arguments), odd lengths, every tile partial somewhere, enough blocks that persistent ones take
// several. It is timed on the problem itself.
#pragma once

#include "../bench/LaunchTimer.h"
#include "AttentionMemory.h"
#include "tilewright/tuning/TunedCandidate.h"

namespace tilewright::tune {

struct MeasureRequest {
  KernelPlan plan;
  bool check = true;      ///< Off where the same code was checked before.
  bool spillsToo = false; ///< Time it even if it spills: the default, whatever it does.
  double stopAboveMs = 0; ///< Hopeless candidates are given up after a few launches; 0 never.
  double budgetMs = 30;   ///< Of launches that are timed; at least five are.
};

struct Measurement {
  TuningOutcome outcome = TuningOutcome::Ok;
  std::string detail; ///< Why it is not Ok.
  double ms = 0, fastestMs = 0, slowestMs = 0, clockMhz = 0;
  int repeats = 0;
  bool deviceLost = false; ///< Nothing more can be measured in this process.
};

class MeasureSession {
public:
  struct Options {
    Problem problem; ///< Its direction says whether gradients can be asked for.
    Target target;
    std::vector<Table> tables;
    bool coldCaches = true; ///< GPUs: L2 is flushed before each launch.
    int device = 0;
  };
  /// Allocates and fills tensors; for gradients computes O, LSE and delta by the default kernels.
  static Expected<std::unique_ptr<MeasureSession>> make(Context &context, Options options);

  Measurement measure(const MeasureRequest &request);

private:
  MeasureSession(Context &context, Options options) : context(context), options(std::move(options)) {}

  Status open();
  Status runForward(AttentionMemory &memory);
  Expected<std::vector<Kernel>> prepare(const KernelPlan &plan);
  /// Enqueues on a device, computes on the host.
  Status runOnce(const std::vector<Kernel> &kernels, AttentionMemory &memory);
  Status synchronize();
  /// What is wrong with the results; empty where nothing is.
  Expected<std::string> check(const std::vector<Kernel> &kernels);
  Status time(const std::vector<Kernel> &kernels, const MeasureRequest &request, Measurement &measurement);
  Status timeOnHost(const std::vector<Kernel> &kernels, const MeasureRequest &request, std::vector<double> &times);

  Context &context;
  Options options;
  std::shared_ptr<const cuda::Device> device; ///< Null on the CPU.
  std::optional<bench::LaunchTimer> timer;
  cuda::DeviceMemory flush; ///< Larger than L2.
  std::optional<AttentionMemory> full, small;
  Problem smallProblem;
  std::optional<AttentionVerifier> verifier;
};

/// The problem that results are checked on; the problem itself where it reads tables, whose sizes are fixed.
Problem checkedProblem(const Problem &problem, const Target &target);

} // namespace tilewright::tune
