#include "RankOrderSum.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>
#include <cstring>

namespace tilewright::dist {
namespace {

constexpr int64_t kBlock = 1024; ///< Sums of a block stay in the first-level cache while the ranks go by.

template <class Sum, class Element, class Load, class Store>
void sumBlocks(std::span<const void *const> parts, void *to, int64_t elements, Load load, Store store) {
  Sum sums[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    load(static_cast<const Element *>(parts[0]) + begin, sums, count, true);
    for (size_t r = 1; r < parts.size(); ++r)
      load(static_cast<const Element *>(parts[r]) + begin, sums, count, false);
    store(sums, static_cast<Element *>(to) + begin, count);
  }
}

template <class T> void sumPlain(std::span<const void *const> parts, void *to, int64_t elements) {
  sumBlocks<T, T>(
      parts, to, elements,
      [](const T *from, T *sums, int64_t count, bool first) {
        if (first)
          std::memcpy(sums, from, static_cast<size_t>(count) * sizeof(T));
        else
          for (int64_t i = 0; i < count; ++i)
            sums[i] += from[i];
      },
      [](const T *sums, T *to, int64_t count) { std::memcpy(to, sums, static_cast<size_t>(count) * sizeof(T)); });
}

} // namespace

void sumInRankOrder(std::span<const void *const> parts, void *to, int64_t elements, ElementType type) {
  if (type == ElementType::F32) return sumPlain<float>(parts, to, elements);
  if (type == ElementType::F64) return sumPlain<double>(parts, to, elements);
  sumBlocks<float, uint16_t>(
      parts, to, elements,
      [](const uint16_t *from, float *sums, int64_t count, bool first) {
        for (int64_t i = 0; i < count; ++i)
          sums[i] = (first ? 0.0f : sums[i]) + floatFromBFloat16(from[i]);
      },
      [](const float *sums, uint16_t *to, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
          to[i] = bfloat16FromFloat(sums[i]);
      });
}

} // namespace tilewright::dist
