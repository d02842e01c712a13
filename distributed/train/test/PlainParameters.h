// A program's own arrays as a ParameterHost: one process, no engine.
#pragma once

#include "tilewright/tensor/Half.h"
#include "tilewright/train/Transformer.h"
#include <cstring>
#include <vector>

class PlainParameters final : public tilewright::train::ParameterHost {
public:
  using ElementType = tilewright::ElementType;

  /// Both arenas hold the parameters in reverse order without gaps, or, with `apart`, each has memory of its own.
  PlainParameters(const tilewright::train::ModelConfig &config, ElementType parameterType = ElementType::F32,
                  ElementType gradientType = ElementType::F32, bool apart = false)
      : parameterType(parameterType), gradientType(gradientType) {
    int64_t at = 0;
    const tilewright::dist::ParameterList list = config.parameters();
    begins.resize(list.size());
    for (size_t i = list.size(); i-- > 0;) {
      int64_t count = 1;
      for (int64_t extent : list[i].shape)
        count *= extent;
      counts.insert(counts.begin(), count);
      begins[i] = at;
      at += count + (apart ? 8 : 0);
    }
    values.resize(static_cast<size_t>(at * sizeInBytes(parameterType)));
    gradients.resize(static_cast<size_t>(at * sizeInBytes(gradientType)), char(0x7f)); // no gradient is there yet
    written.resize(list.size());
  }

  tilewright::Status wait(int i) override {
    waited.push_back(i);
    return {};
  }
  tilewright::dist::Operand value(int i) override {
    return {values.data() + begins[index(i)] * sizeInBytes(parameterType), counts[index(i)], parameterType};
  }
  tilewright::dist::GradientView gradient(int i) override {
    return {gradients.data() + begins[index(i)] * sizeInBytes(gradientType), counts[index(i)], gradientType,
            written[index(i)] != 0};
  }
  tilewright::Status ready(int i) override {
    readied.push_back(i);
    written[index(i)] = 1;
    return {};
  }

  void set(int i, int64_t e, double value) { store(this->value(i).data, parameterType, e, value); }
  double get(int i, int64_t e) { return load(value(i).data, parameterType, e); }
  double gradientAt(int i, int64_t e) { return load(gradient(i).data, gradientType, e); }
  int64_t elements(int i) const { return counts[index(i)]; }
  int count() const { return static_cast<int>(counts.size()); }
  void forgetGradients() { std::fill(written.begin(), written.end(), 0); }

  std::vector<int> waited, readied;

private:
  static size_t index(int i) { return static_cast<size_t>(i); }
  static double load(const void *data, ElementType type, int64_t e) {
    return type == ElementType::F32
               ? static_cast<double>(static_cast<const float *>(data)[e])
               : static_cast<double>(tilewright::floatFromBFloat16(static_cast<const uint16_t *>(data)[e]));
  }
  static void store(void *data, ElementType type, int64_t e, double value) {
    if (type == ElementType::F32)
      static_cast<float *>(data)[e] = static_cast<float>(value);
    else
      static_cast<uint16_t *>(data)[e] = tilewright::bfloat16FromFloat(static_cast<float>(value));
  }

  ElementType parameterType, gradientType;
  std::vector<int64_t> begins, counts;
  std::vector<char> values, gradients, written;
};
