#include "tilewright/reference/Verify.h"
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

namespace tilewright {
namespace {

struct Quantity {
  const char *name;
  std::optional<ErrorFigures> Verification::*figures;
  TensorView AttentionOutputs::*actual;
  Tensor AttentionResult::*expected;
  double RoundingNoise::*noise;
};

constexpr Quantity kQuantities[] = {
    {"o", &Verification::o, &AttentionOutputs::o, &AttentionResult::o, &RoundingNoise::o},
    {"lse", &Verification::lse, &AttentionOutputs::lse, &AttentionResult::lse, &RoundingNoise::lse},
    {"dq", &Verification::dQ, &AttentionOutputs::dQ, &AttentionResult::dQ, &RoundingNoise::dQ},
    {"dk", &Verification::dK, &AttentionOutputs::dK, &AttentionResult::dK, &RoundingNoise::dK},
    {"dv", &Verification::dV, &AttentionOutputs::dV, &AttentionResult::dV, &RoundingNoise::dV}};

int64_t countEmptyRows(const Tensor &lse) {
  const TensorShape &s = lse.shape();
  int64_t count = 0;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t row = 0; row < s.rows; ++row)
        count += lse.at(b, h, row, 0) == -std::numeric_limits<double>::infinity();
  return count;
}

} // namespace

Expected<AttentionVerifier> AttentionVerifier::make(const Problem &problem, const AttentionInputs &inputs,
                                                    const VerifyOptions &options) {
  AttentionVerifier verifier;
  verifier.dtype = problem.dtype;
  verifier.limit = options.limit;
  AttentionOptions computed;
  computed.threads = options.threads;
  if (options.rows > 0 && options.rows < problem.seqQ)
    computed.rows = sampleRows(problem.seqQ, options.rows, options.seed);
  auto reference = referenceAttention(problem, inputs, computed);
  if (!reference) return propagate(reference);
  verifier.reference = std::move(*reference);
  auto naive = naiveAttention(problem, inputs, computed, options.naive);
  if (!naive) return propagate(naive);
  verifier.naive = std::move(*naive);
  return verifier;
}

Expected<Verification> AttentionVerifier::verify(const AttentionOutputs &outputs) const {
  Verification verification;
  verification.rows = reference.rows;
  verification.emptyRows = countEmptyRows(reference.lse);
  for (const Quantity &quantity : kQuantities) {
    const TensorView &actual = outputs.*quantity.actual;
    const Tensor &expected = reference.*quantity.expected;
    if (!actual.valid() || !expected.valid()) continue;
    CompareOptions compared;
    compared.dtype = dtype;
    if (quantity.actual != &AttentionOutputs::dK && quantity.actual != &AttentionOutputs::dV)
      compared.rows = verification.rows;
    compared.noise = reference.noise.*quantity.noise;
    compared.limit = limit;
    compared.strictInfinities = quantity.actual == &AttentionOutputs::lse;
    auto figures = compare(actual, expected.view(), (naive.*quantity.expected).view(), compared);
    if (!figures) {
      figures.error().message = fmt::format("{}: {}", quantity.name, figures.error().message);
      return propagate(figures);
    }
    verification.ok &= figures->ok;
    verification.*quantity.figures = *figures;
  }
  return verification;
}

Expected<Verification> verifyAttention(const Problem &problem, const AttentionInputs &inputs,
                                       const AttentionOutputs &outputs, const VerifyOptions &options) {
  auto verifier = AttentionVerifier::make(problem, inputs, options);
  if (!verifier) return propagate(verifier);
  return verifier->verify(outputs);
}

std::string Verification::failure() const {
  for (const Quantity &quantity : kQuantities) {
    const auto &figures = this->*quantity.figures;
    if (!figures || figures->ok) continue;
    const int64_t *at = figures->worst;
    const std::string place = fmt::format("batch {}, head {}, row {}, dim {}", at[0], at[1], at[2], at[3]);
    if (figures->nonFiniteMismatches > 0)
      return fmt::format(
          "{}: {} of {} elements are NaN or infinite where the reference is not, or the reverse, first at "
          "{}",
          quantity.name, figures->nonFiniteMismatches, figures->elements, place);
    return fmt::format("{}: error {:.3g} at {} is {:.2f} times the dtype's own {:.3g} (largest value {:.3g})",
                       quantity.name, figures->maxAbs, place, figures->relativeToNaive, figures->yardstick,
                       figures->maxRef);
  }
  return {};
}

void to_json(nlohmann::json &json, const Verification &verification) {
  json = nlohmann::json::object();
  for (const Quantity &quantity : kQuantities)
    if (const auto &figures = verification.*quantity.figures) json[quantity.name] = *figures;
  json["rows_checked"] = verification.rows.empty() ? nlohmann::json("all") : nlohmann::json(verification.rows.size());
  json["empty_rows"] = verification.emptyRows;
  json["ok"] = verification.ok;
}

} // namespace tilewright
