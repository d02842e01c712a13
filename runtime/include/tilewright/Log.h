// Messages to the host. The library is silent unless the host gives a callback; the tools print what they get.
#pragma once

#include "tilewright/Export.h"
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace tilewright TILEWRIGHT_PUBLIC {

enum class LogLevel {
  Debug,   ///< Paths, versions, cache hits.
  Info,    ///< Events worth showing a waiting person: a compile starts, a compile ended.
  Warning, ///< Something is wrong that does not stop the work: a bad cache entry, a disk that is full.
};

/// Calls are serialised. A callback must neither throw nor call into the library.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

/// Shared by everything a Context owns. Thread-safe.
class Log {
public:
  explicit Log(LogCallback callback = {}) : callback(std::move(callback)) {}

  void write(LogLevel level, std::string_view message);
  /// The first warning of each subject (a file name, say) is passed on, later ones are dropped.
  void warnOnce(const std::string &subject, std::string_view message);

private:
  std::mutex mutex;
  LogCallback callback;
  std::unordered_set<std::string> warned;
};

} // namespace tilewright
