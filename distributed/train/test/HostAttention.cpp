// Attention's kernels by their definitions, in double, on memory of the type that the symbol names. Causal,
// bottom-right aligned.
#include "HostKernels.h"
#include "tilewright/KernelArgs.h"
#include "tilewright/tensor/Half.h"
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

using namespace tilewright;

namespace {

struct View {
  const TensorRef &ref;
  bool bf16;
  int64_t at(int64_t b, int64_t h, int64_t row, int64_t d) const {
    return b * ref.batchStride + h * ref.headStride + row * ref.rowStride + d;
  }
  double get(int64_t b, int64_t h, int64_t row, int64_t d) const {
    const int64_t i = at(b, h, row, d);
    return bf16 ? static_cast<double>(floatFromBFloat16(static_cast<const uint16_t *>(ref.data)[i]))
                : static_cast<double>(static_cast<const float *>(ref.data)[i]);
  }
  void set(int64_t b, int64_t h, int64_t row, int64_t d, double value) const {
    const int64_t i = at(b, h, row, d);
    if (bf16)
      static_cast<uint16_t *>(ref.data)[i] = bfloat16FromFloat(static_cast<float>(value));
    else
      static_cast<float *>(ref.data)[i] = static_cast<float>(value);
  }
};

struct Head {
  const KernelArgs &args;
  bool bf16;
  int64_t dim, b, h;

  View view(const TensorRef &ref) const { return {ref, bf16}; }
  int64_t row(int64_t q) const { return (b * args.headsQ + h) * args.seqQ + q; }
  int64_t visible(int64_t q) const { return q + args.seqKV - args.seqQ + 1; }
  double dot(const TensorRef &x, int64_t i, const TensorRef &y, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d)
      sum += view(x).get(b, h, i, d) * view(y).get(b, h, j, d);
    return sum;
  }
  double score(int64_t q, int64_t k) const { return static_cast<double>(args.scale) * dot(args.q, q, args.k, k); }
  double probability(int64_t q, int64_t k) const {
    const double rest = args.lseRest ? static_cast<double>(args.lseRest[row(q)]) : 0;
    return std::exp(score(q, k) - static_cast<double>(args.lse[row(q)]) - rest);
  }
  /// Gradient of the score before scaling.
  double slope(int64_t q, int64_t k) const {
    return static_cast<double>(args.scale) * probability(q, k) *
           (dot(args.dO, q, args.v, k) - static_cast<double>(args.delta[row(q)]));
  }

  void forward() const {
    for (int64_t q = 0; q < args.seqQ; ++q) {
      double sum = 0;
      std::vector<double> o(static_cast<size_t>(dim));
      for (int64_t k = 0; k < visible(q); ++k) {
        const double p = std::exp(score(q, k));
        sum += p;
        for (int64_t d = 0; d < dim; ++d)
          o[static_cast<size_t>(d)] += p * view(args.v).get(b, h, k, d);
      }
      for (int64_t d = 0; d < dim; ++d)
        view(args.o).set(b, h, q, d, o[static_cast<size_t>(d)] / sum);
      args.lse[row(q)] = static_cast<float>(std::log(sum));
      if (args.lseRest)
        args.lseRest[row(q)] = static_cast<float>(std::log(sum) - static_cast<double>(args.lse[row(q)]));
    }
  }
  void delta() const {
    for (int64_t q = 0; q < args.seqQ; ++q)
      args.delta[row(q)] = static_cast<float>(dot(args.dO, q, args.o, q));
  }
  void dQ() const {
    for (int64_t q = 0; q < args.seqQ; ++q) {
      std::vector<double> sum(static_cast<size_t>(dim));
      for (int64_t k = 0; k < visible(q); ++k)
        for (int64_t d = 0; d < dim; ++d)
          sum[static_cast<size_t>(d)] += slope(q, k) * view(args.k).get(b, h, k, d);
      for (int64_t d = 0; d < dim; ++d)
        view(args.dQ).set(b, h, q, d, sum[static_cast<size_t>(d)]);
    }
  }
  void dKV() const {
    for (int64_t k = 0; k < args.seqKV; ++k) {
      std::vector<double> dK(static_cast<size_t>(dim)), dV(dK);
      for (int64_t q = 0; q < args.seqQ; ++q) {
        if (k >= visible(q)) continue;
        const double p = probability(q, k), s = slope(q, k);
        for (int64_t d = 0; d < dim; ++d) {
          dV[static_cast<size_t>(d)] += p * view(args.dO).get(b, h, q, d);
          dK[static_cast<size_t>(d)] += s * view(args.q).get(b, h, q, d);
        }
      }
      for (int64_t d = 0; d < dim; ++d) {
        view(args.dK).set(b, h, k, d, dK[static_cast<size_t>(d)]);
        view(args.dV).set(b, h, k, d, dV[static_cast<size_t>(d)]);
      }
    }
  }
};

} // namespace

bool runAttentionOnHost(const char *symbol, void **parameters) {
  const std::string_view name = symbol;
  void (Head::*run)() const = nullptr;
  for (auto [role, function] : {std::pair{"tw_forward_", &Head::forward},
                                {"tw_delta_", &Head::delta},
                                {"tw_dq_", &Head::dQ},
                                {"tw_dkv_", &Head::dKV}})
    if (name.starts_with(role)) run = function;
  if (!run) return false;
  const KernelArgs &args = *static_cast<const KernelArgs *>(parameters[0]);
  // "tw_dkv_bf16_d16_...": the size of heads is the first digit behind a d.
  size_t at = name.find("_d");
  while (at != name.npos && (name[at + 2] < '0' || name[at + 2] > '9'))
    at = name.find("_d", at + 1);
  if (at == name.npos) return false;
  const int64_t dim = std::atoi(symbol + at + 2);
  for (int64_t b = 0; b < args.batch; ++b)
    for (int64_t h = 0; h < args.headsQ; ++h)
      (Head{args, name.find("_bf16") != name.npos, dim, b, h}.*run)();
  return true;
}
