// In which order training meets its data: a pure function of seed and position, so that resuming needs a number only,
// and every world size meets the same sequences.
#pragma once

#include <cstdint>

namespace tilewright::train {

/// Tokens [begin, end) are cut into windows of `context` inputs and as many targets, shifted by one: neighbours share a
/// token. Each epoch visits every window once, in a permuted order of its own.
class SequenceOrder {
public:
  SequenceOrder() = default;
  SequenceOrder(int64_t begin, int64_t end, int64_t context, uint64_t seed);

  int64_t windows() const { return count; } ///< 0: fewer than context + 1 tokens.
  /// First token of the n-th sequence of training, n from 0 without end.
  int64_t begin(int64_t n) const;
  /// First token of window i in the file's order.
  int64_t window(int64_t i) const { return first + i * context; }

private:
  int64_t first = 0, context = 1, count = 0;
  uint64_t seed = 0;
};

} // namespace tilewright::train
