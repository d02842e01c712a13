// One cached kernel and its file format. A file `<key>.twk` holds
//
//   offset  bytes  content (numbers little-endian, hashes as hex digits of SHA-256)
//        0      8  magic "TWKERNEL"
//        8      4  format version
//       12      4  kind: 1 cubin, 2 relocatable object
//       16      8  size of the description
//       24      8  size of the payload
//       32     64  key
//       96     64  hash of the payload
//      160     64  hash of bytes 0 to 159 and the description
//      224         description (JSON), then payload, then the end of the file
//
// so that every byte is covered by a check.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Export.h"
#include "tilewright/cache/KernelKey.h"
#include "tilewright/cuda/CompileReport.h"
#include <cstdint>
#include <span>

namespace tilewright TILEWRIGHT_PUBLIC {

enum class PayloadKind : uint32_t { Cubin = 1, Object = 2 };

std::string_view toString(PayloadKind kind); ///< "cubin", "object"

struct CacheEntry {
  PayloadKind kind = PayloadKind::Cubin;
  KernelKeyInputs inputs;
  std::string symbol;
  std::string sourceSha256; ///< Of the emitted source; empty for objects.
  cuda::CompileReport report;
  int64_t scratchBytes = 0; ///< Objects: working memory a thread needs.
  double generateMs = 0, compileMs = 0;
  int64_t created = 0; ///< Seconds since 1970, UTC.
  std::vector<char> payload;

  std::string key() const { return kernelKey(inputs); }
};

inline constexpr uint32_t kEntryFormat = 1;
inline constexpr size_t kEntryHeaderBytes = 224;
inline constexpr std::string_view kEntrySuffix = ".twk";

/// The file's content in two parts: header with description, and payload (a view of the entry's own).
std::string encodeEntryHead(const CacheEntry &entry);

/// Checks everything and says what is wrong with the first damage found. `expectedKey` is what the file name says.
Expected<CacheEntry> decodeEntry(std::span<const char> bytes, std::string_view expectedKey);

/// True for "<64 hex digits>.twk"; `key` receives the digits.
bool isEntryName(std::string_view fileName, std::string *key = nullptr);

} // namespace tilewright
