// The device's arithmetic on the host: common/Exponents.cuh is compiled as it is, one row of scores at a time goes
// through what forward, its results and the backward kernels do with them, and double precision judges.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <bit>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <vector>

#define __device__
#define __host__
#define __forceinline__ inline
using std::exp2;
static float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fmul_rd(float a, float b) {
  double exact = double(a) * b;
  float near = float(exact);
  return near > exact ? std::nextafterf(near, -std::numeric_limits<float>::infinity()) : near;
}
#include "common/Exponents.cuh"

using namespace tw;

namespace {

struct Row {
  double forward = 0;  ///< Largest error of a probability in forward,
  double backward = 0; ///< and of one made anew from LSE.
  double lse = 0;      ///< Relative error.
};

/// The largest errors over a row of raw products, which come in two tiles. `far` overrules what RawScores finds.
Row errors(const std::vector<float> &products, float scale, bool mayBeFar = true) {
  RawScores scores = makeRawScores(scale);
  float sign = signOfScale(scale), max = minusInfinity(), sum = 0;
  bool far = false;
  std::vector<float> p(products.size());
  size_t half = products.size() / 2;
  for (auto [begin, end] : {std::pair<size_t, size_t>{0, half}, {half, products.size()}}) {
    float tileMax = max;
    for (size_t i = begin; i < end; ++i)
      tileMax = std::fmax(tileMax, products[i] * sign);
    if (scores.growth(tileMax, max) > 0) {
      far = mayBeFar && scores.isFar(tileMax);
      float factor = exp2(far ? scores.growth(max, tileMax) : scores.exponent(max, scores.reference(tileMax)));
      for (size_t i = 0; i < begin; ++i)
        p[i] *= factor;
      sum *= factor;
      max = tileMax;
    }
    for (size_t i = begin; i < end; ++i) {
      float s = products[i] * sign, reference = scores.reference(far ? 0 : max);
      p[i] = exp2(scores.exponent(far ? s - max : s, reference));
      sum += p[i];
    }
  }
  float lse = scores.lse(max, logf(sum)), rest = (scores.shift(max, lse, far) + log2f(sum)) * kLn2;

  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (float s : products)
    top = std::max(top, double(s) * scale);
  for (float s : products)
    total += std::exp(double(s) * scale - top);
  Row row;
  RawGradients settled = makeRawGradients(scale);
  settled.settle();
  for (size_t i = 0; i < products.size(); ++i) {
    double expected = std::exp(double(products[i]) * scale - top) / total;
    auto worse = [&](double &worst, double found) { // NaN is worst
      double error = std::fabs(found - expected);
      if (!(error <= worst)) worst = error;
    };
    worse(row.forward, p[i] / sum);
    float left = LogProbability(lse, rest).of(products[i], scale);
    worse(row.backward, exp2(settled.exponentOfLse(left, settled.negatedLse(lse))));
  }
  row.lse = std::fabs(lse - (top + std::log(total))) / std::max(1.0, std::fabs(top));
  return row;
}

} // namespace

TEST_CASE("rows of equal products share their weight, whatever the size") {
  for (float scale : {1.f, 0.125f, 0.0883883461f, -0.3f, 1.5f, 0.f})
    for (float product : {0.f, 1.f, 40.f, 3e3f, 3e4f, -3e4f, 1e7f, 3e9f, 1e10f, 7e12f, 1e20f, -1e20f, 2e38f, -2e38f})
      for (size_t keys : {2, 100, 441}) {
        CAPTURE(scale);
        CAPTURE(product);
        CAPTURE(keys);
        Row row = errors(std::vector<float>(keys, product), scale);
        CHECK(row.forward < 1e-6);
        CHECK(row.backward < 2e-5 / keys);
        CHECK(row.lse < 3e-7);
      }
}

TEST_CASE("neighbours of a huge product weigh what their distance says") {
  for (float scale : {1.f, 0.125f, 0.0883883461f, -1.f})
    for (float product : {5e3f, 3e4f, 1e5f, -1e5f, 1e6f, 1.6e7f, 1e10f}) {
      CAPTURE(scale);
      CAPTURE(product);
      std::vector<float> products;
      for (int i = 0; i < 40; ++i)
        products.push_back(product + i % 5 / scale);
      Row row = errors(products, scale);
      CHECK(row.forward < 2e-4);
      CHECK(row.backward < 2e-4);
    }
}

TEST_CASE("one multiply-add alone does not do for far maxima, and does for others") {
  CHECK_FALSE(errors(std::vector<float>(100, 1e10f), 1, false).forward < 0.009);
  CHECK_FALSE(errors(std::vector<float>(100, 2e38f), 1, false).forward < 0.009);
  RawScores scores = makeRawScores(1);
  for (float m = 1; m < 2800; m *= 1.37f) {
    CHECK_FALSE(scores.isFar(m));
    CHECK(std::fabs(scores.exponent(m, scores.reference(m))) < 1. / 4096);
  }
  CHECK(scores.isFar(3e3f));
  CHECK(scores.isFar(-3.4e38f)); // m * factor is infinite
  CHECK_FALSE(scores.isFar(minusInfinity()));
}

TEST_CASE("hidden scores have probability 0 whatever scale and LSE are") {
  for (float scale : {1.f, -1.f, 0.f, 1e-30f})
    for (float lse : {0.f, 50.f, -50.f, minusInfinity()})
      for (bool settle : {false, true}) {
        // A row that sees nothing is coarse: Gradient.cuh settles its tile.
        if (lse == minusInfinity() && !settle) continue;
        RawGradients scores = makeRawGradients(scale);
        if (settle) scores.settle();
        CHECK(exp2(scores.exponentOfLse(scores.hidden(), scores.negatedLse(lse))) == 0);
      }
}

TEST_CASE("a scale of 0 gives every key the same weight") {
  RawGradients scores = makeRawGradients(0);
  float lse = logf(8);
  for (float s : {0.f, 1.f, -1e30f, 3e38f})
    CHECK(exp2(scores.exponentOfLse(s, scores.negatedLse(lse))) == doctest::Approx(0.125));
}
