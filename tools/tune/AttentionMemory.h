// Memory of one problem's tensors, on the host or on a GPU, for kernels that are tried on it.
#pragma once

#include "../bench/DeviceBuffers.h"
#include "tilewright/Kernel.h"
#include "tilewright/KernelArgs.h"
#include "tilewright/reference/Verify.h"
#include "tilewright/tensor/Random.h"

namespace tilewright::tune {

/// Results copied back to the host.
struct HostResults {
  Tensor o, lse, dQ, dK, dV;
};

class AttentionMemory {
public:
  /// With a device the tensors lie there, else on the host. On the host `tables` are viewed: they outlive this.
  static Expected<AttentionMemory> make(const Problem &problem, const std::vector<Table> &tables,
                                        std::shared_ptr<const cuda::Device> device);

  /// What kernels are launched with. Inputs are not filled yet.
  KernelArgs args;

  Status fillInputs(const RandomTensors &inputs);
  /// Inputs on a device, for whoever fills them there: q, k, v and, for gradients, dO.
  std::vector<cuda::DeviceMemory *> deviceInputs();
  /// Room for what the kernels hand each other; what was there before is lost.
  Status reserveWorkspace(const std::vector<Kernel> &kernels);
  /// Zeroes what a fused backward adds to, in the order of `stream`.
  Status clearSums(void *stream);
  /// NaN patterns in every result that a kernel of this role writes.
  Status poisonResults(KernelRole role);
  /// The results that a kernel of this role writes.
  Expected<HostResults> results(KernelRole role);

private:
  explicit AttentionMemory(const Problem &problem) : problem(problem) {}

  struct Part {
    TensorRef KernelArgs::*ref;
    Tensor HostResults::*result; ///< Null for inputs.
    TensorShape shape;
  };
  std::vector<Part> parts() const;
  Expected<void *> allocate(int64_t bytes);
  Status resize(cuda::DeviceMemory &memory, int64_t bytes);
  Status write(void *address, const void *from, int64_t bytes);
  Status read(void *to, const void *address, int64_t bytes);
  Status fill(void *address, int64_t bytes, unsigned char value);

  Problem problem;
  std::shared_ptr<const cuda::Device> device; ///< Null on the host.
  std::optional<bench::DeviceBuffers> onDevice;
  std::vector<AlignedBuffer> onHost;
  cuda::DeviceMemory sums, partials;
  AlignedBuffer hostPartials;
};

} // namespace tilewright::tune
