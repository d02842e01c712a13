// The model on the host: OpenBLAS for matrix products, vectorised loops for the layers, Tilewright's CPU kernels for
// attention. Activations are fp32; BF16 parameters are widened as they are used. Results do not depend on the number
// of threads but for OpenBLAS's products.
#pragma once

#include "tilewright/Context.h"
#include "tilewright/ThreadPool.h"
#include "tilewright/train/Backend.h"

namespace tilewright::train {

/// `context` prepares the attention kernels (its generator compiles them on cache misses); both must outlive the
/// backend. The error says how to get OpenBLAS.
Expected<std::unique_ptr<Backend>> cpuBackend(std::shared_ptr<Context> context, ThreadPool &pool);

} // namespace tilewright::train
