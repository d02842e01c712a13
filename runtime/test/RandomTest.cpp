#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/tensor/Random.h"
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>

using namespace tilewright;

namespace {

Tensor normal(ElementType type, TensorShape shape, Layout layout, uint64_t seed, uint64_t stream = 0) {
  auto tensor = Tensor::zeros(type, shape, layout);
  REQUIRE(tensor);
  REQUIRE(fillNormal(*tensor, seed, stream));
  return std::move(*tensor);
}

Problem problemOf(DType dtype) {
  Problem problem;
  problem.batch = 2;
  problem.headsQ = 4;
  problem.headsKV = 2;
  problem.seqQ = 33;
  problem.seqKV = 65;
  problem.dimQK = 64;
  problem.dimV = 48;
  problem.dtype = dtype;
  problem.direction = Direction::Backward;
  return problem;
}

/// The least and greatest scaled score over all pairs of batch 1, query head 3; optionally without key 0.
std::pair<double, double> scoreRange(const Problem &problem, const RandomTensors &t, int64_t firstKey = 0) {
  double least = 1e300, greatest = -1e300;
  for (int64_t q = 0; q < problem.seqQ; ++q)
    for (int64_t k = firstKey; k < problem.seqKV; ++k) {
      double sum = 0;
      for (int64_t d = 0; d < problem.dimQK; ++d)
        sum += t.q.at(1, 3, q, d) * t.k.at(1, 1, k, d);
      least = std::min(least, sum / 8);
      greatest = std::max(greatest, sum / 8);
    }
  return {least, greatest};
}

} // namespace

TEST_CASE("known values: a seed means the same numbers everywhere") {
  // From the definitions, computed with another language's integers and math library.
  CHECK(randomBits(1, 2, 3) == 9613205829653846581u);
  const double expected[] = {1.212974797475391, -0.6538243314076115, -1.7753083493687052, -1.3502992894320103};
  const Tensor t = normal(ElementType::F64, {1, 1, 1, 4}, Layout::BSHD, 42);
  for (int64_t d = 0; d < 4; ++d)
    CHECK(std::fabs(t.at(0, 0, 0, d) - expected[d]) < 1e-12);
}

TEST_CASE("values are standard normal") {
  const Tensor t = normal(ElementType::F64, {4, 4, 256, 64}, Layout::BSHD, 7);
  double moments[5] = {}, correlation = 0;
  int64_t beyond2 = 0, count = 0;
  for (int64_t b = 0; b < 4; ++b)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t row = 0; row < 256; ++row)
        for (int64_t d = 0; d < 64; ++d, ++count) {
          const double x = t.at(b, h, row, d);
          double power = 1;
          for (double &moment : moments) {
            moment += power;
            power *= x;
          }
          beyond2 += std::fabs(x) > 2;
          if (d > 0) correlation += x * t.at(b, h, row, d - 1);
        }
  const auto n = static_cast<double>(count);
  // Five standard deviations of each statistic over 262144 values.
  CHECK(std::fabs(moments[1] / n) < 5 / std::sqrt(n));
  CHECK(std::fabs(moments[2] / n - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::fabs(moments[3] / n) < 5 * std::sqrt(15 / n));
  CHECK(std::fabs(moments[4] / n - 3) < 5 * std::sqrt(96 / n));
  CHECK(std::fabs(static_cast<double>(beyond2) / n - 0.0455003) < 5 * std::sqrt(0.0455 / n));
  CHECK(std::fabs(correlation / n) < 5 / std::sqrt(n));
}

TEST_CASE("the same values in every layout, other values in other streams and seeds") {
  const TensorShape shape{2, 3, 5, 7}; // odd: a pair of values spans two rows
  const Tensor bshd = normal(ElementType::F16, shape, Layout::BSHD, 1),
               bhsd = normal(ElementType::F16, shape, Layout::BHSD, 1);
  const Tensor stream = normal(ElementType::F16, shape, Layout::BSHD, 1, 1);
  const Tensor seed = normal(ElementType::F16, shape, Layout::BSHD, 2);
  int different = 0, equalStream = 0, equalSeed = 0;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 3; ++h)
      for (int64_t row = 0; row < 5; ++row)
        for (int64_t d = 0; d < 7; ++d) {
          different += bshd.at(b, h, row, d) != bhsd.at(b, h, row, d);
          equalStream += bshd.at(b, h, row, d) == stream.at(b, h, row, d);
          equalSeed += bshd.at(b, h, row, d) == seed.at(b, h, row, d);
        }
  CHECK(different == 0);
  CHECK(equalStream < 5);
  CHECK(equalSeed < 5);
}

TEST_CASE("a value depends on its index alone, not on where rows begin") {
  const Tensor rows = normal(ElementType::F64, {1, 1, 5, 7}, Layout::BSHD, 9);
  const Tensor line = normal(ElementType::F64, {1, 1, 1, 35}, Layout::BSHD, 9);
  for (int64_t i = 0; i < 35; ++i)
    CHECK(rows.at(0, 0, i / 7, i % 7) == line.at(0, 0, 0, i));
}

TEST_CASE("patterns do to the scores what they say") {
  for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    const Problem problem = problemOf(dtype);
    auto make = [&](DataPattern pattern) {
      auto tensors = randomTensors(problem, 5, pattern);
      REQUIRE(tensors);
      for (const Tensor *t : {&tensors->q, &tensors->k, &tensors->v, &tensors->dO}) {
        CHECK((t->type() == elementType(dtype)));
        CHECK_FALSE(hasNonFinite(t->view()));
      }
      return std::move(*tensors);
    };
    const auto normalRange = scoreRange(problem, make(DataPattern::Normal));
    CHECK(normalRange.first > -6);
    CHECK(normalRange.second < 6);
    CHECK(scoreRange(problem, make(DataPattern::OutlierChannels)).second > 500);
    const RandomTensors sink = make(DataPattern::StrongFirstToken);
    const auto others = scoreRange(problem, sink, 1);
    CHECK(others.second < 6);
    CHECK(scoreRange(problem, sink).second == doctest::Approx(16).epsilon(0.01));
    const auto equal = scoreRange(problem, make(DataPattern::AllEqual));
    CHECK(equal.first == equal.second);
    const auto negative = scoreRange(problem, make(DataPattern::HugeNegative));
    CHECK(negative.second < -115);
    CHECK(negative.first > -125);
  }
}

TEST_CASE("dO comes with backward only, patterns parse by name") {
  Problem problem = problemOf(DType::F32);
  problem.direction = Direction::Forward;
  auto tensors = randomTensors(problem, 1);
  REQUIRE(tensors);
  CHECK_FALSE(tensors->dO.valid());
  for (DataPattern pattern : {DataPattern::Normal, DataPattern::OutlierChannels, DataPattern::StrongFirstToken,
                              DataPattern::AllEqual, DataPattern::HugeNegative}) {
    auto parsed = parseDataPattern(toString(pattern));
    REQUIRE(parsed);
    CHECK((*parsed == pattern));
  }
  auto unknown = parseDataPattern("gauss");
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().message ==
        "data pattern: expected one of normal, outliers, sink, equal, negative; found \"gauss\"");
}
