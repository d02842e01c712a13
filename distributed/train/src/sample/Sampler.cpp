#include "tilewright/train/Sampler.h"
#include "tilewright/tensor/Random.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace tilewright::train {

Expected<int32_t> chooseToken(std::span<const float> logits, const SampleOptions &options, uint64_t random) {
  std::vector<int32_t> candidates;
  for (size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i])) candidates.push_back(static_cast<int32_t>(i));
  if (candidates.empty())
    return fail(Stage::Input, "sample: no logit is finite", "the checkpoint's parameters hold NaN or infinities");
  auto logit = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  // Equal logits: the lower token first, so that the choice is the same everywhere.
  auto likelier = [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
  const size_t count = options.temperature > 0 && options.topK > 0
                           ? std::min(candidates.size(), static_cast<size_t>(options.topK))
                       : options.temperature > 0 ? candidates.size()
                                                 : size_t{1};
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<int64_t>(count), candidates.end(), likelier);
  if (count == 1) return candidates[0];
  std::vector<double> sums(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i)
    sums[i] = sum += std::exp((static_cast<double>(logit(candidates[i])) - static_cast<double>(logit(candidates[0]))) /
                              options.temperature);
  const double place = static_cast<double>(random >> 11) * 0x1p-53 * sum;
  const size_t chosen = static_cast<size_t>(std::upper_bound(sums.begin(), sums.end(), place) - sums.begin());
  return candidates[std::min(chosen, count - 1)];
}

Status sample(Transformer &model, ParameterHost &parameters, std::vector<int32_t> prompt, const SampleOptions &options,
              const std::function<bool(int32_t)> &next) {
  constexpr uint64_t kStream = 0x73616d706c65;
  const size_t context = static_cast<size_t>(model.config().context);
  if (prompt.empty()) return fail(Stage::Input, "sample: the prompt is empty");
  if (options.temperature < 0 || !std::isfinite(options.temperature))
    return fail(Stage::Input, "sample: the temperature must be 0 or more");
  std::vector<int32_t> &all = prompt;
  size_t start = all.size() > context ? all.size() - context : 0, done = start; ///< The window, and what it has seen.
  for (int64_t i = 0; i < options.tokens; ++i) {
    if (all.size() - start > context) {
      start = all.size() - std::max<size_t>(1, context / 2);
      done = start;
    }
    Expected<std::vector<float>> logits =
        model.next(std::span(all).subspan(done), static_cast<int64_t>(done - start), parameters);
    if (!logits) return propagate(logits);
    done = all.size();
    Expected<int32_t> token =
        chooseToken(*logits, options, randomBits(options.seed, kStream, static_cast<uint64_t>(i)));
    if (!token) return propagate(token);
    all.push_back(*token);
    if (!next(*token)) return {};
  }
  return {};
}

} // namespace tilewright::train
