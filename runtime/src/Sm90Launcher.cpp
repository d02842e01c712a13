#include "Sm90Launcher.h"

#include "plan/ScheduleLimits.h"
#include "tilewright/cuda/Stream.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright {

namespace {

/// Tiles that are dealt together, longest first (TileGrid::sectionHeads): heads whose K and V stay in an H200's L2
/// (60 MB, each half of the SMs in its own half), or, on long sequences, as many as leave each head some blocks that
/// stream its K and V from memory together (templates/sm90/NOTES.md).
constexpr int64_t kSectionBytes = int64_t{32} << 20;
constexpr int64_t kStreamedHeads = 33, kLongSequence = 2048;

/// Heads of a section: whole groups of `group` that share K and V, in sections of one size.
int32_t sectionHeads(const KernelArgs &args, int64_t group, int64_t headBytes) {
  const int64_t columns = int64_t{args.batch} * args.headsKV;
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
    // The first launch may be on any stream. The default stream would wait for others, and end their captures.
    cuda::RelaxedCapture relaxed(device->api());
    auto stream = cuda::Stream::create(device);
    if (!stream) return propagate(stream);
    if (Status status = launcher->tickets.fill(0, stream->handle()); !status) return propagate(status);
    if (Status status = stream->synchronize(); !status) return propagate(status);
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

Status Sm90Launcher::encode(Sm90Launch::TensorMap &map, const char *name, const void *data, int64_t dim,
                            std::span<const Axis> axes) const {
  constexpr size_t mostAxes = 5; // TMA's
  uint64_t extents[mostAxes] = {static_cast<uint64_t>(dim)}, strides[mostAxes] = {};
  uint32_t box[mostAxes] = {kChunkColumns}, steps[mostAxes] = {1, 1, 1, 1, 1};
  for (size_t i = 0; i < axes.size(); ++i) {
    extents[i + 1] = static_cast<uint64_t>(std::max<int64_t>(axes[i].extent, 1));
    // An axis of one entry is never stepped along, so its stride is free; the driver wants a multiple of 16 all the
    // same.
    strides[i] = axes[i].extent > 1 ? static_cast<uint64_t>(axes[i].stride) * 2 : 16;
    box[i + 1] = axes[i].box;
  }
  const int type = plan.problem.dtype == DType::BF16 ? kBFloat16 : kFloat16;
  const int code =
      device->api().tensorMapEncodeTiled(&map, type, static_cast<unsigned>(axes.size() + 1), const_cast<void *>(data),
                                         extents, strides, box, steps, kNoInterleave, kSwizzle128, kPromote256, 0);
  if (code == cuda::kSuccess) return {};
  std::string text;
  for (size_t i = axes.size(); i-- > 0;)
    text += fmt::format("{} (stride {} bytes) x ", axes[i].extent, strides[i]);
  return device->driver().check(code, Stage::Launch, fmt::format("describe {}, {}{}, to TMA for", name, text, dim));
}

Status Sm90Launcher::encodeTensors(Sm90Launch &launch, const KernelArgs &args) const {
  const Problem &problem = plan.problem;
  const Schedule &schedule = plan.schedule;
  const auto tileQ = static_cast<uint32_t>(schedule.tileQ), tileKV = static_cast<uint32_t>(schedule.tileKV);
  // Rows of a head, heads, batch entries.
  auto rowsOf = [&](const TensorRef &tensor, int64_t rows, int64_t heads, uint32_t boxRows) {
    return std::array<Axis, 3>{Axis{rows, tensor.rowStride, boxRows}, Axis{heads, tensor.headStride},
                               Axis{args.batch, tensor.batchStride}};
  };
  const int64_t packed = packedHeads(schedule, problem);
  Status status;
  if (packed > 1) { // the heads of a group lie side by side in a tile (templates/sm90/PackedRows.cuh)
    const auto heads = static_cast<uint32_t>(packed);
    const Axis axes[] = {{packed, args.q.headStride, heads},
                         {args.seqQ, args.q.rowStride, tileQ / heads},
                         {args.headsKV, args.q.headStride * packed},
                         {args.batch, args.q.batchStride}};
    status = encode(launch.q, "q", args.q.data, problem.dimQK, axes);
  } else {
    status = encode(launch.q, "q", args.q.data, problem.dimQK, rowsOf(args.q, args.seqQ, args.headsQ, tileQ));
  }
  if (!status) return status;
  // Without keys K and V may have no memory; their maps are then never used, but must be valid.
  const TensorRef &k = args.seqKV ? args.k : args.q, &v = args.seqKV ? args.v : args.q;
  status = encode(launch.k, "k", k.data, problem.dimQK, rowsOf(k, args.seqKV, args.headsKV, tileKV));
  if (!status) return status;
  status = encode(launch.v, "v", v.data, problem.dimV, rowsOf(v, args.seqKV, args.headsKV, tileKV));
  // Packed and split kernels store O by themselves.
  if (!status || packed > 1 || schedule.splitKV > 1) return status;
  return encode(launch.o, "o", args.o.data, problem.dimV, rowsOf(args.o, args.seqQ, args.headsQ, kWarpBoxRows));
}

Expected<Sm90Launcher::Launch> Sm90Launcher::describe(void *stream, int64_t tiles, const KernelArgs &args) const {
  const Problem &problem = plan.problem;
  const Schedule &schedule = plan.schedule;
  cuda::CurrentContext current(device->api(), device->context(), device->handle());
  if (Status status = device->driver().check(current.code(), Stage::Launch, "make a context current"); !status)
    return propagate(status);
  Launch made;
  Sm90Launch &launch = made.parameter;
  if (Status status = encodeTensors(launch, args); !status) return propagate(status);

  const QueryTiles q = queryTiles(schedule, problem, args.seqQ, args.headsQ);
  launch.tiles = static_cast<int32_t>(q.tiles);
  launch.heads = static_cast<int32_t>(q.heads);
  launch.columns = args.batch * launch.heads;
  launch.sectionHeads =
      sectionHeads(args, q.heads / args.headsKV, int64_t{args.seqKV} * (problem.dimQK + problem.dimV) * 2);
  int64_t blocks = std::min<int64_t>(tiles, device->info().smCount);
  if (schedule.order == Order::LongestFirst) {
    launch.tickets = ticketsFor(stream);
    if (!launch.tickets) blocks = tiles; // the device deals them out, one a block
  }
  made.blocks = static_cast<unsigned>(blocks);
  return made;
}

} // namespace tilewright
