// What ptxas says about a kernel: registers, memory, and the findings that make a kernel slow without failing its
// compile.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Export.h"
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

struct CompileReport {
  int registers = 0;           ///< A thread's, at launch.
  int64_t sharedBytes = 0;     ///< Static shared memory of a block.
  int64_t stackBytes = 0;      ///< A thread's.
  int64_t spillStoreBytes = 0; ///< A thread's.
  int64_t spillLoadBytes = 0;
  int barriers = 0;
  /// One sentence each: registers spilled to memory, wgmma serialised (ptxas C7510 to C7519). Empty for a good kernel.
  std::vector<std::string> problems;

  bool operator==(const CompileReport &) const = default;
  int64_t spillBytes() const { return spillStoreBytes + spillLoadBytes; }
};

/// Reads the log of a compile with `--ptxas-options=-v`: the entry function `symbol`, or the first one if empty.
CompileReport parsePtxasLog(std::string_view log, std::string_view symbol = {});
/// Of several entry functions: the most that one takes, the spills of all. Problems name the function.
CompileReport parsePtxasLog(std::string_view log, std::span<const std::string> symbols);

/// The first line of a compile log that reports an error, trimmed; the first line that is not empty if none does.
std::string firstErrorLine(std::string_view log);

void to_json(nlohmann::json &json, const CompileReport &report);
Expected<CompileReport> compileReportFromJson(const nlohmann::json &json);

} // namespace cuda
} // namespace tilewright
