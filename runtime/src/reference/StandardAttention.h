// The loops of standard attention, written once for the double-precision reference and for the naive computation in
// the problem's dtype. They differ in their Arithmetic:
//   using Real                                 the type of every sum and product
//   static constexpr ElementType kResultType   of the result tensors
//   static constexpr bool kEstimatesNoise      whether RoundingNoise is wanted
//   void roundMatrix(Real *, n) const          rounds S, T and dP as the computation stores them
//   void roundOperand(Real *, n) const         rounds P and dS
//   void roundResult(Real *, n) const          rounds O, dQ, dK and dV
//
// Work is cut into (batch, kv head) units, forward also into groups of rows; a unit owns its part of every result, so
// sums have one order whatever the number of threads.
#pragma once

#include "../tensor/ParallelFor.h"
#include "RoundingModel.h"
#include "VectorLoops.h"
#include "Visibility.h"
#include "tilewright/expr/Parser.h"
#include "tilewright/reference/Attention.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <type_traits>

namespace tilewright {

/// Whether the inputs are there and have the problem's shapes; the error names the tensor.
Status checkAttentionInputs(const Problem &problem, const AttentionInputs &inputs, const AttentionOptions &options);

template <class Arithmetic> class StandardAttention {
  using Real = typename Arithmetic::Real;
  using Matrix = std::vector<Real>;

public:
  static Expected<AttentionResult> compute(const Problem &problem, const AttentionInputs &inputs,
                                           const AttentionOptions &options, const Arithmetic &arithmetic) {
    if (Status status = checkAttentionInputs(problem, inputs, options); !status) return propagate(status);
    StandardAttention attention(problem, inputs, options, arithmetic);
    if (Status status = attention.prepare(); !status) return propagate(status);
    if (Status status = attention.computeAll(); !status) return propagate(status);
    return std::move(attention.result);
  }

private:
  StandardAttention(const Problem &problem, const AttentionInputs &inputs, const AttentionOptions &options,
                    const Arithmetic &arithmetic)
      : problem(problem), inputs(inputs), options(options), arithmetic(arithmetic), loops(VectorLoops<Real>::get()),
        scale(static_cast<Real>(problem.effectiveScale())), backward(problem.direction == Direction::Backward),
        allRows(options.rows.empty()), paddedKeys((problem.seqKV + kLanes - 1) / kLanes * kLanes) {}

  /// Rows that go through the loops together, so that a block of keys is read once for all of them.
  static constexpr int64_t kRows = 16;

  /// One kv head's keys and values: rows, and blocks of kLanes rows transposed for the dot products.
  struct KeysAndValues {
    Matrix k, v, kPacked, vPacked, dK, dV;
  };

  /// A group of up to kRows query rows of one head. Matrices are (row, paddedKeys) or (row, dim).
  struct RowGroup {
    int64_t b = 0, h = 0, first = 0, count = 0; ///< `first` counts in the rows asked for.
    Matrix q, dO, o, dQ, p, slope, dP, dS;
    std::vector<uint8_t> visible;
    std::vector<KeyRange> range;
    KeyRange hull;
  };

  Status prepare() {
    if (allRows)
      for (int64_t row = 0; row < problem.seqQ; ++row)
        rows.push_back(row);
    else
      rows = options.rows;
    result.rows = options.rows;
    auto made = Visibility::make(problem, inputs.tables, rows, options.threads);
    if (!made) return propagate(made);
    visibility = std::move(*made);
    if (const std::string text = problem.fullScore(); !text.empty()) {
      auto parsed = expr::parseScore(text, problem.tables);
      if (!parsed) return propagate(parsed);
      score = *parsed;
    }
    struct Part {
      Tensor &tensor;
      TensorShape shape;
      bool wanted;
      const char *name;
    };
    const auto count = static_cast<int64_t>(rows.size());
    const Part parts[] = {{result.o, {problem.batch, problem.headsQ, count, problem.dimV}, true, "reference O"},
                          {result.lse, {problem.batch, problem.headsQ, count, 1}, true, "reference LSE"},
                          {result.dQ, {problem.batch, problem.headsQ, count, problem.dimQK}, backward, "reference dQ"},
                          {result.dK, shapeOfK(problem), backward && allRows, "reference dK"},
                          {result.dV, shapeOfV(problem), backward && allRows, "reference dV"}};
    for (const Part &part : parts) {
      if (!part.wanted) continue;
      auto tensor = Tensor::zeros(Arithmetic::kResultType, part.shape, Layout::BHSD, part.name);
      if (!tensor) return propagate(tensor);
      part.tensor = std::move(*tensor);
    }
    return {};
  }

  Status computeAll() {
    const int64_t units = problem.batch * problem.headsKV, count = static_cast<int64_t>(rows.size());
    // Backward keeps a kv head's gradients in one thread. Forward is cut further where units are few; each part reads
    // the keys anew, so it has rows enough to be worth that.
    int64_t parts = 1;
    if (!(backward && allRows) && units > 0)
      parts = std::clamp<int64_t>(2 * threadCount(options.threads) / units, 1, std::max<int64_t>(1, count / 64));
    return parallelFor(units * parts, options.threads, [&](int64_t i) {
      const int64_t unit = i / parts, part = i % parts;
      computeUnit(unit / problem.headsKV, unit % problem.headsKV, count * part / parts, count * (part + 1) / parts);
    });
  }

  void computeUnit(int64_t b, int64_t headKV, int64_t firstRow, int64_t lastRow) {
    KeysAndValues kv = load(b, headKV);
    std::optional<RoundingModel> noise;
    if constexpr (Arithmetic::kEstimatesNoise) noise.emplace(kv.k, kv.v, problem);
    for (int64_t h = headKV * problem.groupSize(); h < (headKV + 1) * problem.groupSize(); ++h)
      for (int64_t first = firstRow; first < lastRow; first += kRows) {
        RowGroup group = loadRows(b, h, first, std::min(kRows, lastRow - first));
        forwardGroup(group, kv);
        if (backward) backwardGroup(group, kv);
        if constexpr (Arithmetic::kEstimatesNoise) addNoise(group, *noise);
      }
    if (backward && allRows) storeColumns(b, headKV, kv);
    if constexpr (Arithmetic::kEstimatesNoise) {
      const RoundingNoise unit = noise->finish();
      std::lock_guard lock(noiseMutex);
      takeLarger(result.noise, unit);
    }
  }

  static Matrix rowsOf(const TensorView &view, int64_t b, int64_t h) {
    const int64_t dim = view.shape().dim;
    Matrix matrix(static_cast<size_t>(view.shape().rows * dim));
    for (int64_t row = 0; row < view.shape().rows; ++row)
      view.copyRow(b, h, row, matrix.data() + row * dim);
    return matrix;
  }

  /// (key, dim) -> (block, dim, lane), padded with zeros.
  Matrix pack(const Matrix &matrix, int64_t dim) const {
    Matrix packed(static_cast<size_t>(paddedKeys * dim));
    for (int64_t key = 0; key < problem.seqKV; ++key)
      for (int64_t d = 0; d < dim; ++d)
        packed[static_cast<size_t>((key / kLanes * dim + d) * kLanes + key % kLanes)] =
            matrix[static_cast<size_t>(key * dim + d)];
    return packed;
  }

  KeysAndValues load(int64_t b, int64_t headKV) const {
    KeysAndValues kv;
    kv.k = rowsOf(inputs.k, b, headKV);
    kv.v = rowsOf(inputs.v, b, headKV);
    kv.kPacked = pack(kv.k, problem.dimQK);
    if (backward) kv.vPacked = pack(kv.v, problem.dimV);
    if (backward && allRows) {
      kv.dK.resize(kv.k.size());
      kv.dV.resize(kv.v.size());
    }
    return kv;
  }

  RowGroup loadRows(int64_t b, int64_t h, int64_t first, int64_t count) const {
    RowGroup group;
    group.b = b;
    group.h = h;
    group.first = first;
    group.count = count;
    const auto pairs = static_cast<size_t>(count * paddedKeys);
    group.q.resize(static_cast<size_t>(count * problem.dimQK));
    group.o.resize(static_cast<size_t>(count * problem.dimV));
    group.p.resize(pairs);
    if (score) group.slope.resize(pairs);
    group.visible.resize(pairs);
    group.range.resize(static_cast<size_t>(count));
    if (backward) {
      group.dO.resize(group.o.size());
      group.dQ.resize(group.q.size());
      group.dP.resize(pairs);
      group.dS.resize(pairs);
    }
    group.hull = {problem.seqKV, 0};
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = rows[static_cast<size_t>(first + r)];
      inputs.q.copyRow(b, h, row, group.q.data() + r * problem.dimQK);
      if (backward) inputs.dO.copyRow(b, h, row, group.dO.data() + r * problem.dimV);
      const KeyRange range = visibility.row(b, h, first + r, group.visible.data() + r * paddedKeys);
      group.range[static_cast<size_t>(r)] = range;
      group.hull.begin = std::min(group.hull.begin, range.begin);
      group.hull.end = std::max(group.hull.end, range.end);
    }
    return group;
  }

  /// to(r, key) = x_r . row `key`, for every block of keys that some row sees.
  void dotProducts(const RowGroup &group, const Matrix &x, const Matrix &packed, int64_t dim, Matrix &to) const {
    for (int64_t block = group.hull.begin / kLanes; block * kLanes < group.hull.end; ++block)
      for (int64_t r = 0; r < group.count; ++r)
        loops.dots(x.data() + r * dim, packed.data() + block * dim * kLanes, dim,
                   to.data() + r * paddedKeys + block * kLanes);
  }

  /// Calls body(r, key, index of the pair) for every visible pair, block of keys by block of keys.
  template <class Body> void forVisiblePairs(const RowGroup &group, const Body &body) const {
    for (int64_t block = group.hull.begin / kLanes; block * kLanes < group.hull.end; ++block)
      for (int64_t r = 0; r < group.count; ++r) {
        const KeyRange range = group.range[static_cast<size_t>(r)];
        const int64_t end = std::min((block + 1) * kLanes, range.end);
        for (int64_t key = std::max(block * kLanes, range.begin); key < end; ++key)
          if (group.visible[static_cast<size_t>(r * paddedKeys + key)]) body(r, key, r * paddedKeys + key);
      }
  }

  void forwardGroup(RowGroup &group, const KeysAndValues &kv) {
    dotProducts(group, group.q, kv.kPacked, problem.dimQK, group.p);
    for (int64_t r = 0; r < group.count; ++r) {
      scoreRow(group, r);
      const Real lse = softmaxRow(group, r);
      result.lse.setRow(group.b, group.h, group.first + r, &lse);
    }
    const int64_t dim = problem.dimV;
    forVisiblePairs(group, [&](int64_t r, int64_t key, int64_t pair) {
      loops.addScaled(group.p[static_cast<size_t>(pair)], kv.v.data() + key * dim, dim, group.o.data() + r * dim);
    });
    arithmetic.roundResult(group.o.data(), static_cast<int64_t>(group.o.size()));
    for (int64_t r = 0; r < group.count; ++r)
      result.o.setRow(group.b, group.h, group.first + r, group.o.data() + r * dim);
  }

  /// Dot products -> T, in place, and the slope dT/dS.
  void scoreRow(RowGroup &group, int64_t r) const {
    const KeyRange range = group.range[static_cast<size_t>(r)];
    Real *scores = group.p.data() + r * paddedKeys;
    for (int64_t key = range.begin; key < range.end; ++key)
      scores[key] *= scale;
    arithmetic.roundMatrix(scores + range.begin, range.end - range.begin);
    if (!score) return;
    expr::Point point;
    point.q = rows[static_cast<size_t>(group.first + r)];
    point.sq = problem.seqQ;
    point.sk = problem.seqKV;
    point.h = group.h;
    point.b = group.b;
    for (int64_t key = range.begin; key < range.end; ++key) {
      const auto pair = static_cast<size_t>(r * paddedKeys + key);
      if (!group.visible[pair]) continue;
      point.k = key;
      point.s = scores[key];
      // What a long expression loses to rounding is the dtype's own error too.
      constexpr bool isSingle = std::is_same_v<Real, float>;
      const auto evaluate = isSingle ? expr::evaluateInSinglePrecision : expr::evaluateWithDerivative;
      const expr::Dual value = evaluate(*score, point, inputs.tables);
      scores[key] = static_cast<Real>(value.value);
      group.slope[pair] = static_cast<Real>(value.derivative);
    }
    arithmetic.roundMatrix(scores + range.begin, range.end - range.begin);
  }

  /// T -> P, in place; returns LSE. Scores of -infinity leave the visible set.
  Real softmaxRow(RowGroup &group, int64_t r) const {
    const KeyRange range = group.range[static_cast<size_t>(r)];
    Real *p = group.p.data() + r * paddedKeys;
    uint8_t *visible = group.visible.data() + r * paddedKeys;
    constexpr Real infinity = std::numeric_limits<Real>::infinity();
    Real maximum = -infinity, sum = 0;
    bool any = false;
    for (int64_t key = range.begin; key < range.end; ++key) {
      if (!visible[key]) continue;
      if (p[key] == -infinity) visible[key] = 0;
      any |= visible[key] != 0;
      if (p[key] > maximum) maximum = p[key];
    }
    if (!any) return -infinity;
    for (int64_t key = range.begin; key < range.end; ++key)
      if (visible[key]) sum += p[key] = std::exp(p[key] - maximum);
    for (int64_t key = range.begin; key < range.end; ++key)
      if (visible[key]) p[key] /= sum;
    arithmetic.roundOperand(p + range.begin, range.end - range.begin);
    return maximum + std::log(sum);
  }

  void backwardGroup(RowGroup &group, KeysAndValues &kv) {
    const int64_t dimQK = problem.dimQK, dimV = problem.dimV;
    dotProducts(group, group.dO, kv.vPacked, dimV, group.dP);
    for (int64_t r = 0; r < group.count; ++r)
      gradientOfScores(group, r);
    forVisiblePairs(group, [&](int64_t r, int64_t key, int64_t pair) {
      const Real dS = group.dS[static_cast<size_t>(pair)];
      loops.addScaled(dS, kv.k.data() + key * dimQK, dimQK, group.dQ.data() + r * dimQK);
      if (!allRows) return;
      loops.addScaled(dS, group.q.data() + r * dimQK, dimQK, kv.dK.data() + key * dimQK);
      loops.addScaled(group.p[static_cast<size_t>(pair)], group.dO.data() + r * dimV, dimV, kv.dV.data() + key * dimV);
    });
    scaleAndRound(group.dQ, scale);
    for (int64_t r = 0; r < group.count; ++r)
      result.dQ.setRow(group.b, group.h, group.first + r, group.dQ.data() + r * dimQK);
  }

  /// dS = P (dP - rowsum(P dP)) dT/dS
  void gradientOfScores(RowGroup &group, int64_t r) const {
    const KeyRange range = group.range[static_cast<size_t>(r)];
    const int64_t row = r * paddedKeys;
    const Real *p = group.p.data() + row, *slope = score ? group.slope.data() + row : nullptr;
    const uint8_t *visible = group.visible.data() + row;
    Real *dP = group.dP.data() + row, *dS = group.dS.data() + row;
    arithmetic.roundMatrix(dP + range.begin, range.end - range.begin);
    const Real delta = rowDelta(group, r);
    for (int64_t key = range.begin; key < range.end; ++key)
      if (visible[key]) dS[key] = p[key] * (dP[key] - delta) * (slope ? slope[key] : Real(1));
    arithmetic.roundOperand(dS + range.begin, range.end - range.begin);
  }

  /// rowsum(P dP)
  Real rowDelta(const RowGroup &group, int64_t r) const {
    const KeyRange range = group.range[static_cast<size_t>(r)];
    Real delta = 0;
    for (int64_t pair = r * paddedKeys + range.begin; pair < r * paddedKeys + range.end; ++pair)
      if (group.visible[static_cast<size_t>(pair)])
        delta += group.p[static_cast<size_t>(pair)] * group.dP[static_cast<size_t>(pair)];
    return delta;
  }

  void scaleAndRound(Matrix &matrix, Real factor) const {
    for (Real &value : matrix)
      value *= factor;
    arithmetic.roundResult(matrix.data(), static_cast<int64_t>(matrix.size()));
  }

  void storeColumns(int64_t b, int64_t headKV, KeysAndValues &kv) {
    scaleAndRound(kv.dK, scale);
    scaleAndRound(kv.dV, 1);
    for (int64_t key = 0; key < problem.seqKV; ++key) {
      result.dK.setRow(b, headKV, key, kv.dK.data() + key * problem.dimQK);
      result.dV.setRow(b, headKV, key, kv.dV.data() + key * problem.dimV);
    }
  }

  void addNoise(const RowGroup &group, RoundingModel &model) const {
    for (int64_t r = 0; r < group.count; ++r) {
      RowForNoise row;
      row.begin = group.range[static_cast<size_t>(r)].begin;
      row.end = group.range[static_cast<size_t>(r)].end;
      row.visible = group.visible.data() + r * paddedKeys;
      row.p = group.p.data() + r * paddedKeys;
      row.slope = score ? group.slope.data() + r * paddedKeys : nullptr;
      row.q = group.q.data() + r * problem.dimQK;
      row.o = group.o.data() + r * problem.dimV;
      row.lse = result.lse.at(group.b, group.h, group.first + r, 0);
      if (backward) {
        row.dO = group.dO.data() + r * problem.dimV;
        row.dP = group.dP.data() + r * paddedKeys;
        row.delta = rowDelta(group, r);
      }
      model.addRow(row);
    }
  }

  const Problem &problem;
  const AttentionInputs &inputs;
  const AttentionOptions &options;
  const Arithmetic &arithmetic;
  const VectorLoops<Real> &loops;
  const Real scale;
  const bool backward, allRows;
  const int64_t paddedKeys;
  std::vector<int64_t> rows;
  Visibility visibility;
  expr::ExprPtr score;
  AttentionResult result;
  std::mutex noiseMutex;
};

} // namespace tilewright
