#include "tilewright/train/SequenceOrder.h"
#include "tilewright/tensor/Random.h"
#include <algorithm>
#include <bit>

namespace tilewright::train {
namespace {

constexpr uint64_t kStream = 0x6f72646572; ///< Apart from those of initial values.

/// A permutation of [0, count) by a Feistel network over the next even number of bits; what falls outside goes through
/// it again (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
uint64_t permuted(uint64_t index, uint64_t count, uint64_t seed, uint64_t epoch) {
  const int half = std::max(1, static_cast<int>(std::bit_width(count - 1) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = left ^ (randomBits(seed, kStream + epoch, right * 4 + round) & mask);
      left = right;
      right = mixed;
    }
    index = left << half | right;
  } while (index >= count);
  return index;
}

} // namespace

SequenceOrder::SequenceOrder(int64_t begin, int64_t end, int64_t context, uint64_t seed)
    : first(begin), context(context), count(std::max<int64_t>(0, (end - begin - 1) / context)), seed(seed) {}

int64_t SequenceOrder::begin(int64_t n) const {
  if (count <= 1) return first;
  const uint64_t windows = static_cast<uint64_t>(count), at = static_cast<uint64_t>(n);
  return window(static_cast<int64_t>(permuted(at % windows, windows, seed, at / windows)));
}

} // namespace tilewright::train
