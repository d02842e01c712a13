// One rank of a launched job: a process group with its output.
#pragma once

#include "tilewright/Error.h"
#include <deque>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace tilewright::tool {

class RankProcess {
public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// `inherited`: a descriptor that the process keeps, or -1. A command that cannot be run is an error here.
  static Expected<RankProcess> start(int rank, const std::vector<std::string> &command, const Variables &variables,
                                     int inherited);

  pid_t pid() const { return process; }
  int output(int which) const { return outputs[which].descriptor; } ///< 0: stdout, 1: stderr; -1 when closed.
  /// Passes on some of what has come, line by line: one that never stops to write must not keep the launcher. Whether
  /// there may be more.
  bool forward(int which);
  /// Passes on what its pipe holds.
  void drain(int which);
  /// Whether it has ended, without waiting.
  bool reap();
  bool ended() const { return hasEnded; }
  bool failed() const { return hasEnded && exitStatus != 0; }
  /// As a shell reports it: the exit code, or 128 + signal.
  int exitCode() const;
  std::string describeEnd() const; ///< "exited with code 7", "was killed by signal 9 (Killed)"
  std::string lastLines() const;
  /// To the process and everything that it started.
  void signal(int number) const;
  void closeOutputs();

private:
  struct Output {
    int descriptor = -1;
    std::string partial;
  };
  void emit(int which, bool all);

  int rank = 0;
  pid_t process = -1;
  Output outputs[2];
  std::deque<std::string> recent;
  bool hasEnded = false;
  int exitStatus = 0;
};

} // namespace tilewright::tool
