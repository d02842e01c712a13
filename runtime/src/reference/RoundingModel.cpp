#include "RoundingModel.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>
#include <cmath>

namespace tilewright {
namespace {

constexpr double kUnit = 0x1p-24, kLargestLse = 65536;
/// Weights from here on (at most 8 a row) may dominate O, so the distance of their value from it is measured.
constexpr double kHeavy = 0.125;

double square(double x) { return x * x; }

double squaredNorm(const double *x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += x[i] * x[i];
  return sum;
}

double largest(const double *x, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, std::fabs(x[i]));
  return most;
}

} // namespace

void takeLarger(double &most, double value) {
  if (std::isfinite(value)) most = std::max(most, value);
}

void takeLarger(RoundingNoise &most, const RoundingNoise &value) {
  takeLarger(most.o, value.o);
  takeLarger(most.lse, value.lse);
  takeLarger(most.dQ, value.dQ);
  takeLarger(most.dK, value.dK);
  takeLarger(most.dV, value.dV);
}

RoundingModel::RoundingModel(const std::vector<double> &k, const std::vector<double> &v, const Problem &problem)
    : dtype(problem.dtype), values(v), dimQK(problem.dimQK), dimV(problem.dimV),
      scale(std::fabs(problem.effectiveScale())) {
  if (dtype != DType::F32) storage2 = square(0.25 * ulp(elementType(dtype), 1));
  for (int64_t j = 0; j < problem.seqKV; ++j) {
    const double *key = k.data() + j * dimQK, *value = v.data() + j * dimV;
    keys.push_back({squaredNorm(key, dimQK), largest(key, dimQK), squaredNorm(value, dimV), largest(value, dimV)});
  }
}

RoundingModel::RowNorms RoundingModel::normsOf(const RowForNoise &row) const {
  RowNorms norms;
  norms.lseError2 = square(kUnit * std::min(std::fabs(row.lse), kLargestLse));
  if (!row.dP) return norms;
  norms.qLargest2 = square(largest(row.q, dimQK));
  norms.dO2 = squaredNorm(row.dO, dimV);
  norms.dOLargest2 = square(largest(row.dO, dimV));
  norms.o2 = squaredNorm(row.o, dimV);
  for (int64_t d = 0; d < dimV; ++d)
    norms.delta2 += square(row.dO[d] * (stored(row.o[d]) - row.o[d]));
  return norms;
}

void RoundingModel::addRow(const RowForNoise &row) {
  const auto slope2 = [&](int64_t j) { return row.slope ? square(row.slope[j]) : 1.0; };
  double spread = 0, sumP2 = 0;
  for (int64_t j = row.begin; j < row.end; ++j) {
    if (!row.visible[j]) continue;
    sumP2 += square(row.p[j]);
    spread += square(row.p[j]) * slope2(j) * keys[j].k2;
  }
  const RowNorms norms = normsOf(row);
  const double scores2 = square(kUnit * scale) * squaredNorm(row.q, dimQK);
  const double weight2 = 16 * square(kUnit) + norms.lseError2, oLargest = largest(row.o, dimV);
  takeLarger(noise.lse, std::sqrt(scores2 * spread));
  double sumO = 0, sumQ = 0;
  for (int64_t j = row.begin; j < row.end; ++j) {
    if (!row.visible[j]) continue;
    const double p = row.p[j], f2 = slope2(j);
    const double score2 = std::max(0.0, scores2 * ((1 - 2 * p) * f2 * keys[j].k2 + spread));
    const double exponential2 = std::max(0.0, weight2 * (1 - 2 * p + sumP2));
    const double e2 = square(p) * (score2 + exponential2 + storage2 * square(1 - p));
    sumO += e2 * square(p < kHeavy ? keys[j].vLargest + oLargest : distance(j, row.o));
    if (row.dP) sumQ += addGradient(keys[j], norms, p, f2, e2, row.dP[j] - row.delta);
  }
  takeLarger(noise.o, std::sqrt(sumO));
  takeLarger(noise.dQ, scale * std::sqrt(sumQ));
}

double RoundingModel::addGradient(KeyNorms &key, const RowNorms &row, double p, double f2, double e2,
                                  double centred) const {
  const double weight2 = e2 + square(p) * row.lseError2;
  const double dP2 = square(kUnit) * row.dO2 * (key.v2 + row.o2) + 4 * row.delta2;
  const double w2 = f2 * (square(p) * dP2 + weight2 * square(centred));
  key.sumK += w2 * row.qLargest2;
  key.sumV += weight2 * row.dOLargest2;
  return w2 * square(key.kLargest);
}

RoundingNoise RoundingModel::finish() {
  for (const KeyNorms &key : keys) {
    takeLarger(noise.dK, scale * std::sqrt(key.sumK));
    takeLarger(noise.dV, std::sqrt(key.sumV));
  }
  return noise;
}

double RoundingModel::distance(int64_t key, const double *o) const {
  const double *value = values.data() + key * dimV;
  double most = 0;
  for (int64_t d = 0; d < dimV; ++d)
    most = std::max(most, std::fabs(value[d] - o[d]));
  return most;
}

double RoundingModel::stored(double x) const {
  const auto single = static_cast<float>(x);
  if (dtype == DType::F16) return floatFromHalf(halfFromFloat(single));
  return dtype == DType::BF16 ? floatFromBFloat16(bfloat16FromFloat(single)) : single;
}

} // namespace tilewright
