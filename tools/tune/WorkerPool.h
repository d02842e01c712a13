// Workers and what each is doing. A worker that dies or does not answer in time is replaced; its request is reported as
// crashed or timed out, and nothing else is lost.
#pragma once

#include "WorkerProcess.h"

namespace tilewright::tune {

/// What became of a request. `tag` is the asker's.
struct WorkerAnswer {
  size_t slot = 0;
  size_t tag = 0;
  WorkerRequest::Kind kind = WorkerRequest::Kind::Measure;
  Expected<Measurement> reply;
};

class WorkerPool {
public:
  /// Logs and the kernels that workers share lie in `folder`. Slots are filled when first used.
  WorkerPool(std::filesystem::path folder, size_t slots) : folder(std::move(folder)), slots(slots) {}

  size_t size() const { return slots.size(); }
  bool isIdle(size_t slot) const { return !slots[slot].busy; }
  bool anyBusy(size_t begin, size_t end) const;
  /// The problem (the sender's name for it) that a slot's worker has open; empty for none or a new worker.
  const std::string &opened(size_t slot) const { return slots[slot].opened; }

  /// Gives an idle slot something to do. An Error means that no worker can be started.
  Status send(size_t slot, const WorkerRequest &request, size_t tag, double timeoutSeconds,
              const std::string &opens = {});
  /// Waits up to `seconds` for answers; early when a signal arrives.
  std::vector<WorkerAnswer> wait(double seconds);
  /// Ends every worker, whatever it is doing.
  void stop();

private:
  struct Slot {
    std::unique_ptr<WorkerProcess> worker;
    bool busy = false;
    size_t tag = 0;
    WorkerRequest::Kind kind = WorkerRequest::Kind::Measure;
    double deadline = 0, timeout = 0;
    std::string opening, opened;
  };
  WorkerAnswer answerOf(size_t index, Expected<Measurement> reply);
  /// A measurement that says how a worker ended.
  static Measurement ended(TuningOutcome outcome, std::string detail);

  std::filesystem::path folder;
  std::vector<Slot> slots;
};

} // namespace tilewright::tune
