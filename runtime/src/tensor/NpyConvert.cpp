// Between .npy arrays and what attention works on: tensors, and tables of masks and scores.

#include "tilewright/tensor/Half.h"
#include "tilewright/tensor/Npy.h"
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>

namespace tilewright {
namespace {

template <class T> T elementAt(const NpyArray &array, int64_t index) {
  T value;
  std::memcpy(&value, array.data.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t integerAt(const NpyArray &array, int64_t index) {
  switch (array.type) {
  case NpyType::I64:
    return elementAt<int64_t>(array, index);
  case NpyType::U16:
    return elementAt<uint16_t>(array, index);
  default:
    return elementAt<int32_t>(array, index);
  }
}

double floatAt(const NpyArray &array, int64_t index) {
  switch (array.type) {
  case NpyType::F64:
    return elementAt<double>(array, index);
  case NpyType::F16:
    return floatFromHalf(elementAt<uint16_t>(array, index));
  default:
    return elementAt<float>(array, index);
  }
}

/// "[3, 17]": where a flat index lies.
std::string positionText(const std::vector<int64_t> &shape, int64_t index) {
  std::vector<int64_t> position(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; index /= shape[axis])
    position[axis] = index % shape[axis];
  return fmt::format("[{}]", fmt::join(position, ", "));
}

NpyType npyType(ElementType type) {
  switch (type) {
  case ElementType::F32:
    return NpyType::F32;
  case ElementType::F16:
    return NpyType::F16;
  case ElementType::BF16:
    return NpyType::U16;
  case ElementType::I32:
    return NpyType::I32;
  case ElementType::F64:
    return NpyType::F64;
  }
  return NpyType::F32;
}

} // namespace

Expected<Tensor> tensorFromNpy(NpyArray array, const NpyTensorOptions &options, std::string_view name) {
  const bool bshd = options.layout == Layout::BSHD;
  if (array.shape.size() != 4)
    return fail(Stage::Input, fmt::format("{}: expected 4 dimensions ({} for layout {}), found {}: ({})", name,
                                          bshd ? "batch, seq, heads, dim" : "batch, heads, seq, dim",
                                          toString(options.layout), array.shape.size(), fmt::join(array.shape, ", ")));
  const std::string_view expected =
      options.uint16IsBF16 ? "float32, float16 or uint16 (bfloat16)" : "float32 or float16";
  ElementType type = ElementType::F32;
  switch (array.type) {
  case NpyType::F32:
    break;
  case NpyType::F16:
    type = ElementType::F16;
    break;
  case NpyType::U16:
  case NpyType::Raw16:
    if (!options.uint16IsBF16)
      return fail(Stage::Input, fmt::format("{}: expected {}, found {}", name, expected, toString(array.type)),
                  "if these are bfloat16 bit patterns, say that the problem's dtype is bf16");
    type = ElementType::BF16;
    break;
  default:
    return fail(Stage::Input, fmt::format("{}: expected {}, found {}", name, expected, toString(array.type)),
                "convert the array first: x.astype('float32')");
  }
  const TensorShape shape{array.shape[0], array.shape[bshd ? 2 : 1], array.shape[bshd ? 1 : 2], array.shape[3]};
  return Tensor::adopt(std::move(array.data), type, shape, options.layout, name);
}

Expected<Tensor> readTensor(const std::filesystem::path &path, const NpyTensorOptions &options) {
  auto array = readNpy(path);
  if (!array) return propagate(array);
  return tensorFromNpy(std::move(*array), options, path.string());
}

Expected<Table> tableFromNpy(const NpyArray &array, std::string_view name) {
  const int64_t count = array.data.size() / sizeInBytes(array.type);
  auto converted = AlignedBuffer::zeros(count * 4, name);
  if (!converted) return propagate(converted);
  switch (array.type) {
  case NpyType::Raw16:
    return fail(Stage::Input, fmt::format("{}: expected int32, int64, uint16, float16, float32 or float64, found {}",
                                          name, toString(array.type)));
  case NpyType::I32:
  case NpyType::I64:
  case NpyType::U16: {
    auto *ints = converted->as<int32_t>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = integerAt(array, i);
      if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
        return fail(Stage::Input, fmt::format("{}: element {} is {}; expected int32's range, -2147483648 to 2147483647",
                                              name, positionText(array.shape, i), value));
      ints[i] = static_cast<int32_t>(value);
    }
    return Table::ofInts({ints, static_cast<size_t>(count)}, array.shape, name);
  }
  case NpyType::F16:
  case NpyType::F32:
  case NpyType::F64:
    break;
  }
  auto *floats = converted->as<float>();
  for (int64_t i = 0; i < count; ++i) {
    const double value = floatAt(array, i);
    floats[i] = static_cast<float>(value);
    if (std::isfinite(value) && !std::isfinite(floats[i]))
      return fail(Stage::Input, fmt::format("{}: element {} is {}; expected float32's range, up to 3.4e38 in magnitude",
                                            name, positionText(array.shape, i), value));
  }
  return Table::ofFloats({floats, static_cast<size_t>(count)}, array.shape, name);
}

Expected<Table> readTable(const std::filesystem::path &path) {
  auto array = readNpy(path);
  if (!array) return propagate(array);
  return tableFromNpy(*array, path.string());
}

NpyFile npyFile(std::filesystem::path path, const Tensor &tensor) {
  const TensorShape &s = tensor.shape();
  std::vector<int64_t> shape = tensor.layout() == Layout::BSHD ? std::vector<int64_t>{s.batch, s.rows, s.heads, s.dim}
                                                               : std::vector<int64_t>{s.batch, s.heads, s.rows, s.dim};
  return {std::move(path), npyType(tensor.type()), std::move(shape), tensor.data()};
}

NpyFile npyFileOfRows(std::filesystem::path path, const Tensor &tensor) {
  NpyFile file = npyFile(std::move(path), tensor);
  file.shape.pop_back();
  return file;
}

} // namespace tilewright
