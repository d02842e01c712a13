#include "CheckpointFolder.h"
#include "CheckedFile.h"
#include "tilewright/cache/TemporaryFiles.h"
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/file.h>
#include <unistd.h>
#include <utility>

namespace tilewright::dist {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSaving = ".saving-", kDeleting = ".deleting-";
/// Names the newest checkpoint.
constexpr const char *kPointer = "newest";

tl::unexpected<Error> refuse(const std::string &path, const char *what, const std::string &reason) {
  return fail(Stage::Output, fmt::format("{}: cannot be {}: {}", path, what, reason));
}

/// A folder that is being deleted must not look like a checkpoint any more.
void removeCheckpoint(const std::string &directory, const std::string &name) {
  const std::string gone = fmt::format("{}/{}{}", directory, kDeleting, name);
  std::error_code ignored;
  fs::remove_all(gone, ignored);
  if (rename((directory + "/" + name).c_str(), gone.c_str()) == 0) fs::remove_all(gone, ignored);
}

} // namespace

std::string CheckpointName::text() const {
  return attempt == 1 ? fmt::format("{}{:08}", kPrefix, step) : fmt::format("{}{:08}.{}", kPrefix, step, attempt);
}

std::optional<CheckpointName> CheckpointName::parse(std::string_view text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  CheckpointName name;
  const char *end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data() + kPrefix.size(), end, name.step);
  if (error != std::errc()) return std::nullopt;
  if (at != end) {
    if (*at != '.') return std::nullopt;
    auto [after, attemptError] = std::from_chars(at + 1, end, name.attempt);
    if (attemptError != std::errc() || after != end) return std::nullopt;
  }
  // Only what text() writes: "step-1" is somebody else's.
  return name.text() == text ? std::optional(name) : std::nullopt;
}

Expected<std::vector<CheckpointName>> checkpointsIn(const std::string &directory) {
  std::vector<CheckpointName> names;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (auto name = CheckpointName::parse(entry->path().filename().string())) names.push_back(*name);
  if (error) return fail(Stage::Input, fmt::format("{}: cannot be read: {}", directory, error.message()));
  std::ranges::sort(names);
  return names;
}

Expected<std::optional<CheckpointName>> newestIn(const std::string &directory) {
  Expected<std::vector<CheckpointName>> names = checkpointsIn(directory);
  if (!names) return propagate(names);
  if (names->empty()) return std::nullopt;
  std::string pointed;
  std::ifstream(directory + "/" + kPointer) >> pointed;
  auto named = CheckpointName::parse(pointed);
  // A job that ended between the two has published a checkpoint but not pointed to it: the pointer's is as good.
  if (!named || !std::ranges::binary_search(*names, *named)) named = names->back();
  return named;
}

Expected<SavingFolder> SavingFolder::open(const std::string &directory) {
  SavingFolder folder;
  folder.directory = directory;
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return refuse(directory, "created", error.message());
  folder.lock = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder.lock < 0) return refuse(directory, "opened", std::strerror(errno));
  // Network file systems that have no such locks do without.
  if (flock(folder.lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return fail(Stage::Output, fmt::format("{}: another job is saving a checkpoint here", directory),
                "give every job a directory of its own");
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(kSaving) || name.starts_with(kDeleting) ||
        (isTemporaryName(name) && isStaleTemporary(directory, name)))
      fs::remove_all(entry->path(), ignored);
  }
  const std::string temporary = fmt::format("{}/{}{}", directory, kSaving, getpid());
  if (!fs::create_directory(temporary, error)) return refuse(temporary, "created", error.message());
  folder.temporary = temporary;
  return folder;
}

SavingFolder::SavingFolder(SavingFolder &&other) noexcept
    : directory(std::move(other.directory)), temporary(std::exchange(other.temporary, {})),
      lock(std::exchange(other.lock, -1)) {}

SavingFolder &SavingFolder::operator=(SavingFolder &&other) noexcept {
  std::swap(directory, other.directory);
  std::swap(temporary, other.temporary);
  std::swap(lock, other.lock);
  return *this;
}

SavingFolder::~SavingFolder() {
  std::error_code ignored;
  if (!temporary.empty()) fs::remove_all(temporary, ignored);
  if (lock >= 0) close(lock);
}

Expected<std::string> SavingFolder::publish(int64_t step, int keep) {
  syncFolder(temporary);
  Expected<std::vector<CheckpointName>> names = checkpointsIn(directory);
  if (!names) return propagate(names);
  CheckpointName name{step};
  for (const CheckpointName &other : *names)
    if (other.step == step) name.attempt = std::max(name.attempt, other.attempt + 1);
  const std::string path = directory + "/" + name.text();
  if (rename(temporary.c_str(), path.c_str()) != 0) return refuse(path, "published", std::strerror(errno));
  const std::string unpublished = std::exchange(temporary, {});
  syncFolder(directory);
  const std::string pointed = name.text();
  const std::string_view parts[] = {pointed, "\n"};
  if (Status status = writeFileAtomically(directory, kPointer, parts, 0644); !status) {
    // Not half a success: without its pointer the checkpoint would come after those of a course that was left.
    if (rename(path.c_str(), unpublished.c_str()) != 0)
      return fail(Stage::Output, fmt::format("{}; the checkpoint itself is whole: {}", status.error().message, path));
    temporary = unpublished;
    syncFolder(directory);
    return fail(Stage::Output, status.error().message);
  }
  // What is ahead of this step belongs to a course that was left: it is not this job's to delete.
  int older = keep - 1;
  for (auto other = names->rbegin(); keep > 0 && other != names->rend(); ++other)
    if (other->step == step || (other->step < step && --older < 0)) removeCheckpoint(directory, other->text());
  return path;
}

} // namespace tilewright::dist
