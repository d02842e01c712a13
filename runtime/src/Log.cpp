#include "tilewright/Log.h"

namespace tilewright {

void Log::write(LogLevel level, std::string_view message) {
  if (!callback) return;
  std::lock_guard lock(mutex);
  callback(level, message);
}

void Log::warnOnce(const std::string &subject, std::string_view message) {
  if (!callback) return;
  std::lock_guard lock(mutex);
  if (warned.insert(subject).second) callback(LogLevel::Warning, message);
}

} // namespace tilewright
