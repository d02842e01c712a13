#include "WorkerPool.h"
#include "../bench/GpuMonitor.h"
#include <algorithm>
#include <fmt/format.h>
#include <poll.h>

namespace tilewright::tune {

using bench::monotonicSeconds;

bool WorkerPool::anyBusy(size_t begin, size_t end) const {
  return std::any_of(slots.begin() + static_cast<std::ptrdiff_t>(begin),
                     slots.begin() + static_cast<std::ptrdiff_t>(end), [](const Slot &slot) { return slot.busy; });
}

Measurement WorkerPool::ended(TuningOutcome outcome, std::string detail) {
  Measurement measurement;
  measurement.outcome = outcome;
  measurement.detail = std::move(detail);
  return measurement;
}

Status WorkerPool::send(size_t index, const WorkerRequest &request, size_t tag, double timeoutSeconds,
                        const std::string &opens) {
  Slot &slot = slots[index];
  // One that died while it had nothing to do is replaced without a word.
  for (bool fresh : {false, true}) {
    if (fresh || !slot.worker) {
      auto started = WorkerProcess::start(folder / fmt::format("worker-{}.log", index), folder / "kernels");
      if (!started) return propagate(started);
      slot.worker = std::move(*started);
      slot.opened.clear();
      fresh = true;
    }
    if (slot.worker->send(request)) break;
    slot.worker.reset();
    if (fresh) return fail(Stage::Communicate, "a worker ended before its first request");
  }
  slot.busy = true;
  slot.tag = tag;
  slot.kind = request.kind;
  slot.timeout = timeoutSeconds;
  slot.deadline = monotonicSeconds() + timeoutSeconds;
  slot.opening = opens;
  return {};
}

WorkerAnswer WorkerPool::answerOf(size_t index, Expected<Measurement> reply) {
  Slot &slot = slots[index];
  slot.busy = false;
  const bool alive = slot.worker && !(reply && reply->deviceLost);
  if (!alive) {
    slot.worker.reset();
    slot.opened.clear();
  } else if (slot.kind == WorkerRequest::Kind::Open) {
    slot.opened = reply ? slot.opening : "";
  }
  return {index, slot.tag, slot.kind, std::move(reply)};
}

std::vector<WorkerAnswer> WorkerPool::wait(double seconds) {
  std::vector<WorkerAnswer> answers;
  std::vector<pollfd> files;
  std::vector<size_t> indices;
  double until = monotonicSeconds() + seconds;
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i].busy) {
      files.push_back({slots[i].worker->channel(), POLLIN, 0});
      indices.push_back(i);
      until = std::min(until, slots[i].deadline);
    }
  const int milliseconds = static_cast<int>(std::max(0.0, (until - monotonicSeconds()) * 1000) + 1);
  if (poll(files.data(), files.size(), milliseconds) < 0) return answers; // a signal
  for (size_t n = 0; n < files.size(); ++n) {
    Slot &slot = slots[indices[n]];
    nlohmann::json reply;
    WorkerProcess::Heard heard = WorkerProcess::Heard::Nothing;
    if (files[n].revents) heard = slot.worker->hear(reply);
    if (heard == WorkerProcess::Heard::Reply) {
      answers.push_back(answerOf(indices[n], replyFromJson(reply)));
    } else if (heard == WorkerProcess::Heard::End) {
      const std::string how = slot.worker->end();
      slot.worker.reset();
      answers.push_back(answerOf(indices[n], ended(TuningOutcome::Crashed, "its process was " + how)));
    } else if (monotonicSeconds() > slot.deadline) {
      slot.worker.reset();
      answers.push_back(
          answerOf(indices[n], ended(TuningOutcome::TimedOut, fmt::format("no answer within {:g} s", slot.timeout))));
    }
  }
  return answers;
}

void WorkerPool::stop() {
  for (Slot &slot : slots)
    slot = Slot();
}

} // namespace tilewright::tune
