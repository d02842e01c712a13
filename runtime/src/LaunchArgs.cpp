// The grid of a launch, and what its arguments must satisfy.
#include "plan/ScheduleLimits.h"
#include "tilewright/Kernel.h"
#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace tilewright {
namespace {

constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
/// cp.async, ldmatrix and vector accesses move 16 bytes (PTX ISA).
constexpr uintptr_t kCudaAlignment = 16;

Status checkSize(const char *name, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return {};
  return fail(Stage::Launch, fmt::format("{}: expected 0 to {}, found {}", name, most, value));
}

struct NamedTensor {
  const char *name;
  const TensorRef &ref;
  int64_t heads, rows;
};

Status checkTensor(const NamedTensor &tensor, const KernelPlan &plan, int64_t batch) {
  if (!tensor.ref.data)
    return fail(Stage::Launch, fmt::format("{}: no data, but the {} kernel uses it", tensor.name, toString(plan.role)));
  if (plan.target.isCpu()) return {};
  if (reinterpret_cast<uintptr_t>(tensor.ref.data) % kCudaAlignment)
    return fail(
        Stage::Launch,
        fmt::format("{}: address {} is not a multiple of {} bytes", tensor.name, tensor.ref.data, kCudaAlignment),
        "copy the tensor into memory of its own");
  // A power of two, so that no division lies on the launch path.
  const int64_t multiple = static_cast<int64_t>(kCudaAlignment) / sizeInBytes(plan.problem.dtype);
  auto checkStride = [&](const char *axis, int64_t stride, int64_t extent) -> Status {
    if (extent <= 1 || (stride & (multiple - 1)) == 0) return {};
    return fail(Stage::Launch,
                fmt::format("{}: {} stride {} is not a multiple of {} elements ({} bytes)", tensor.name, axis, stride,
                            multiple, kCudaAlignment),
                "copy the tensor, or pad its rows");
  };
  if (Status status = checkStride("batch", tensor.ref.batchStride, batch); !status) return status;
  if (Status status = checkStride("head", tensor.ref.headStride, tensor.heads); !status) return status;
  return checkStride("row", tensor.ref.rowStride, tensor.rows);
}

Status checkRows(const char *name, const float *data, KernelRole role) {
  if (data) return {};
  return fail(Stage::Launch, fmt::format("{}: no data, but the {} kernel uses it", name, toString(role)),
              "lse comes from forward; delta is scratch: Attention::workspaceBytes() and useWorkspace()");
}

Status checkSums(const float *data, KernelRole role) {
  if (!data)
    return fail(Stage::Launch, fmt::format("dq_sums: no data, but the {} kernel uses it", toString(role)),
                "allocate dqSumsBytes() bytes and set them to zero before each launch of fused");
  if (reinterpret_cast<uintptr_t>(data) % kCudaAlignment == 0) return {};
  return fail(Stage::Launch, fmt::format("dq_sums: address {} is not a multiple of {} bytes",
                                         static_cast<const void *>(data), kCudaAlignment));
}

Status checkPartials(const float *data, KernelRole role) {
  constexpr uintptr_t alignment = 64; // a cache line, and the widest vector
  if (!data)
    return fail(Stage::Launch, fmt::format("partials: no data, but the {} kernel uses it", toString(role)),
                "allocate partialsBytes() bytes, and run merge after forward; or prepare forward with split_kv=1");
  if (reinterpret_cast<uintptr_t>(data) % alignment == 0) return {};
  return fail(Stage::Launch, fmt::format("partials: address {} is not a multiple of {} bytes",
                                         static_cast<const void *>(data), alignment));
}

} // namespace

int64_t partialsBytes(const KernelPlan &plan, const KernelArgs &args) {
  if (plan.schedule.splitKV == 1) return 0;
  const QueryTiles q = queryTiles(plan.schedule, plan.problem, std::max(args.seqQ, 0), std::max(args.headsQ, 0));
  return int64_t{std::max(args.batch, 0)} * q.heads * q.tiles * plan.schedule.tileQ * plan.schedule.splitKV *
         (plan.problem.dimV + 2) * 4;
}

int64_t dqSumsBytes(const KernelPlan &plan, const KernelArgs &args) {
  if (plan.role != KernelRole::Fused && plan.role != KernelRole::Convert) return 0;
  const int64_t tile = plan.schedule.tileQ, rows = (args.seqQ + tile - 1) / tile * tile;
  return int64_t{args.batch} * args.headsQ * rows * sumColumns(plan.schedule, plan.problem) * 4;
}

KernelArgs argsFor(const Problem &problem) {
  KernelArgs args;
  args.batch = static_cast<int32_t>(problem.batch);
  args.headsQ = static_cast<int32_t>(problem.headsQ);
  args.headsKV = static_cast<int32_t>(problem.headsKV);
  args.seqQ = static_cast<int32_t>(problem.seqQ);
  args.seqKV = static_cast<int32_t>(problem.seqKV);
  args.scale = static_cast<float>(problem.effectiveScale());
  return args;
}

Expected<int64_t> blockCount(const KernelPlan &plan, const KernelArgs &args) {
  constexpr int64_t int32Max = std::numeric_limits<int32_t>::max();
  if (Status status = checkSize("batch", args.batch, int32Max); !status) return propagate(status);
  if (Status status = checkSize("query heads", args.headsQ, int32Max); !status) return propagate(status);
  if (Status status = checkSize("kv heads", args.headsKV, int32Max); !status) return propagate(status);
  if (Status status = checkSize("query length", args.seqQ, kMaxSequence); !status) return propagate(status);
  if (Status status = checkSize("kv length", args.seqKV, kMaxSequence); !status) return propagate(status);

  const QueryTiles q = queryTiles(plan.schedule, plan.problem, args.seqQ, args.headsQ);
  const bool overKV = ownsKV(plan.role);
  const int64_t tileKV = plan.schedule.tileKV, tiles = overKV ? (args.seqKV + tileKV - 1) / tileKV : q.tiles,
                heads = overKV ? args.headsKV : q.heads;
  const int64_t parts = plan.role == KernelRole::Forward ? plan.schedule.splitKV : 1;
  int64_t blocks = 0;
  if (__builtin_mul_overflow(tiles * heads, args.batch * parts, &blocks) || blocks > kMaxBlocks)
    return fail(Stage::Launch,
                fmt::format("{} tiles x {} heads x {} batch entries{} are more than {} blocks", tiles, heads,
                            args.batch, parts > 1 ? fmt::format(" x {} parts", parts) : "", kMaxBlocks),
                "split the batch over several launches, or use larger tiles");
  return blocks;
}

Status checkArgs(const KernelPlan &plan, const KernelArgs &args) {
  const int64_t group = plan.problem.groupSize();
  // Delta and Merge go by query heads alone: one kernel serves every ratio (KernelPlan::canonicalText).
  const bool servesEveryRatio = plan.role == KernelRole::Delta || plan.role == KernelRole::Merge;
  if (!servesEveryRatio && args.headsQ != args.headsKV * group)
    return fail(Stage::Launch,
                fmt::format("heads: the kernel was made for {} query heads a kv head, found {} and {}", group,
                            args.headsQ, args.headsKV),
                "prepare a kernel for this ratio");
  const bool keys = args.seqKV > 0, queries = args.seqQ > 0;
  const NamedTensor q{"q", args.q, args.headsQ, args.seqQ}, o{"o", args.o, args.headsQ, args.seqQ},
      dO{"do", args.dO, args.headsQ, args.seqQ}, dQ{"dq", args.dQ, args.headsQ, args.seqQ},
      k{"k", args.k, args.headsKV, args.seqKV}, v{"v", args.v, args.headsKV, args.seqKV},
      dK{"dk", args.dK, args.headsKV, args.seqKV}, dV{"dv", args.dV, args.headsKV, args.seqKV};
  struct Use {
    const NamedTensor &tensor;
    bool used;
  };
  auto check = [&](std::initializer_list<Use> uses, bool lse, bool delta, bool dqSums = false) -> Status {
    for (const Use &use : uses)
      if (use.used)
        if (Status status = checkTensor(use.tensor, plan, args.batch); !status) return status;
    if (lse)
      if (Status status = checkRows("lse", args.lse, plan.role); !status) return status;
    if (delta)
      if (Status status = checkRows("delta", args.delta, plan.role); !status) return status;
    return dqSums ? checkSums(args.dqSums, plan.role) : Status();
  };
  Status tensors;
  switch (plan.role) {
  case KernelRole::Forward:
    if (plan.schedule.splitKV > 1) {
      tensors = check({{q, true}, {k, keys}, {v, keys}}, false, false);
      if (tensors) tensors = checkPartials(args.partials, plan.role);
    } else {
      tensors = check({{q, true}, {k, keys}, {v, keys}, {o, true}}, true, false);
    }
    break;
  case KernelRole::Merge:
    tensors = check({{o, true}}, true, false);
    if (tensors) tensors = checkPartials(args.partials, plan.role);
    break;
  case KernelRole::Delta:
    tensors = check({{o, true}, {dO, true}}, false, true);
    break;
  case KernelRole::DQ:
    tensors = check({{q, true}, {k, keys}, {v, keys}, {dO, true}, {dQ, true}}, true, true);
    break;
  case KernelRole::DKV:
    tensors = check({{q, queries}, {k, true}, {v, true}, {dO, queries}, {dK, true}, {dV, true}}, queries, queries);
    break;
  case KernelRole::Fused:
    tensors =
        check({{q, queries}, {k, true}, {v, true}, {dO, queries}, {dK, true}, {dV, true}}, queries, queries, queries);
    break;
  case KernelRole::Convert:
    tensors = check({{k, keys}, {dQ, true}}, false, false, true);
    break;
  }
  if (!tensors) return tensors;
  // Delta and Merge work on stored values alone, and so does Convert unless it samples keys that the mask shows.
  const bool reads = plan.role != KernelRole::Delta && plan.role != KernelRole::Merge &&
                     (plan.role != KernelRole::Convert || centresSums(plan.problem));
  for (size_t i = 0; reads && i < plan.problem.tables.size() && i < kMaxTables; ++i)
    if (!args.tables[i].data && keys && queries)
      return fail(Stage::Launch,
                  fmt::format("table {}: no data, but the mask or score reads it", plan.problem.tables[i].name));
  return {};
}

} // namespace tilewright
