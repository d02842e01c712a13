#include "ParameterUpload.h"
#include "tilewright/tensor/Half.h"

namespace tilewright::train {

Status uploadParameter(dist::Engine &engine, int parameter, std::span<const float> values) {
  const dist::Operand to = engine.parameter(parameter);
  if (to.type == ElementType::F32) return engine.compute().fromHost(to.data, values.data(), to.elements * 4);
  std::vector<uint16_t> rounded(values.size());
  bfloat16FromFloat(values, rounded);
  return engine.compute().fromHost(to.data, rounded.data(), to.elements * sizeInBytes(to.type));
}

} // namespace tilewright::train
