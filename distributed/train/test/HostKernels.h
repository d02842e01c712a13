// Kernels of a pretended GPU: those of steps and layers from their own templates, attention by its definition.
#pragma once

/// What FakeCuda::execute wants. Ends the process at a kernel that it does not know.
void runKernelOnHost(const char *symbol, unsigned blocks, unsigned threads, void **parameters);

/// Attention's kernels, by a symbol as KernelPlan::symbol() makes them; false if it is none.
bool runAttentionOnHost(const char *symbol, void **parameters);
