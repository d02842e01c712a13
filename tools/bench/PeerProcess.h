// The Python program that measures peers (peers.py), as a child process that answers one JSON request a line.
#pragma once

#include "TemporaryFolder.h"
#include <atomic>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tilewright::bench {

class PeerProcess {
public:
  /// Starts `python` (a name looked up in PATH, or a path) on the embedded program, in a process session of its own so
  /// that an interrupt from the keyboard reaches only this process. The program and what it prints lie in a temporary
  /// folder until the object goes.
  static Expected<std::unique_ptr<PeerProcess>> start(const std::string &python);
  /// Ends the child, if need be by force.
  ~PeerProcess();
  PeerProcess(const PeerProcess &) = delete;
  PeerProcess &operator=(const PeerProcess &) = delete;

  /// Sends a request and waits for its reply. An Error means that the child is gone or silent, and it is ended then: no
  /// further request has an answer. A reply that reports a failure ("ok": false) is no Error. Waiting ends early when
  /// `interrupted` becomes true.
  Expected<nlohmann::json> ask(const nlohmann::json &request, double timeoutSeconds,
                               const std::atomic<bool> *interrupted = nullptr);

  bool alive() const { return child > 0; }

private:
  explicit PeerProcess(TemporaryFolder folder) : folder(std::move(folder)) {}
  void end();
  /// The last line the child printed, for errors.
  std::string lastWords() const;

  TemporaryFolder folder;
  int child = -1;
  int channel = -1;
  std::string pending; ///< Received beyond the last full line.
};

} // namespace tilewright::bench
