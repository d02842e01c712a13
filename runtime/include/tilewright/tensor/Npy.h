// NumPy's .npy files (formats 1.0, 2.0 and 3.0), read strictly and written atomically.
//
// Reading checks everything against the size of the file before it allocates: a malformed file is an error that names
// the file, what was expected and what was found. Fortran order is transposed, big-endian data is swapped: an
// NpyArray always lies in C order and in this machine's byte order.
// Writing goes to a temporary file in the same folder, which is synced and renamed: no reader sees half a file, and a
// failed write leaves none.
#pragma once

#include "tilewright/tensor/Table.h"
#include "tilewright/tensor/Tensor.h"
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tilewright {

/// Element types that are read. Raw16 is two opaque bytes ('V2'): how NumPy stores an extension type such as bfloat16.
enum class NpyType { F16, F32, F64, U16, Raw16, I32, I64 };

std::string_view toString(NpyType type); ///< "float16", ..., "uint16", "2-byte void", "int32", "int64"
int64_t sizeInBytes(NpyType type);

struct NpyArray {
  NpyType type = NpyType::F32;
  std::vector<int64_t> shape;
  AlignedBuffer data;
};

/// `name` stands for the file in errors.
Expected<NpyArray> readNpy(std::span<const char> bytes, std::string_view name);
Expected<NpyArray> readNpy(const std::filesystem::path &path);

struct NpyTensorOptions {
  Layout layout = Layout::BSHD;
  bool uint16IsBF16 = false; ///< uint16 (and 'V2') elements are bfloat16 bit patterns. Without it they are refused.
};

/// q, k, v or dO: 4 dimensions in the order of the layout; float32, float16 or, on request, bfloat16. The elements are
/// taken over as they are; float64 is refused, since rounding it is the user's decision.
Expected<Tensor> tensorFromNpy(NpyArray array, const NpyTensorOptions &options, std::string_view name);
Expected<Tensor> readTensor(const std::filesystem::path &path, const NpyTensorOptions &options);

/// A table for masks and scores. int32, int64 and uint16 become int32, values out of its range are errors that name
/// value and position; float16, float32 and float64 become float32, rounded.
Expected<Table> tableFromNpy(const NpyArray &array, std::string_view name);
Expected<Table> readTable(const std::filesystem::path &path);

/// A file to write: C order, this machine's byte order. `data` is not owned.
struct NpyFile {
  std::filesystem::path path;
  NpyType type = NpyType::F32;
  std::vector<int64_t> shape;
  const void *data = nullptr;
};

/// The tensor in its own layout; bfloat16 is written as uint16.
NpyFile npyFile(std::filesystem::path path, const Tensor &tensor);
/// LSE and delta: a (batch, heads, rows, 1) tensor in BHSD order, written with 3 dimensions.
NpyFile npyFileOfRows(std::filesystem::path path, const Tensor &tensor);

/// Writes all files or none: nothing is renamed into place before every one is written and synced. The folders must
/// exist. Errors name the file and say what was missing: a folder, a permission, space on the disk.
Status writeNpy(std::span<const NpyFile> files);
Status writeNpy(const NpyFile &file);

} // namespace tilewright
