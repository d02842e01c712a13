#include "tilewright/ThreadPool.h"
#include "tilewright/distributed/engine/ComputeDevice.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include "tilewright/tensor/Half.h"
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <mutex>

namespace tilewright::dist {
namespace {

constexpr int64_t kChunk = 1 << 15; ///< Elements a thread takes at a time.

float load(const float *from) { return *from; }
float load(const uint16_t *from) { return floatFromBFloat16(*from); }
void store(float *to, float value) { *to = value; }
void store(uint16_t *to, float value) { *to = bfloat16FromFloat(value); }

/// Calls `body` with a null pointer of the element's storage type.
template <class Body> void withType(ElementType type, Body body) {
  if (type == ElementType::F32)
    body(static_cast<float *>(nullptr));
  else
    body(static_cast<uint16_t *>(nullptr));
}

/// Eight sums side by side: an order that vector units can follow, the same everywhere.
template <class T> double squaredSum(const T *from, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; ++lane) {
      const double value = load(from + i + lane);
      sums[lane] += value * value;
    }
  for (; i < count; ++i) {
    const double value = load(from + i);
    sums[i % 8] += value * value;
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

struct AdamWCoefficients {
  float scale, beta1, beta2, step, rootCorrection, epsilon;
};

/// Nothing overlaps and coefficients are copies, which lets compilers use vectors: the update is then bound by memory.
template <bool HasMaster, class Gradient, class Parameter>
void adamWLoop(const Gradient *__restrict gradient, Parameter *__restrict parameter, float *__restrict m,
               float *__restrict v, float *__restrict master, int64_t count, const AdamWCoefficients c, float keep) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = load(gradient + i) * c.scale;
    m[i] = c.beta1 * m[i] + (1 - c.beta1) * g;
    v[i] = c.beta2 * v[i] + (1 - c.beta2) * g * g;
    const float before = HasMaster ? master[i] : load(parameter + i);
    const float after = keep * before - c.step * m[i] / (std::sqrt(v[i]) * c.rootCorrection + c.epsilon);
    if (HasMaster) master[i] = after;
    store(parameter + i, after);
  }
}

template <class Gradient, class Parameter>
void adamW(const Gradient *gradient, Parameter *parameter, float *m, float *v, float *master, int64_t count,
           const AdamWCoefficients &c, float keep) {
  if (master)
    adamWLoop<true>(gradient, parameter, m, v, master, count, c, keep);
  else
    adamWLoop<false>(gradient, parameter, m, v, master, count, c, keep);
}

class HostDevice final : public ComputeDevice {
public:
  explicit HostDevice(ThreadPool *pool) : pool(pool) {}

  Expected<void *> allocate(int64_t bytes, std::string_view what) override {
    Expected<AlignedBuffer> buffer = AlignedBuffer::zeros(bytes, what);
    if (!buffer) return propagate(buffer);
    std::lock_guard lock(mutex);
    buffers.push_back(std::move(*buffer));
    return static_cast<void *>(buffers.back().data());
  }

  Status run(Lane, const KernelCall &call) override {
    switch (call.kind) {
    case OpKind::Convert:
      convert(call);
      return {};
    case OpKind::SquaredNorm:
      squaredNorm(call);
      return {};
    case OpKind::Scale:
      scale(call);
      return {};
    case OpKind::AdamW:
      update(call);
      return {};
    default:
      return fail(Stage::Launch, fmt::format("{} is no kernel of the host", toString(call.kind)));
    }
  }

  // Calls return when their work is done: the executor's own bookkeeping orders the lanes.
  Status wait(Lane, int) override { return {}; }
  Status record(Lane, int) override { return {}; }
  Status toHost(void *to, const void *from, int64_t bytes) override { return copy(to, from, bytes); }
  Status fromHost(void *to, const void *from, int64_t bytes) override { return copy(to, from, bytes); }
  Status clear(void *data, int64_t bytes) override {
    if (bytes) std::memset(data, 0, static_cast<size_t>(bytes));
    return {};
  }
  Status synchronize() override { return {}; }

private:
  Status copy(void *to, const void *from, int64_t bytes) {
    if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
    return {};
  }

  /// body(begin, end) for parts of [0, count).
  template <class Body> void parallel(int64_t count, Body body) {
    if (!pool || count <= kChunk) return body(int64_t{0}, count);
    pool->run(count, kChunk, [&](ChunkQueue &chunks) {
      for (int64_t begin, end; chunks.take(begin, end);)
        body(begin, end);
    });
  }

  void convert(const KernelCall &call) {
    const Operand &from = call.operands[0], &to = call.operands[1];
    withType(from.type, [&](auto *source) {
      withType(to.type, [&](auto *target) {
        auto *in = static_cast<decltype(source)>(from.data);
        auto *out = static_cast<decltype(target)>(to.data);
        parallel(from.elements, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            store(out + i, load(in + i));
        });
      });
    });
  }

  void squaredNorm(const KernelCall &call) {
    const Operand &from = call.operands[0];
    double *slots = static_cast<double *>(call.operands[1].data);
    const int64_t shards = call.shard < 0 ? call.worldSize : 1, size = from.elements / shards;
    std::fill(slots, slots + call.worldSize, 0.0);
    withType(from.type, [&](auto *type) {
      auto *data = static_cast<decltype(type)>(from.data);
      for (int64_t shard = 0; shard < shards; ++shard) {
        // Blocks, not threads, decide the order of additions.
        std::vector<double> sums(static_cast<size_t>((size + kChunk - 1) / kChunk));
        auto block = [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b)
            sums[static_cast<size_t>(b)] =
                squaredSum(data + shard * size + b * kChunk, std::min(kChunk, size - b * kChunk));
        };
        const int64_t blocks = static_cast<int64_t>(sums.size());
        if (pool && blocks > 1)
          pool->run(blocks, 1, [&](ChunkQueue &chunks) {
            for (int64_t begin, end; chunks.take(begin, end);)
              block(begin, end);
          });
        else
          block(0, blocks);
        double &slot = slots[call.shard < 0 ? shard : call.shard];
        for (double sum : sums)
          slot += sum;
      }
    });
  }

  void scale(const KernelCall &call) {
    const double *scalars = static_cast<const double *>(call.operands[0].data);
    double *result = static_cast<double *>(call.operands[1].data);
    double squares = 0;
    for (int64_t i = 1; i < call.operands[0].elements; ++i)
      squares += scalars[i];
    const double inverse = scalars[0] > 0 ? 1 / scalars[0] : 0, norm = std::sqrt(squares) * inverse;
    const StepSettings &settings = *call.settings;
    result[0] = inverse;
    result[1] = norm;
    if (settings.maxNorm > 0 && norm > settings.maxNorm) result[0] *= settings.maxNorm / norm;
    // A negative scale tells updates to leave everything as it is.
    if (!std::isfinite(norm) && settings.nonFinite != StepSettings::NonFinite::Continue) result[0] = -1;
  }

  void update(const KernelCall &call) {
    const StepSettings &s = *call.settings;
    const double scale = *static_cast<const double *>(call.operands[1].data);
    if (scale < 0) return;
    const double steps = static_cast<double>(s.step);
    const AdamWCoefficients c{static_cast<float>(scale),
                              static_cast<float>(s.beta1),
                              static_cast<float>(s.beta2),
                              static_cast<float>(s.learningRate / (1 - std::pow(s.beta1, steps))),
                              static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, steps))),
                              static_cast<float>(s.epsilon)};
    const Operand &gradients = call.operands[0], &parameters = call.operands[2];
    float *m = static_cast<float *>(call.operands[3].data), *v = static_cast<float *>(call.operands[4].data);
    float *master = call.operands.size() > 5 ? static_cast<float *>(call.operands[5].data) : nullptr;
    withType(gradients.type, [&](auto *gradientType) {
      withType(parameters.type, [&](auto *parameterType) {
        auto *g = static_cast<decltype(gradientType)>(gradients.data);
        auto *p = static_cast<decltype(parameterType)>(parameters.data);
        for (const DecayRange &range : call.decay) {
          const float keep = static_cast<float>(1 - s.learningRate * range.weightDecay);
          parallel(range.count, [&](int64_t begin, int64_t end) {
            const int64_t at = range.begin + begin;
            adamW(g + at, p + at, m + at, v + at, master ? master + at : nullptr, end - begin, c, keep);
          });
        }
      });
    });
  }

  ThreadPool *pool;
  std::mutex mutex;
  std::vector<AlignedBuffer> buffers;
};

} // namespace

std::unique_ptr<ComputeDevice> hostDevice(ThreadPool *pool) { return std::make_unique<HostDevice>(pool); }

} // namespace tilewright::dist
