#include "tilewright/train/AllocatedMemory.h"
#include <fmt/format.h>

namespace tilewright::train {

Expected<dist::MemoryByCategory> allocatedMemory(dist::Engine &engine, const Transformer &model) {
  dist::MemoryByCategory memory = engine.steps().allocated();
  // Plans count whole elements of four bytes.
  memory.bytes[static_cast<size_t>(dist::Category::Activations)] += (model.allocatedBytes() + 3) / 4 * 4;
  const dist::MemoryByCategory planned = dist::predictMemory(engine.plan(), engine.network().rank());
  for (int c = 0; c < dist::kCategories; ++c) {
    const auto category = static_cast<dist::Category>(c);
    if (memory.of(category) != planned.of(category))
      return fail(Stage::Plan, fmt::format("memory: {}: the plan foretold {} bytes, {} were allocated",
                                           toString(category), planned.of(category), memory.of(category)));
  }
  return memory;
}

} // namespace tilewright::train
