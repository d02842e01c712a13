#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/tensor/Table.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <numeric>
#include <string>

using namespace tilewright;

TEST_CASE("integer tables know the extents of each tile, batch entry by batch entry") {
  const int64_t extent = 2 * kTableExtentTile + 3;
  std::vector<int32_t> elements(static_cast<size_t>(2 * extent));
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] = static_cast<int32_t>(i * 7919 % 101) - 50;
  auto table = Table::ofInts(elements, {2, extent}, "doc");
  REQUIRE(table);
  const TableRef ref = table->ref();
  CHECK(ref.batchStride == extent);
  CHECK(ref.extentBatchStride == 3);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t tile = 0; tile < 3; ++tile) {
      const auto *first = elements.data() + b * extent + tile * kTableExtentTile;
      const auto *last = elements.data() + b * extent + std::min<int64_t>(extent, (tile + 1) * kTableExtentTile);
      CHECK(ref.tileMin[b * ref.extentBatchStride + tile] == *std::min_element(first, last));
      CHECK(ref.tileMax[b * ref.extentBatchStride + tile] == *std::max_element(first, last));
    }
  CHECK(table->data().extent == extent);
  CHECK(table->data().ints[extent + 1] == elements[static_cast<size_t>(extent + 1)]);
  CHECK(table->data().floats == nullptr);
}

TEST_CASE("one axis has no batch stride, floats have no extents") {
  const float slopes[] = {0.5f, 0.25f};
  auto table = Table::ofFloats(slopes, {2}, "slope");
  REQUIRE(table);
  CHECK(table->ref().batchStride == 0);
  CHECK(table->ref().tileMin == nullptr);
  CHECK(table->data().floats[1] == 0.25f);
  CHECK(table->data().ints == nullptr);
}

TEST_CASE("shape and type are checked against the reading") {
  Problem problem;
  problem.batch = 2;
  problem.headsQ = 4;
  problem.headsKV = 2;
  problem.seqQ = 3;
  problem.seqKV = 5;
  const std::vector<int32_t> elements(10);
  auto table = Table::ofInts(elements, {2, 5}, "len");
  REQUIRE(table);
  CHECK(table->check({"len", false, {TableAxis::B, TableAxis::K}}, problem));
  auto axis = table->check({"len", false, {TableAxis::B, TableAxis::Q}}, problem);
  REQUIRE_FALSE(axis);
  CHECK(axis.error().message == "table len: read as len[b, q], so expected shape (2, 3), found (2, 5)");
  CHECK_FALSE(table->check({"len", false, {TableAxis::K}}, problem));
  auto type = table->check({"len", true, {TableAxis::B, TableAxis::K}}, problem);
  REQUIRE_FALSE(type);
  CHECK(type.error().message == "table len: expected float32 elements, found int32");
  auto perHead = Table::ofInts(std::vector<int32_t>(4), {4}, "h");
  REQUIRE(perHead);
  CHECK(perHead->check({"h", false, {TableAxis::H}}, problem));
}

TEST_CASE("impossible tables are refused") {
  const std::vector<int32_t> elements(8);
  CHECK_FALSE(Table::ofInts(elements, {}, "t"));
  CHECK_FALSE(Table::ofInts(elements, {2, 2, 2}, "t"));
  CHECK_FALSE(Table::ofInts(elements, {7}, "t"));
  CHECK_FALSE(Table::ofInts(elements, {-8}, "t"));
  CHECK(Table::ofInts({}, {0}, "t"));
}
