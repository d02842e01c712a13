// A model small enough to be trained in double on one thread: the loss of token t is the sum over all parameter
// elements of a(t, e) p^2 / 2 - b(t, e) p, so that its gradient, a p - b, shows a stale parameter, a lost token or a
// wrong order.
#pragma once

#include "tilewright/distributed/engine/Engine.h"
#include "tilewright/distributed/plan/Strategy.h"
#include "tilewright/tensor/Half.h"
#include <cmath>
#include <cstring>
#include <vector>

namespace model {

using namespace tilewright;
using namespace tilewright::dist;

inline double noise(uint32_t a, uint32_t b, uint32_t c) { // in [-1, 1)
  uint32_t x = a * 2654435761u ^ (b + 77) * 2246822519u ^ (c + 5) * 3266489917u;
  x = (x ^ x >> 15) * 2246822519u;
  x ^= x >> 13;
  return static_cast<double>(x % 65536) / 32768 - 1;
}

/// Many tiny parameters, odd sizes, none, and one that is larger than all others together.
inline ParameterList parameterList() {
  ParameterList list = {{"embedding", {40, 7}, 0.1}, {"weight", {13, 17}, 0.1}, {"unused", {5}, 0.1}};
  for (int i = 0; i < 12; ++i)
    list.push_back({"tiny" + std::to_string(i), {1 + i % 3}, 0});
  list.push_back({"empty", {0, 4}, 0.1});
  list.push_back({"huge", {51, 101}, 0.05});
  list.push_back({"scalar", {}, 0});
  return list;
}
constexpr int kUnused = 2, kFirstRankOnly = 1;

struct Setup {
  int ranks = 1;
  int steps = 10;
  int accumulation = 1;
  bool uneven = false; ///< Ranks have different numbers of tokens, the last one none.
  double maxNorm = 0;
  int sums = 0; ///< Numbers of the host that are summed too: its rank plus one, each.
};

constexpr int kTokens = 21;

inline int rankOf(const Setup &setup, int token) {
  if (!setup.uneven || setup.ranks == 1) return token % setup.ranks;
  return token < 9 ? 0 : token % (setup.ranks - 1);
}
/// Whether this token has a gradient of this parameter.
inline bool uses(int parameter, int token) {
  return parameter != kUnused && (parameter != kFirstRankOnly || token == 0);
}
inline double slope(int parameter, int token, int step, int64_t e) {
  return 1 + 0.5 * noise(static_cast<uint32_t>(parameter * 64 + token), static_cast<uint32_t>(step),
                         static_cast<uint32_t>(e));
}
inline double offset(int parameter, int token, int step, int64_t e) {
  return 2 + noise(static_cast<uint32_t>(parameter * 64 + token), static_cast<uint32_t>(step + 500),
                   static_cast<uint32_t>(e));
}
inline double initial(int parameter, int64_t e) {
  return noise(static_cast<uint32_t>(parameter), 9999, static_cast<uint32_t>(e));
}

inline StepSettings settings(const Setup &setup, int step) {
  StepSettings s;
  s.learningRate = 0.01 / (1 + 0.1 * step);
  s.maxNorm = setup.maxNorm;
  return s;
}

inline float loadAny(const Operand &o, int64_t e) {
  return o.type == ElementType::F32 ? static_cast<const float *>(o.data)[e]
                                    : floatFromBFloat16(static_cast<const uint16_t *>(o.data)[e]);
}
inline void storeAny(void *data, ElementType type, int64_t e, float value) {
  if (type == ElementType::F32)
    static_cast<float *>(data)[e] = value;
  else
    static_cast<uint16_t *>(data)[e] = bfloat16FromFloat(value);
}

inline void initialise(Engine &engine, double shift = 0) {
  for (int i = 0; i < engine.parameters(); ++i) {
    Operand p = engine.parameter(i);
    for (int64_t e = 0; e < p.elements; ++e)
      storeAny(p.data, p.type, e, static_cast<float>(initial(i, e) + shift));
  }
}

/// One step as a host would do it: forward in order, backward in reverse order, gradients ready as they come.
inline Expected<StepReport> trainStep(Engine &engine, const Setup &setup, int rank, int step) {
  std::vector<std::vector<int>> micro(static_cast<size_t>(setup.accumulation));
  int count = 0;
  for (int token = 0; token < kTokens; ++token)
    if (rankOf(setup, token) == rank) micro[static_cast<size_t>(count++ % setup.accumulation)].push_back(token);
  for (const std::vector<int> &tokens : micro) {
    if (tokens.empty() && setup.uneven) break; // nothing left on this rank
    for (int i = 0; i < engine.parameters(); ++i)
      if (Status s = engine.waitParameter(i); !s) return propagate(s);
    for (int i = engine.parameters() - 1; i >= 0; --i) {
      bool any = false;
      for (int token : tokens)
        any |= uses(i, token);
      if (!any) continue;
      const Operand p = engine.parameter(i);
      const GradientView g = engine.gradient(i);
      for (int64_t e = 0; e < p.elements; ++e) {
        double sum = g.add ? static_cast<double>(loadAny({g.data, g.elements, g.type}, e)) : 0;
        for (int token : tokens)
          if (uses(i, token))
            sum += slope(i, token, step, e) * static_cast<double>(loadAny(p, e)) - offset(i, token, step, e);
        storeAny(g.data, g.type, e, static_cast<float>(sum));
      }
      if (Status s = engine.gradReady(i); !s) return propagate(s);
    }
    if (Status s = engine.endMicroBatch(); !s) return propagate(s);
  }
  const std::vector<double> sums(static_cast<size_t>(setup.sums), rank + 1);
  return engine.finishStep(count, settings(setup, step), sums);
}

/// The same training in double, by the equations of StepSettings, on one thread.
struct Reference {
  std::vector<std::vector<double>> p, m, v;
  std::vector<double> norms;

  explicit Reference(const Setup &setup) {
    const ParameterList list = parameterList();
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t n = PlanParameter{list[i].name, list[i].shape, 0, 0}.elements();
      p.emplace_back();
      for (int64_t e = 0; e < n; ++e)
        p[i].push_back(static_cast<double>(static_cast<float>(initial(static_cast<int>(i), e))));
      m.emplace_back(p[i].size());
      v.emplace_back(p[i].size());
    }
    for (int step = 0; step < setup.steps; ++step) {
      const StepSettings s = settings(setup, step);
      std::vector<std::vector<double>> g(p.size());
      double squares = 0;
      for (size_t i = 0; i < p.size(); ++i)
        for (size_t e = 0; e < p[i].size(); ++e) {
          double sum = 0;
          for (int token = 0; token < kTokens; ++token)
            if (uses(static_cast<int>(i), token))
              sum += slope(static_cast<int>(i), token, step, static_cast<int64_t>(e)) * p[i][e] -
                     offset(static_cast<int>(i), token, step, static_cast<int64_t>(e));
          g[i].push_back(sum / kTokens);
          squares += g[i].back() * g[i].back();
        }
      norms.push_back(std::sqrt(squares));
      const double clip = s.maxNorm > 0 && norms.back() > s.maxNorm ? s.maxNorm / norms.back() : 1;
      for (size_t i = 0; i < p.size(); ++i)
        for (size_t e = 0; e < p[i].size(); ++e) {
          const double gradient = g[i][e] * clip;
          m[i][e] = s.beta1 * m[i][e] + (1 - s.beta1) * gradient;
          v[i][e] = s.beta2 * v[i][e] + (1 - s.beta2) * gradient * gradient;
          const double mHat = m[i][e] / (1 - std::pow(s.beta1, step + 1)),
                       vHat = v[i][e] / (1 - std::pow(s.beta2, step + 1));
          p[i][e] -= s.learningRate * (list[i].weightDecay * p[i][e] + mHat / (std::sqrt(vHat) + s.epsilon));
        }
    }
  }

  /// Largest difference from the engine's parameters, relative to the largest parameter.
  double error(Engine &engine) const {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < p.size(); ++i)
      for (size_t e = 0; e < p[i].size(); ++e) {
        worst = std::max(worst, std::abs(p[i][e] - static_cast<double>(loadAny(engine.parameter(static_cast<int>(i)),
                                                                               static_cast<int64_t>(e)))));
        largest = std::max(largest, std::abs(p[i][e]));
      }
    return worst / largest;
  }
};

/// FNV-1a of all parameters' bytes: equal for equal bits.
inline uint64_t digest(Engine &engine) {
  uint64_t hash = 1469598103934665603u;
  for (int i = 0; i < engine.parameters(); ++i) {
    const Operand p = engine.parameter(i);
    for (int64_t b = 0; b < p.elements * sizeInBytes(p.type); ++b)
      hash = (hash ^ static_cast<const uint8_t *>(p.data)[b]) * 1099511628211u;
  }
  return hash;
}

} // namespace model
