// The second parameter of the Hopper family's kernels: where TMA finds the tensors, and how a persistent grid shares the
// tiles. Byte for byte tw::Sm90Launch (templates/sm90/TileStream.cuh).
#pragma once

#include "tilewright/Export.h"
#include <cstdint>

namespace tilewright TILEWRIGHT_PUBLIC {

struct alignas(64) Sm90Launch {
  struct alignas(64) TensorMap {
    uint64_t opaque[16] = {};
  };
  TensorMap q, k, v, o;
  int32_t tiles = 0, columns = 0, heads = 0, sectionHeads = 0;
  uint32_t *tickets = nullptr;
};
static_assert(sizeof(Sm90Launch) == 9 * 64);

} // namespace tilewright
