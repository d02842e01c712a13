#include "Sm90Launcher.h"

#include "plan/ScheduleLimits.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright {

namespace {

/// Tiles that are dealt together, longest first (TileGrid::sectionHeads): heads whose K and V stay in an H200's L2
/// (60 MB, each half of the SMs in its own half), or, on long sequences, as many as leave each head some blocks that
/// stream its K and V from memory together (templates/sm90/NOTES.md).
constexpr int64_t kSectionBytes = int64_t{32} << 20;
constexpr int64_t kStreamedHeads = 33, kLongSequence = 2048;

/// Heads of a section: whole groups of those that share K and V, in sections of one size.
int32_t sectionHeads(const KernelArgs &args, int64_t headBytes) {
  const int64_t group = args.headsQ / args.headsKV, columns = int64_t{args.batch} * args.headsKV;
  int64_t most = std::max<int64_t>(1, kSectionBytes / std::max<int64_t>(1, headBytes));
  if (args.seqKV >= kLongSequence) most = std::max(most, kStreamedHeads / group);
  const int64_t sections = (columns + most - 1) / most;
  return static_cast<int32_t>((columns + sections - 1) / sections * group);
}

constexpr int64_t kTicketBytes = 64;
/// cuTensorMapEncodeTiled's enumerations.
enum TensorMapConstant : int { kFloat16 = 6, kBFloat16 = 9, kNoInterleave = 0, kSwizzle128 = 3, kPromote256 = 3 };
constexpr int kChunkColumns = 64, kWarpBoxRows = 16;

} // namespace

Expected<std::unique_ptr<Sm90Launcher>> Sm90Launcher::make(const KernelPlan &plan,
                                                           std::shared_ptr<const cuda::Device> device) {
  if (!device->api().tensorMapEncodeTiled)
    return fail(Stage::Load, "the driver has no cuTensorMapEncodeTiled, which kernels of sm_90a need",
                "update the driver to one for CUDA 12, or choose --target sm_90");
  std::unique_ptr<Sm90Launcher> launcher(new Sm90Launcher(plan, device));
  if (plan.schedule.order == Order::LongestFirst && device->api().streamGetId) {
    auto memory = cuda::DeviceMemory::allocate(device, kPlaces * kTicketBytes);
    if (!memory) return propagate(memory);
    launcher->tickets = std::move(*memory);
    if (Status status = launcher->tickets.fill(0); !status) return propagate(status);
    // The first launch may be on any stream.
    cuda::CurrentContext current(device->api(), device->context(), device->handle());
    if (Status status = device->driver().check(device->api().streamSynchronize(nullptr), Stage::Load, "clear tickets");
        !status)
      return propagate(status);
  }
  return launcher;
}

uint32_t *Sm90Launcher::ticketsFor(void *stream) const {
  const cuda::DriverApi &api = device->api();
  unsigned long long id = 0;
  int capturing = 0;
  // A captured launch may run beside itself later, so it gets no place.
  if (!tickets.data() || api.streamIsCapturing(stream, &capturing) != cuda::kSuccess || capturing ||
      api.streamGetId(stream, &id) != cuda::kSuccess)
    return nullptr;
  const uint64_t owner = id + 1;
  for (int probe = 0; probe < kPlaces; ++probe) {
    const int place = static_cast<int>((owner + probe) % kPlaces);
    uint64_t found = owners[place].load(std::memory_order_relaxed);
    if (found == owner || (found == 0 && (owners[place].compare_exchange_strong(found, owner) || found == owner)))
      return reinterpret_cast<uint32_t *>(static_cast<char *>(tickets.data()) + place * kTicketBytes);
  }
  return nullptr;
}

Status Sm90Launcher::encode(Sm90Launch::TensorMap &map, const char *name, const TensorRef &tensor, int64_t dim,
                            int64_t rows, int64_t heads, int64_t batch, uint32_t boxRows) const {
  const uint64_t extents[] = {static_cast<uint64_t>(dim), static_cast<uint64_t>(std::max<int64_t>(rows, 1)),
                              static_cast<uint64_t>(heads), static_cast<uint64_t>(batch)};
  // An axis of one entry is never stepped along, so its stride is free; the driver wants a multiple of 16 all the same.
  auto bytes = [](int64_t extent, int64_t stride) { return extent > 1 ? static_cast<uint64_t>(stride) * 2 : 16; };
  const uint64_t strides[] = {bytes(rows, tensor.rowStride), bytes(heads, tensor.headStride),
                              bytes(batch, tensor.batchStride)};
  const uint32_t box[] = {kChunkColumns, boxRows, 1, 1}, steps[] = {1, 1, 1, 1};
  const int type = plan.problem.dtype == DType::BF16 ? kBFloat16 : kFloat16;
  const int code = device->api().tensorMapEncodeTiled(&map, type, 4, tensor.data, extents, strides, box, steps,
                                                      kNoInterleave, kSwizzle128, kPromote256, 0);
  if (code == cuda::kSuccess) return {};
  return device->driver().check(code, Stage::Launch,
                                fmt::format("describe {} ({} x {} x {} x {}, strides {}, {}, {} bytes) to TMA for",
                                            name, batch, heads, rows, dim, strides[2], strides[1], strides[0]));
}

Expected<Sm90Launcher::Launch> Sm90Launcher::describe(void *stream, int64_t tiles, const KernelArgs &args) const {
  const Problem &problem = plan.problem;
  const Schedule &schedule = plan.schedule;
  cuda::CurrentContext current(device->api(), device->context(), device->handle());
  if (Status status = device->driver().check(current.code(), Stage::Launch, "make a context current"); !status)
    return propagate(status);
  Launch made;
  Sm90Launch &launch = made.parameter;
  const auto tileQ = static_cast<uint32_t>(schedule.tileQ), tileKV = static_cast<uint32_t>(schedule.tileKV);
  // Without keys K and V may have no memory; their maps are then never used, but must be valid.
  const TensorRef &k = args.seqKV ? args.k : args.q, &v = args.seqKV ? args.v : args.o;
  if (Status status = encode(launch.q, "q", args.q, problem.dimQK, args.seqQ, args.headsQ, args.batch, tileQ); !status)
    return propagate(status);
  if (Status status = encode(launch.k, "k", k, problem.dimQK, args.seqKV, args.headsKV, args.batch, tileKV); !status)
    return propagate(status);
  if (Status status = encode(launch.v, "v", v, problem.dimV, args.seqKV, args.headsKV, args.batch, tileKV); !status)
    return propagate(status);
  if (Status status = encode(launch.o, "o", args.o, problem.dimV, args.seqQ, args.headsQ, args.batch, kWarpBoxRows);
      !status)
    return propagate(status);

  launch.columns = args.batch * args.headsQ;
  launch.tiles = static_cast<int32_t>(tiles / launch.columns);
  launch.heads = args.headsQ;
  launch.sectionHeads = sectionHeads(args, int64_t{args.seqKV} * (problem.dimQK + problem.dimV) * 2);
  int64_t blocks = std::min<int64_t>(tiles, device->info().smCount);
  if (schedule.order == Order::LongestFirst) {
    launch.tickets = ticketsFor(stream);
    if (!launch.tickets) blocks = tiles; // the device deals them out, one a block
  }
  made.blocks = static_cast<unsigned>(blocks);
  return made;
}

} // namespace tilewright
