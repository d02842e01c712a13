#include "tilewright/reference/Compare.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

namespace tilewright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The reference as the result's type would hold it, in kind. Within half an ulp of the largest finite value both the
/// value and infinity are right.
enum class Kind { Finite, Edge, PlusInfinity, MinusInfinity, NaN };

Kind kindOf(double value, ElementType type) {
  if (std::isnan(value)) return Kind::NaN;
  const double limit = maxFinite(type), margin = ulp(type, limit);
  if (std::fabs(value) <= limit - margin) return Kind::Finite;
  if (std::fabs(value) <= limit + margin) return Kind::Edge;
  return value > 0 ? Kind::PlusInfinity : Kind::MinusInfinity;
}

bool agree(double actual, Kind expected, bool strict) {
  switch (expected) {
  case Kind::Finite:
    return std::isfinite(actual);
  case Kind::Edge:
    return !std::isnan(actual);
  case Kind::PlusInfinity:
    return strict ? actual == kInfinity : !std::isfinite(actual);
  case Kind::MinusInfinity:
    return strict ? actual == -kInfinity : !std::isfinite(actual);
  case Kind::NaN:
    return std::isnan(actual) || (!strict && std::isinf(actual));
  }
  return false;
}

bool sameShape(const TensorShape &actual, const TensorShape &reference, std::span<const int64_t> rows) {
  if (actual.batch != reference.batch || actual.heads != reference.heads || actual.dim != reference.dim) return false;
  if (rows.empty()) return actual.rows == reference.rows;
  return static_cast<int64_t>(rows.size()) == reference.rows &&
         std::all_of(rows.begin(), rows.end(), [&](int64_t row) { return row >= 0 && row < actual.rows; });
}

class Comparison {
public:
  Comparison(ElementType type, const CompareOptions &options) : type(type), options(options) {}

  void add(double actual, double reference, double naive, const int64_t (&position)[4]) {
    ++figures.elements;
    const Kind kind = kindOf(reference, type);
    if (!agree(actual, kind, options.strictInfinities)) {
      if (figures.nonFiniteMismatches++ == 0) std::copy_n(position, 4, figures.worst);
      return;
    }
    if (!std::isfinite(reference)) return;
    figures.maxRef = std::max(figures.maxRef, std::fabs(reference));
    if (std::isfinite(naive)) figures.naiveMaxAbs = std::max(figures.naiveMaxAbs, std::fabs(naive - reference));
    if (!std::isfinite(actual)) return; // rightly: the type cannot hold the value
    const double error = std::fabs(actual - reference);
    squares += error * error;
    ++counted;
    if (error > figures.maxAbs) {
      figures.maxAbs = error;
      if (figures.nonFiniteMismatches == 0) std::copy_n(position, 4, figures.worst);
    }
  }

  ErrorFigures finish() {
    ErrorFigures &f = figures;
    f.rms = counted > 0 ? std::sqrt(squares / static_cast<double>(counted)) : 0;
    f.yardstick = std::max({f.naiveMaxAbs, ulp(type, f.maxRef), options.noise});
    f.relativeToNaive = f.maxAbs > 0 ? f.maxAbs / f.yardstick : 0;
    f.fieldTolerance = fieldTolerance(options.dtype) * std::max(1.0, f.maxRef);
    f.withinFieldRule = f.nonFiniteMismatches == 0 && f.maxAbs <= f.fieldTolerance;
    f.ok = f.nonFiniteMismatches == 0 && f.relativeToNaive <= options.limit;
    return f;
  }

private:
  ElementType type;
  const CompareOptions &options;
  ErrorFigures figures;
  double squares = 0;
  int64_t counted = 0;
};

} // namespace

double fieldTolerance(DType dtype) {
  switch (dtype) {
  case DType::F32:
    return 2e-5;
  case DType::F16:
    return 6e-3;
  case DType::BF16:
    break;
  }
  return 3e-2;
}

Expected<ErrorFigures> compare(const TensorView &actual, const TensorView &reference, const TensorView &naive,
                               const CompareOptions &options) {
  const TensorShape shape = reference.shape();
  if (naive.shape() != shape || !sameShape(actual.shape(), shape, options.rows))
    return fail(Stage::Verify,
                fmt::format("comparison: shapes differ: result {}, reference {}, naive {}, {} rows asked",
                            actual.shape().text(Layout::BHSD), shape.text(Layout::BHSD),
                            naive.shape().text(Layout::BHSD), options.rows.size()));
  Comparison comparison(actual.type(), options);
  std::vector<double> a(static_cast<size_t>(shape.dim)), r(a.size()), n(a.size());
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t i = 0; i < shape.rows; ++i) {
        const int64_t row = options.rows.empty() ? i : options.rows[static_cast<size_t>(i)];
        actual.copyRow(b, h, row, a.data());
        reference.copyRow(b, h, i, r.data());
        naive.copyRow(b, h, i, n.data());
        for (size_t d = 0; d < a.size(); ++d)
          comparison.add(a[d], r[d], n[d], {b, h, row, static_cast<int64_t>(d)});
      }
  return comparison.finish();
}

void to_json(nlohmann::json &json, const ErrorFigures &figures) {
  json = {{"max_abs", figures.maxAbs},
          {"rms", figures.rms},
          {"max_ref", figures.maxRef},
          {"naive_max_abs", figures.naiveMaxAbs},
          {"relative_to_naive", figures.relativeToNaive},
          {"nonfinite_mismatches", figures.nonFiniteMismatches},
          {"within_field_rule", figures.withinFieldRule},
          {"ok", figures.ok}};
}

} // namespace tilewright
