// A stand-in for libnccl; see FakeNccl.h. Ranks of one id meet at a barrier in every collective.
#include "FakeNccl.h"
#include "nccl/NcclLibrary.h"
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

using tilewright::dist::NcclConfig;
using tilewright::dist::NcclUniqueId;

FakeNccl state;

/// The ranks of one id.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  int ranks = 0, arrived = 0;
  int64_t round = 0;
  bool aborted = false;
  std::vector<const void *> sources;
  std::map<std::pair<int, int>, std::vector<std::string>> messages;

  /// False when the clique was aborted meanwhile.
  bool meet() {
    std::unique_lock lock(mutex);
    const int64_t mine = round;
    if (++arrived == ranks) {
      arrived = 0;
      ++round;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return aborted || round != mine; });
    return !aborted;
  }
};
struct Communicator {
  Clique *clique;
  int rank;
};

std::mutex cliquesMutex;
std::map<std::string, Clique *> cliques;

size_t sizeOf(int type) { return type == 8 ? 8 : type == 9 || type == 6 ? 2 : 4; }

template <class T> void sum(const std::vector<const void *> &sources, T *to, size_t begin, size_t count) {
  for (size_t i = begin; i < begin + count; ++i) {
    T total = 0;
    for (const void *source : sources)
      total += static_cast<const T *>(source)[i];
    to[i - begin] = total;
  }
}

/// Runs `body` on every rank with all ranks' sources, then writes what it returns to `to`.
template <class Body> int together(void *opaque, const void *from, void *to, Body body) {
  auto &me = *static_cast<Communicator *>(opaque);
  {
    std::lock_guard lock(me.clique->mutex);
    me.clique->sources.resize(static_cast<size_t>(me.clique->ranks));
    me.clique->sources[static_cast<size_t>(me.rank)] = from;
  }
  if (!me.clique->meet()) return 3;
  const std::string result = body(me.clique->sources, me.rank);
  if (!me.clique->meet()) return 3;
  std::memcpy(to, result.data(), result.size());
  return me.clique->meet() ? 0 : 3;
}

std::string sums(const std::vector<const void *> &sources, size_t begin, size_t count, int type) {
  std::string result(count * sizeOf(type), '\0');
  if (type == 8)
    sum(sources, reinterpret_cast<double *>(result.data()), begin, count);
  else
    sum(sources, reinterpret_cast<float *>(result.data()), begin, count);
  return result;
}

} // namespace

extern "C" {

FakeNccl *fakeNccl() { return &state; }

int ncclGetVersion(int *version) { return *version = state.version, 0; }
const char *ncclGetErrorString(int code) { return code == 6 ? "remote process exited" : "a fake error"; }
const char *ncclGetLastError(void *) { return "the last words"; }
int ncclGetUniqueId(NcclUniqueId *id) {
  static std::atomic<int> next{1};
  std::memset(id->bytes, 0, sizeof(id->bytes));
  const int number = next++;
  return std::memcpy(id->bytes, &number, sizeof(number)), 0;
}
int ncclCommInitRankConfig(void **communicator, int ranks, NcclUniqueId id, int rank, NcclConfig *config) {
  if (config->magic != 0xcafebeef || config->size != sizeof(NcclConfig)) return 4;
  if (config->blocking != 0) ++state.blocking;
  std::lock_guard lock(cliquesMutex);
  Clique *&clique = cliques[std::string(id.bytes, sizeof(id.bytes))];
  if (!clique) clique = new Clique;
  clique->ranks = ranks;
  ++state.communicators;
  return *communicator = new Communicator{clique, rank}, 7;
}
int ncclCommGetAsyncError(void *, int *code) {
  if (state.inProgress > 0) return --state.inProgress, *code = 7, 0;
  return *code = state.asyncError, 0;
}
int ncclCommFinalize(void *) { return ++state.finalized, 0; }
int ncclCommDestroy(void *communicator) {
  --state.communicators;
  return delete static_cast<Communicator *>(communicator), 0;
}
int ncclCommAbort(void *opaque) {
  auto *communicator = static_cast<Communicator *>(opaque);
  ++state.aborts;
  --state.communicators;
  {
    std::lock_guard lock(communicator->clique->mutex);
    communicator->clique->aborted = true;
    communicator->clique->changed.notify_all();
  }
  return 0;
}
int ncclCommRegister(void *, void *, size_t, void **handle) { return ++state.registered, *handle = &state, 0; }
int ncclCommDeregister(void *, void *) { return --state.registered, 0; }
int ncclMemAlloc(void **data, size_t bytes) { return ++state.allocations, *data = std::malloc(bytes), 0; }
int ncclMemFree(void *data) { return --state.allocations, std::free(data), 0; }
int ncclGroupStart() { return ++state.groups, 0; }
int ncclGroupEnd() { return 0; }

int ncclAllReduce(const void *from, void *to, size_t count, int type, int, void *communicator, void *) {
  return together(communicator, from, to, [&](auto &all, int) { return sums(all, 0, count, type); });
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int, void *communicator, void *) {
  return together(communicator, from, to,
                  [&](auto &all, int rank) { return sums(all, static_cast<size_t>(rank) * count, count, type); });
}
int ncclAllGather(const void *from, void *to, size_t count, int type, void *communicator, void *) {
  return together(communicator, from, to, [&](auto &all, int) {
    std::string result;
    for (const void *source : all)
      result.append(static_cast<const char *>(source), count * sizeOf(type));
    return result;
  });
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *communicator, void *) {
  return together(communicator, from, to, [&](auto &all, int) {
    return std::string(static_cast<const char *>(all[static_cast<size_t>(root)]), count * sizeOf(type));
  });
}
int ncclSend(const void *from, size_t count, int type, int peer, void *opaque, void *) {
  auto &me = *static_cast<Communicator *>(opaque);
  std::lock_guard lock(me.clique->mutex);
  me.clique->messages[{me.rank, peer}].emplace_back(static_cast<const char *>(from), count * sizeOf(type));
  return me.clique->changed.notify_all(), 0;
}
int ncclRecv(void *to, size_t count, int type, int peer, void *opaque, void *) {
  auto &me = *static_cast<Communicator *>(opaque);
  std::unique_lock lock(me.clique->mutex);
  auto &box = me.clique->messages[{peer, me.rank}];
  me.clique->changed.wait(lock, [&] { return me.clique->aborted || !box.empty(); });
  if (me.clique->aborted || box.front().size() != count * sizeOf(type)) return 3;
  std::memcpy(to, box.front().data(), box.front().size());
  return box.erase(box.begin()), 0;
}
}
