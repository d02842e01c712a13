// The safetensors format: a file of named tensors. 8 bytes of header length (little endian), a JSON object of names
// with dtype, shape and data_offsets, then the data without gaps. https://huggingface.co/docs/safetensors
#pragma once

#include "tilewright/Error.h"
#include "tilewright/tensor/ElementType.h"
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright::dist {

struct SafeTensor {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<int64_t> shape;
  int64_t begin = 0; ///< Bytes from the start of the data.

  int64_t elements() const;
  int64_t bytes() const { return elements() * sizeInBytes(type); }
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafeTensor> tensors; ///< In the order of the data.
  int64_t dataBegin = 0;           ///< Bytes from the start of the file, a multiple of 8.
  int64_t dataBytes = 0;

  const SafeTensor *find(std::string_view name) const; ///< Null if there is none.

  /// Places the tensors one after another, and sets dataBegin and dataBytes. Returns the bytes before the data.
  std::string layOut();
  /// Reads and checks the header of a whole file: types that Tilewright has, shapes, offsets that cover the data
  /// exactly once, and nothing after it. An error names the file, the field, what was expected and what was found.
  static Expected<SafetensorsHeader> read(const std::string &path);
};

/// Reads `bytes` from `offset` of the file's data. `path` is for the error.
Status readTensorData(const std::string &path, const SafetensorsHeader &header, int64_t offset, int64_t bytes,
                      void *to);

} // namespace tilewright::dist
