// What an engine needs of a network: ordered collectives over device memory, and a way to compare notes. NCCL and Gloo
// are two of these; engines never see which.
#pragma once

#include "tilewright/distributed/plan/StepPlan.h"
#include <memory>

namespace tilewright::dist {

/// One communication of a plan, with memory.
struct Collective {
  OpKind kind = OpKind::AllReduce; ///< AllReduce ... Receive, with the meaning that OpKind gives them.
  void *data = nullptr;
  int64_t elements = 0;
  ElementType type = ElementType::F32; ///< How sums of BF16 are rounded: each transport.
  int root = 0;                        ///< Broadcast.
  int peer = 0;                        ///< Send, Receive: offset to the other rank.
  std::string_view name;               ///< For errors.
};

/// All ranks call run() with the same sequence. One thread at a time may be in run() and exchange(); abort() may come
/// from any. After an error the transport stays failed: each later call returns the first error.
class Transport {
public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int worldSize() const = 0;
  virtual std::string_view name() const = 0; ///< "gloo", "nccl"

  /// The cap of a bucket of gradients that serves best where nothing else is known: what a message costs beside its
  /// bytes against what it lets the backward hide.
  virtual int64_t usualBucketBytes() const { return int64_t{25} << 20; }

  /// Starts the next collective in the transport's order. Transports over host memory return when it is done; those
  /// over a device's stream when it is enqueued. An error names the op, its sequence number and the rank at fault.
  virtual Status run(const Collective &collective) = 0;

  /// What is between these is started together, so that messages to and from a rank cannot wait for one another.
  virtual Status beginGroup() { return {}; }
  virtual Status endGroup() { return {}; }

  /// Zeroed memory of the device from which this transport communicates faster, freed with the transport; null if it
  /// has none better than the device's own. All ranks call it with the same sequence of sizes but for a rank's shards.
  virtual Expected<void *> allocate(int64_t bytes, std::string_view what) {
    (void)bytes, (void)what;
    return nullptr;
  }

  /// The error that later calls would return; of transports over a stream also one of work that was enqueued.
  virtual Status status() = 0;

  /// Asks every other rank's process whether it lives; an error names one that does not answer. From any thread; it
  /// pairs with no call of another rank's.
  virtual Status ping() { return status(); }

  /// Everyone's text, by rank. Synchronous.
  virtual Expected<std::vector<std::string>> exchange(const std::string &text) = 0;

  /// Tells all ranks that this one gives up, and why: their pending and later calls fail with it.
  virtual void abort(const std::string &reason) = 0;

  /// Payload bytes that this rank has sent in run() since the start.
  virtual int64_t sentBytes() const = 0;
};

} // namespace tilewright::dist
