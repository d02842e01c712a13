// The tuned store: one SQLite file in the cache folder, a row a candidate. Many processes write at once (WAL); a row is
// identified by environment, problem and schedule, so measuring again replaces it and no two are the same.
//
// Whatever is wrong with file or rows is no error for those who read: what cannot be read counts as not there, and the
// log gets one warning. Thread-safe.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/Log.h"
#include "tilewright/tuning/TunedCandidate.h"
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tilewright TILEWRIGHT_PUBLIC {

/// Result of an import: lines that were taken over, and what was wrong with the first of those that were not.
struct ImportedLines {
  size_t taken = 0, refused = 0;
  std::string firstRefusal; ///< "FILE:LINE: ..."
};

class TunedStore {
public:
  /// The file's name inside the cache folder. A new layout of rows gets a new name: older files stay as they are.
  static constexpr std::string_view kFileName = "tuned-1.sqlite";

  /// For reading: null where there is no file or it cannot be read, with a warning in the second case.
  static std::shared_ptr<TunedStore> openExisting(const std::string &directory, std::shared_ptr<Log> log);
  /// For writing: makes folder and file where there are none, for their owner alone. A file that is no database or is
  /// damaged is set aside under a new name, with a warning.
  static Expected<std::shared_ptr<TunedStore>> openOrCreate(const std::string &directory, std::shared_ptr<Log> log);
  ~TunedStore();

  const std::string &path() const;

  /// Inserts rows, or replaces those of the same identity, all or none. A time that was confirmed is not replaced by
  /// one that was not. Waits for other writers up to ten seconds. Errors: a full disk, a folder that cannot be written.
  Status put(std::span<const TunedCandidate> candidates);

  /// The row of that identity.
  std::optional<TunedCandidate> find(const TuningEnvironment &environment, const Problem &problem, KernelRole role,
                                     const Schedule &schedule);
  /// All rows of one problem and role in one environment.
  std::vector<TunedCandidate> rows(const TuningEnvironment &environment, const Problem &problem, KernelRole role);
  /// Rows of one target, role and problem in every environment, those that are Ok alone.
  std::vector<TunedCandidate> timed(const std::string &target, const Problem &problem, KernelRole role);
  /// Sizes of the problems of a family that have rows which are Ok on a target, each once.
  std::vector<TuningSizes> sizes(const std::string &target, const Problem &problem, KernelRole role);
  /// Everything, ordered by identity.
  std::vector<TunedCandidate> all();
  size_t count();
  /// Removes every row; the number removed.
  Expected<size_t> clear();

  /// Passes a warning to the log, the first of each subject.
  void warnOnce(const std::string &subject, std::string_view message);

  /// A line of JSON a row.
  Status exportLines(std::ostream &out);
  /// Lines that exportLines() wrote; bad ones are counted and left out. `name` is the file's, for messages.
  Expected<ImportedLines> importLines(std::istream &in, const std::string &name);

private:
  struct State;
  explicit TunedStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

} // namespace tilewright
