#include "tilewright/distributed/transport/GlooTransport.h"
#include "GlooGroup.h"
#include "RankOrderSum.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include <atomic>
#include <cstring>
#include <fmt/format.h>

namespace tilewright::dist {
namespace {

/// A message costs two notices and a payload through two threads, some 80 us: segments must take much longer than that.
constexpr int64_t kSegmentBytes = 512 << 10;
/// Segments on their way at a time, each way and peer.
constexpr int64_t kDepth = 3;

uint64_t slotOf(int64_t sequence, int phase, int64_t segment) {
  return uint64_t{0x80} << 56 | (static_cast<uint64_t>(sequence) & 0xffffffff) << 24 |
         static_cast<uint64_t>(phase) << 22 | static_cast<uint64_t>(segment);
}

class GlooTransport final : public Transport {
public:
  explicit GlooTransport(std::unique_ptr<GlooGroup> group)
      : group(std::move(group)), me(this->group->environment().rank), ranks(this->group->environment().worldSize),
        sendCounts(static_cast<size_t>(ranks)), receiveCounts(static_cast<size_t>(ranks)) {}

  ~GlooTransport() override;

  int rank() const override { return me; }
  int worldSize() const override { return ranks; }
  std::string_view name() const override { return "gloo"; }
  int64_t sentBytes() const override { return sent; }
  Status status() override { return group->status(); }
  Status ping() override {
    SigpipeBlock block;
    return group->ping();
  }
  void abort(const std::string &reason) override {
    SigpipeBlock block;
    group->abort(reason);
  }

  Status run(const Collective &c) override {
    const std::string operation = fmt::format("{} {} (operation {})", toString(c.kind), c.name, sequence);
    if (Status status = group->status(); !status) return release(noticedBy(operation, std::move(status)));
    if (ranks == 1) return {};
    SigpipeBlock block;
    group->begin(operation);
    Status status = dispatch(c);
    group->end();
    ++sequence;
    return status ? status : release(noticedBy(operation, std::move(status)));
  }

  Expected<std::vector<std::string>> exchange(const std::string &text) override;

private:
  /// The two halves of a collective over chunks, one a rank: bringing each chunk to its owner, and from there to all.
  struct Halves {
    bool reduce = false, gather = false;
    int scatterFrom = -1;
  };

  /// What failed while nothing was under way names no operation: this is the one that notices.
  static Status noticedBy(const std::string &operation, Status status) {
    std::string &message = status.error().message;
    if (message.find("(operation ") == std::string::npos) message = operation + ": " + message;
    return status;
  }

  Status dispatch(const Collective &c) {
    switch (c.kind) {
    case OpKind::AllReduce:
      return overChunks(c, {true, true});
    case OpKind::ReduceScatter:
      return overChunks(c, {true, false});
    case OpKind::AllGather:
      return overChunks(c, {false, true});
    case OpKind::Broadcast:
      if (c.elements * sizeInBytes(c.type) > kDirectBroadcastBytes) return overChunks(c, {false, true, c.root});
      return broadcastDirectly(c);
    case OpKind::Send:
    case OpKind::Receive:
      return message(c);
    default:
      return fail(Stage::Communicate, fmt::format("{} is no communication", toString(c.kind)));
    }
  }

  /// After a failure no memory of the caller's may be written any more.
  Status release(Status status) {
    group->close(posted);
    openSends.clear();
    return status;
  }

  Status sendTo(int peer, uint64_t slot, const char *data, int64_t bytes) {
    Expected<Posted> result = group->send(peer, slot, data, static_cast<size_t>(bytes));
    if (!result) return propagate(result);
    posted.push_back(std::move(*result));
    sent += bytes;
    return {};
  }
  Status receiveFrom(int peer, uint64_t slot, char *data, int64_t bytes) {
    Expected<Posted> result = group->receive(peer, slot, data, static_cast<size_t>(bytes));
    if (!result) return propagate(result);
    posted.push_back(std::move(*result));
    return {};
  }
  /// Waits for the oldest `count` of what was posted.
  Status settle(size_t count) {
    for (size_t i = 0; i < count; ++i)
      if (Status status = group->wait(posted[i]); !status) return status;
    posted.erase(posted.begin(), posted.begin() + static_cast<std::ptrdiff_t>(count));
    return {};
  }

  Status overChunks(const Collective &c, Halves halves);
  Status broadcastDirectly(const Collective &c);
  Status message(const Collective &c);

  // Memory that connections read and write: it goes after the group, which ends them.
  AlignedBuffer scratch;
  struct OpenSend {
    std::vector<char> payload;
    Posted posted;
  };
  std::vector<std::unique_ptr<OpenSend>> openSends;
  std::vector<Posted> posted;
  std::unique_ptr<GlooGroup> group;
  const int me, ranks;
  int64_t sequence = 0;
  std::atomic<int64_t> sent{0};
  std::vector<int64_t> sendCounts, receiveCounts; ///< Of messages, by peer.
};

/// Messages that this rank has sent arrive even if it ends right after them.
GlooTransport::~GlooTransport() {
  SigpipeBlock block;
  Status status = group->status();
  for (size_t i = 0; status && i < openSends.size(); ++i)
    status = group->wait(openSends[i]->posted);
}

Status GlooTransport::overChunks(const Collective &c, Halves halves) {
  const int64_t size = sizeInBytes(c.type), segment = kSegmentBytes / size;
  const int64_t segments = (chunkOf(c.elements, ranks, 0).count + segment - 1) / segment;
  char *data = static_cast<char *>(c.data);
  struct Bytes {
    int64_t begin, count;
  };
  auto bytesOf = [&](int owner, int64_t k) {
    const Chunk chunk = chunkOf(c.elements, ranks, owner);
    const int64_t begin = std::min(k * segment, chunk.count), end = std::min(begin + segment, chunk.count);
    return Bytes{(chunk.begin + begin) * size, (end - begin) * size};
  };
  if (halves.reduce && scratch.size() < kDepth * ranks * kSegmentBytes) {
    Expected<AlignedBuffer> grown =
        AlignedBuffer::zeros(kDepth * ranks * kSegmentBytes, "a reduction's scratch memory");
    if (!grown) return propagate(grown);
    scratch = std::move(*grown);
  }
  auto scratchOf = [&](int64_t k, int peer) { return scratch.data() + (k % kDepth * ranks + peer) * kSegmentBytes; };
  // Peers in an order that differs by rank, so that no rank is everybody's first.
  auto eachPeer = [&](auto visit) -> Status {
    for (int i = 1; i < ranks; ++i)
      if (Status status = visit((me + i) % ranks); !status) return status;
    return {};
  };

  // What is pending of each segment, by kind: the contributions that come in and go out, then the results.
  struct Pending {
    std::vector<Posted> in, out, results;
  };
  std::vector<Pending> pending(static_cast<size_t>(segments));
  auto post = [&](std::vector<Posted> &list, bool isSend, int peer, int phase, int64_t k, char *at,
                  int64_t bytes) -> Status {
    if (bytes == 0) return {};
    Expected<Posted> result = isSend ? group->send(peer, slotOf(sequence, phase, k), at, static_cast<size_t>(bytes))
                                     : group->receive(peer, slotOf(sequence, phase, k), at, static_cast<size_t>(bytes));
    if (!result) return propagate(result);
    list.push_back(std::move(*result));
    if (isSend) sent += bytes;
    return {};
  };
  auto settleAll = [&](std::vector<Posted> &list) -> Status {
    for (Posted &each : list)
      if (Status status = group->wait(each); !status) return status;
    list.clear();
    return {};
  };
  auto open = [&](int64_t k) -> Status {
    Pending &p = pending[static_cast<size_t>(k)];
    const Bytes own = bytesOf(me, k);
    return eachPeer([&](int peer) -> Status {
      const Bytes theirs = bytesOf(peer, k);
      if (halves.reduce) {
        if (Status s = post(p.in, false, peer, 0, k, scratchOf(k, peer), own.count); !s) return s;
        if (Status s = post(p.out, true, peer, 0, k, data + theirs.begin, theirs.count); !s) return s;
      }
      if (halves.scatterFrom == me)
        if (Status s = post(p.out, true, peer, 0, k, data + theirs.begin, theirs.count); !s) return s;
      if (halves.scatterFrom == peer)
        if (Status s = post(p.in, false, peer, 0, k, data + own.begin, own.count); !s) return s;
      // The root of a broadcast has everything.
      if (halves.gather && halves.scatterFrom != me)
        return post(p.results, false, peer, 1, k, data + theirs.begin, theirs.count);
      return {};
    });
  };
  auto combine = [&](int64_t k) -> Status {
    Pending &p = pending[static_cast<size_t>(k)];
    const Bytes own = bytesOf(me, k);
    if (Status s = settleAll(p.in); !s) return s;
    if (halves.reduce && own.count) {
      std::vector<const void *> parts(static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r)
        parts[static_cast<size_t>(r)] = r == me ? data + own.begin : scratchOf(k, r);
      sumInRankOrder(parts, data + own.begin, own.count / size, c.type);
    }
    if (halves.gather) {
      Status s = eachPeer([&](int peer) -> Status {
        if (peer == halves.scatterFrom) return {};
        return post(p.results, true, peer, 1, k, data + own.begin, own.count);
      });
      if (!s) return s;
    }
    return settleAll(p.out);
  };

  Status status;
  // A segment's turn comes when it is kDepth ahead; it is summed, and its results are waited for kDepth later.
  for (int64_t k = 0; status && k < segments + kDepth; ++k) {
    if (k == 0)
      for (int64_t ahead = 0; status && ahead < std::min(kDepth, segments); ++ahead)
        status = open(ahead);
    if (status && k < segments) status = combine(k);
    if (status && k + kDepth < segments) status = open(k + kDepth);
    if (status && k >= kDepth) status = settleAll(pending[static_cast<size_t>(k - kDepth)].results);
  }
  if (!status) // Gloo may still use the buffers; they are released with the connections
    for (Pending &p : pending)
      for (std::vector<Posted> *list : {&p.in, &p.out, &p.results})
        std::move(list->begin(), list->end(), std::back_inserter(posted));
  return status;
}

Status GlooTransport::broadcastDirectly(const Collective &c) {
  const int64_t bytes = c.elements * sizeInBytes(c.type);
  char *data = static_cast<char *>(c.data);
  if (bytes == 0) return {};
  if (c.root != me) {
    if (Status s = receiveFrom(c.root, slotOf(sequence, 0, 0), data, bytes); !s) return s;
  } else
    for (int i = 1; i < ranks; ++i)
      if (Status s = sendTo((me + i) % ranks, slotOf(sequence, 0, 0), data, bytes); !s) return s;
  return settle(posted.size());
}

/// A send is copied, so that its memory is free at once and no order of sends and receives in a group can block.
Status GlooTransport::message(const Collective &c) {
  const int peer = ((me + c.peer) % ranks + ranks) % ranks;
  const int64_t bytes = c.elements * sizeInBytes(c.type);
  if (bytes == 0) return {};
  if (peer == me)
    return fail(Stage::Communicate, fmt::format("{} {}: a rank cannot send to itself", toString(c.kind), c.name));
  const size_t p = static_cast<size_t>(peer);
  if (c.kind == OpKind::Send) {
    auto open = std::make_unique<OpenSend>();
    open->payload.assign(static_cast<const char *>(c.data), static_cast<const char *>(c.data) + bytes);
    Expected<Posted> result =
        group->send(peer, slotOf(sendCounts[p]++, 2, 0), open->payload.data(), open->payload.size());
    if (!result) return propagate(result);
    open->posted = std::move(*result);
    openSends.push_back(std::move(open));
    sent += bytes;
    return {};
  }
  if (Status s = receiveFrom(peer, slotOf(receiveCounts[p]++, 2, 0), static_cast<char *>(c.data), bytes); !s) return s;
  if (Status s = settle(posted.size()); !s) return s;
  // Each rank that has received in a group lets its senders finish: theirs are done when ours are.
  constexpr size_t kMostOpenSends = 8;
  while (openSends.size() > kMostOpenSends) {
    if (Status s = group->wait(openSends.front()->posted); !s) return s;
    openSends.erase(openSends.begin());
  }
  return {};
}

Expected<std::vector<std::string>> GlooTransport::exchange(const std::string &text) {
  if (ranks == 1) return std::vector<std::string>{text};
  const int64_t before = sent;
  auto gather = [&](std::vector<int64_t> &words, const char *name) {
    return run({OpKind::AllGather, words.data(), static_cast<int64_t>(words.size()), ElementType::F64, 0, 0, name});
  };
  std::vector<int64_t> lengths(static_cast<size_t>(ranks));
  lengths[static_cast<size_t>(me)] = static_cast<int64_t>(text.size());
  if (Status status = gather(lengths, "exchange of lengths"); !status) return propagate(status);
  const int64_t words = (*std::max_element(lengths.begin(), lengths.end()) + 7) / 8;
  std::vector<int64_t> all(static_cast<size_t>(words * ranks));
  if (!text.empty()) std::memcpy(&all[static_cast<size_t>(words * me)], text.data(), text.size());
  if (Status status = gather(all, "exchange of texts"); !status) return propagate(status);
  std::vector<std::string> texts;
  for (int r = 0; r < ranks; ++r)
    texts.emplace_back(reinterpret_cast<const char *>(all.data() + words * r),
                       static_cast<size_t>(lengths[static_cast<size_t>(r)]));
  sent = before; // it counts what plans move
  return texts;
}

} // namespace

Expected<std::unique_ptr<Transport>> connectGloo(const JobEnvironment &job) {
  Expected<std::unique_ptr<GlooGroup>> group = GlooGroup::connect(job);
  if (!group) return propagate(group);
  return std::make_unique<GlooTransport>(std::move(*group));
}

} // namespace tilewright::dist
