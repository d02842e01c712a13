// The directory that holds checkpoints: names, which is the newest, and what may go.
#pragma once

#include "tilewright/Error.h"
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright::dist {

/// A step that is saved again gets another attempt: "step-00000010", then "step-00000010.2".
struct CheckpointName {
  int64_t step = 0;
  int attempt = 1;
  std::string text() const;
  static std::optional<CheckpointName> parse(std::string_view text); ///< What text() writes; nothing else.
  auto operator<=>(const CheckpointName &) const = default;
};

/// Those in the directory, oldest step first; whole, since only whole ones have such names. Empty without a directory.
Expected<std::vector<CheckpointName>> checkpointsIn(const std::string &directory);
/// The one saved last; nothing if there is none. After a return to an earlier step that is not the highest.
Expected<std::optional<CheckpointName>> newestIn(const std::string &directory);

/// One saver's stay in a directory: made by rank 0.
class SavingFolder {
public:
  SavingFolder() = default;
  /// Creates the directory, keeps other jobs from saving into it, and removes what dead ones left. Errors name the
  /// directory, and tell if another job is saving here.
  static Expected<SavingFolder> open(const std::string &directory);
  SavingFolder(SavingFolder &&other) noexcept;
  SavingFolder &operator=(SavingFolder &&other) noexcept;
  ~SavingFolder(); ///< Removes what was not published.

  const std::string &path() const { return temporary; } ///< Where to write.
  /// Gives the folder its name, and deletes older checkpoints but `keep` (0: none). Returns its path.
  Expected<std::string> publish(int64_t step, int keep);

private:
  std::string directory, temporary;
  int lock = -1;
};

} // namespace tilewright::dist
