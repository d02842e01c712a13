// Launches of the Hopper family: its kernels take a second parameter, which says where TMA finds the tensors and how a
// persistent grid shares the tiles.
#pragma once

#include "tilewright/KernelArgs.h"
#include "tilewright/Sm90Launch.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/cuda/Module.h"
#include "tilewright/plan/KernelPlan.h"
#include <array>
#include <atomic>
#include <span>

namespace tilewright {

class Sm90Launcher {
public:
  /// Allocates the tickets of kernels that deal tiles dynamically. Errors say what the driver lacks.
  static Expected<std::unique_ptr<Sm90Launcher>> make(const KernelPlan &plan,
                                                      std::shared_ptr<const cuda::Device> device);

  struct Launch {
    Sm90Launch parameter;
    unsigned blocks = 0;
  };
  /// What to launch on `stream` for `tiles` tiles (blockCount() of the plan). Takes no lock and allocates nothing.
  Expected<Launch> describe(void *stream, int64_t tiles, const KernelArgs &args) const;

private:
  Sm90Launcher(const KernelPlan &plan, std::shared_ptr<const cuda::Device> device)
      : plan(plan), device(std::move(device)) {}

  /// Tickets that no other launch in flight draws from; null where there are none.
  uint32_t *ticketsFor(void *stream) const;
  /// An axis of a tensor, outward from its rows' elements.
  struct Axis {
    int64_t extent, stride; ///< In elements
    uint32_t box = 1;       ///< Entries that a copy moves at once.
  };
  Status encode(Sm90Launch::TensorMap &map, const char *name, const void *data, int64_t dim,
                std::span<const Axis> axes) const;
  Status encodeTensors(Sm90Launch &launch, const KernelArgs &args) const;

  /// Launches on one stream follow one another, so a stream's launches share a place. 64 bytes each.
  static constexpr int kPlaces = 128;

  const KernelPlan plan;
  std::shared_ptr<const cuda::Device> device;
  cuda::DeviceMemory tickets;
  mutable std::array<std::atomic<uint64_t>, kPlaces> owners = {}; ///< A stream's id + 1, or 0: the place is free.
};

} // namespace tilewright
