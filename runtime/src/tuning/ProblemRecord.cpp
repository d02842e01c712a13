#include "ProblemRecord.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tilewright {
namespace {

/// Whether the file has the line; false as well where it cannot be read.
bool hasLine(int file, const std::string &line) {
  std::string content;
  char buffer[1 << 16];
  for (ssize_t count; (count = read(file, buffer, sizeof(buffer))) > 0;)
    content.append(buffer, static_cast<size_t>(count));
  return content.starts_with(line) || content.find("\n" + line) != std::string::npos;
}

} // namespace

void ProblemRecord::add(const KernelPlan &plan) {
  // Merge, Delta and Convert come with a kernel that is recorded itself.
  if (plan.role == KernelRole::Merge || plan.role == KernelRole::Delta || plan.role == KernelRole::Convert) return;
  const std::string line = nlohmann::json(plan.problem).dump() + "\n";
  std::lock_guard lock(mutex);
  if (!seen.insert(line).second) return;
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  struct stat what {};
  // A pipe or a device might never end.
  const bool regular = file >= 0 && fstat(file, &what) == 0 && S_ISREG(what.st_mode);
  bool written = regular;
  errno = file >= 0 && !regular ? EINVAL : errno;
  if (regular) {
    flock(file, LOCK_EX); // without locks a problem may stand there twice
    if (!hasLine(file, line)) written = write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  }
  const int code = errno;
  if (file >= 0) close(file);
  if (!written) log->warnOnce(path, fmt::format("cannot write {} (TILEWRIGHT_RECORD): {}", path, std::strerror(code)));
}

} // namespace tilewright
