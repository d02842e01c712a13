// TILEWRIGHT_RECORD: a file of every distinct problem that was prepared, a line of JSON each, for `tilewright tune`.
#pragma once

#include "tilewright/Log.h"
#include "tilewright/plan/KernelPlan.h"
#include <mutex>
#include <unordered_set>

namespace tilewright {

/// Thread-safe. Processes that record into one file write each problem once (the file is locked while one looks and
/// adds).
class ProblemRecord {
public:
  ProblemRecord(std::string path, std::shared_ptr<Log> log) : path(std::move(path)), log(std::move(log)) {}

  /// Adds the problem unless it is in the file. A file that cannot be written gives one warning.
  void add(const KernelPlan &plan);

private:
  const std::string path;
  const std::shared_ptr<Log> log;
  std::mutex mutex;
  std::unordered_set<std::string> seen; ///< By this process.
};

} // namespace tilewright
