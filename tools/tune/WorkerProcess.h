// A worker as a child process: this program under another command. It lives in a process session of its own, so that an
// interrupt from the keyboard reaches only its parent, and ends when its parent does.
#pragma once

#include "WorkerProtocol.h"
#include <filesystem>

namespace tilewright::tune {

class WorkerProcess {
public:
  /// `log` receives what the worker prints; its kernels lie in the folder `cache`.
  static Expected<std::unique_ptr<WorkerProcess>> start(const std::filesystem::path &log,
                                                        const std::filesystem::path &cache);
  ~WorkerProcess(); ///< Ends it, by force.
  WorkerProcess(const WorkerProcess &) = delete;
  WorkerProcess &operator=(const WorkerProcess &) = delete;

  int channel() const { return socket; } ///< Readable when a reply, or the end, is there.
  int process() const { return child; }

  /// False: the worker is gone.
  bool send(const WorkerRequest &request);
  /// Reads what is there without waiting.
  enum class Heard { Nothing, Reply, End };
  Heard hear(nlohmann::json &reply);
  /// After the end, or to bring it about: how the process ended and its last words.
  /// "killed by signal 11 (Segmentation fault); its last words: ..."
  std::string end();

private:
  WorkerProcess(int child, int socket, std::filesystem::path log) : child(child), socket(socket), log(std::move(log)) {}
  int child = -1, socket = -1;
  std::filesystem::path log;
  std::string pending;
};

} // namespace tilewright::tune
