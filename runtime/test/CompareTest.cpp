#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/reference/Compare.h"
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <nlohmann/json.hpp>

using namespace tilewright;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

Tensor row(ElementType type, const std::vector<double> &values) {
  auto tensor = Tensor::zeros(type, {1, 1, 1, static_cast<int64_t>(values.size())}, Layout::BSHD);
  REQUIRE(tensor);
  tensor->setRow(0, 0, 0, values.data());
  return std::move(*tensor);
}

ErrorFigures figures(ElementType type, const std::vector<double> &actual, const std::vector<double> &reference,
                     const std::vector<double> &naive, const CompareOptions &options = {}) {
  const Tensor a = row(type, actual), r = row(ElementType::F64, reference), n = row(ElementType::F64, naive);
  auto result = compare(a.view(), r.view(), n.view(), options);
  REQUIRE(result);
  return *result;
}

} // namespace

TEST_CASE("figures are those of the definition") {
  const ErrorFigures f = figures(ElementType::F32, {1, 2.5, -4}, {1, 2, -4.25}, {1.5, 2, -4.25});
  CHECK(f.maxAbs == 0.5);
  CHECK(f.rms == doctest::Approx(std::sqrt((0.25 + 0.0625) / 3)));
  CHECK(f.maxRef == 4.25);
  CHECK(f.naiveMaxAbs == 0.5);
  CHECK(f.relativeToNaive == 1);
  CHECK(f.elements == 3);
  CHECK(f.worst[3] == 1);
  CHECK(f.ok);
}

TEST_CASE("twice the naive error passes, more does not") {
  CHECK(figures(ElementType::F32, {1.2}, {1}, {1.1001}).ok);
  CHECK_FALSE(figures(ElementType::F32, {1.2}, {1}, {1.0999}).ok);
  CompareOptions strict;
  strict.limit = 1;
  CHECK_FALSE(figures(ElementType::F32, {1.2}, {1}, {1.1001}, strict).ok);
}

TEST_CASE("where the naive computation is exact, storage's own step and the noise of sums are granted") {
  // Two units in the last place of the largest value, which need not be the one that is off.
  CHECK(figures(ElementType::BF16, {1 + 0x1p-6, 0}, {1, 0}, {1, 0}).ok);
  CHECK_FALSE(figures(ElementType::BF16, {1 + 3 * 0x1p-7, 0}, {1, 0}, {1, 0}).ok);
  CHECK(figures(ElementType::F16, {64, 0x1p-4}, {64, 0}, {64, 0}).relativeToNaive == 1);
  CompareOptions noisy;
  noisy.noise = 1e-6;
  CHECK(figures(ElementType::F32, {1.9e-6}, {0}, {0}, noisy).ok);
  CHECK_FALSE(figures(ElementType::F32, {2.1e-6}, {0}, {0}, noisy).ok);
  CHECK_FALSE(figures(ElementType::F32, {1e-6}, {0}, {0}).ok);
  CHECK(figures(ElementType::F32, {0}, {0}, {0}).relativeToNaive == 0);
}

TEST_CASE("non-finite values must stand where the reference's are") {
  CHECK(figures(ElementType::F32, {kNaN, 1}, {kNaN, 1}, {kNaN, 1}).ok);
  const ErrorFigures lost = figures(ElementType::F32, {1, 0, 0}, {1, kNaN, kNaN}, {1, kNaN, kNaN});
  CHECK_FALSE(lost.ok);
  CHECK_FALSE(lost.withinFieldRule);
  CHECK(lost.nonFiniteMismatches == 2);
  CHECK(lost.worst[3] == 1);
  CHECK_FALSE(figures(ElementType::F32, {kNaN}, {1}, {1}).ok);
  // A naive computation that is NaN itself excuses nothing.
  CHECK_FALSE(figures(ElementType::F32, {kNaN}, {1}, {kNaN}).ok);
  CHECK_FALSE(figures(ElementType::F32, {2}, {1}, {kNaN}).ok);
}

TEST_CASE("infinities: by kind for LSE, by place elsewhere") {
  CompareOptions lse;
  lse.strictInfinities = true;
  CHECK(figures(ElementType::F32, {-kInfinity}, {-kInfinity}, {-kInfinity}, lse).ok);
  CHECK_FALSE(figures(ElementType::F32, {kNaN}, {-kInfinity}, {-kInfinity}, lse).ok);
  CHECK_FALSE(figures(ElementType::F32, {kInfinity}, {-kInfinity}, {-kInfinity}, lse).ok);
  CHECK_FALSE(figures(ElementType::F32, {-1e30}, {-kInfinity}, {-kInfinity}, lse).ok);
  CHECK_FALSE(figures(ElementType::F32, {-kInfinity}, {kNaN}, {kNaN}, lse).ok);
  CHECK(figures(ElementType::F32, {kNaN}, {kInfinity}, {kNaN}).ok);
}

TEST_CASE("what fp16 cannot hold is infinite in it") {
  CHECK(figures(ElementType::F16, {kInfinity}, {1e5}, {kInfinity}).ok);
  CHECK_FALSE(figures(ElementType::F16, {60000}, {1e5}, {kInfinity}).ok);
  CHECK(figures(ElementType::F16, {65504}, {65515}, {65504}).ok);
  CHECK(figures(ElementType::F16, {kInfinity}, {65515}, {65504}).ok);
  CHECK_FALSE(figures(ElementType::F16, {kInfinity}, {65000}, {65000}).ok);
  CHECK_FALSE(figures(ElementType::F16, {kNaN}, {65515}, {65504}).ok);
}

TEST_CASE("the field's absolute rule is reported beside the verdict") {
  CompareOptions half;
  half.dtype = DType::F16;
  CHECK(figures(ElementType::F16, {0.5}, {0.5059}, {0.6}, half).withinFieldRule);
  const ErrorFigures beyond = figures(ElementType::F16, {0.5}, {0.5065}, {0.6}, half);
  CHECK_FALSE(beyond.withinFieldRule);
  CHECK(beyond.ok);
  CHECK(figures(ElementType::F16, {10}, {10.05}, {11}, half).fieldTolerance == doctest::Approx(6e-3 * 10.05));
  CHECK(fieldTolerance(DType::F32) == 2e-5);
  CHECK(fieldTolerance(DType::BF16) == 3e-2);
}

TEST_CASE("chosen rows are compared with their own") {
  auto actual = Tensor::zeros(ElementType::F32, {1, 1, 5, 1}, Layout::BHSD);
  auto reference = Tensor::zeros(ElementType::F64, {1, 1, 2, 1}, Layout::BHSD);
  REQUIRE(actual);
  REQUIRE(reference);
  for (int64_t r = 0; r < 5; ++r)
    actual->set(0, 0, r, 0, static_cast<double>(r));
  reference->set(0, 0, 0, 0, 1);
  reference->set(0, 0, 1, 0, 4.5);
  const std::vector<int64_t> rows = {1, 4};
  CompareOptions options;
  options.rows = rows;
  auto result = compare(actual->view(), reference->view(), reference->view(), options);
  REQUIRE(result);
  CHECK(result->maxAbs == 0.5);
  CHECK(result->worst[2] == 4);
  const std::vector<int64_t> outside = {1, 5};
  options.rows = outside;
  CHECK_FALSE(compare(actual->view(), reference->view(), reference->view(), options));
  CHECK_FALSE(compare(actual->view(), reference->view(), reference->view(), {}));
}

TEST_CASE("figures as JSON") {
  const nlohmann::json json = figures(ElementType::F32, {1.5}, {1}, {1.25});
  CHECK(json["max_abs"] == 0.5);
  CHECK(json["relative_to_naive"] == 2);
  CHECK(json["within_field_rule"] == false);
  CHECK(json["ok"] == true);
}
