#include "tilewright/distributed/plan/PlanCheck.h"
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace tilewright::dist {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 56;
constexpr auto R = Access::Read, W = Access::Write, RW = Access::ReadWrite;

/// The accesses an op of this kind has, in order; `repeats` if the last may come several times.
struct Signature {
  std::vector<Access> accesses;
  bool repeats = false;
  size_t optional = 0; ///< Trailing accesses that may be missing.
};

Signature signatureOf(OpKind kind) {
  switch (kind) {
  case OpKind::Forward:
    return {{R}, true};
  case OpKind::Accumulate:
    return {{R, RW}};
  case OpKind::Backward:
    return {{RW}};
  case OpKind::Finish:
  case OpKind::Convert:
  case OpKind::SquaredNorm:
    return {{R, W}};
  case OpKind::Scale:
    return {{R, W}};
  case OpKind::AdamW:
    return {{R, R, RW, RW, RW, RW}, false, 1};
  case OpKind::AllReduce:
  case OpKind::ReduceScatter:
  case OpKind::AllGather:
  case OpKind::Broadcast:
    return {{RW}};
  case OpKind::Send:
    return {{R}};
  case OpKind::Receive:
    return {{W}};
  }
  return {};
}

tl::unexpected<Error> refuse(const StepOp &op, const std::string &message) {
  return fail(Stage::Plan, fmt::format("plan: {} {}: {}", toString(op.kind), op.name, message));
}

Status checkUses(const StepPlan &plan, const StepOp &op) {
  const Signature signature = signatureOf(op.kind);
  const size_t expected = signature.accesses.size(), found = op.uses.size();
  if (found + signature.optional < expected || (found > expected && !signature.repeats))
    return refuse(op, fmt::format("expected {} uses, found {}", expected, found));
  for (size_t i = 0; i < found; ++i) {
    const Use &use = op.uses[i];
    if (use.access != signature.accesses[std::min(i, expected - 1)])
      return refuse(op, fmt::format("use {}: wrong access to {}", i, spanText(plan, use.span)));
    if (use.span.buffer < 0 || use.span.buffer >= static_cast<int>(plan.buffers.size()))
      return refuse(op, fmt::format("use {}: buffer {} does not exist", i, use.span.buffer));
    const PlanBuffer &buffer = plan.buffers[static_cast<size_t>(use.span.buffer)];
    for (int rank = 0; rank < plan.worldSize; ++rank) {
      if (op.rank >= 0 && rank != op.rank) continue;
      if (use.span.begin < 0 || use.span.count < 0 || use.span.begin > buffer.elementsOn(rank) ||
          use.span.count > buffer.elementsOn(rank) - use.span.begin)
        return refuse(op, fmt::format("{} is outside of its buffer, which has {} elements on rank {}",
                                      spanText(plan, use.span), buffer.elementsOn(rank), rank));
    }
    const bool cut = use.span.part == Part::Shard || op.kind == OpKind::ReduceScatter || op.kind == OpKind::AllGather;
    if (cut && use.span.count % plan.worldSize)
      return refuse(op, fmt::format("{} has {} elements, which {} ranks do not divide", spanText(plan, use.span),
                                    use.span.count, plan.worldSize));
    if (op.kind >= OpKind::AllReduce && use.span.part == Part::Shard)
      return refuse(op, "communication names whole spans; whose part is whose follows from the kind");
  }
  return {};
}

int64_t sizeOn(const Use &use, int worldSize) {
  return use.span.part == Part::Shard ? use.span.count / worldSize : use.span.count;
}

Status checkKind(const StepPlan &plan, const StepOp &op) {
  auto type = [&](size_t use) { return plan.buffers[static_cast<size_t>(op.uses[use].span.buffer)].type; };
  auto size = [&](size_t use) { return sizeOn(op.uses[use], plan.worldSize); };
  auto expectType = [&](size_t use, ElementType expected) -> Status {
    if (type(use) == expected) return {};
    return refuse(op, fmt::format("{} must be {}, but is {}", spanText(plan, op.uses[use].span), toString(expected),
                                  toString(type(use))));
  };
  auto expectSize = [&](size_t use, int64_t expected) -> Status {
    if (size(use) == expected) return {};
    return refuse(op, fmt::format("{} must have {} elements, but has {}", spanText(plan, op.uses[use].span), expected,
                                  size(use)));
  };
  switch (op.kind) {
  case OpKind::Backward:
    if (op.parameter < 0 || op.parameter >= static_cast<int>(plan.parameters.size()))
      return refuse(op, fmt::format("parameter {} does not exist; there are {}", op.parameter, plan.parameters.size()));
    if (const PlanParameter &p = plan.parameters[static_cast<size_t>(op.parameter)];
        op.uses[0].span.begin != p.begin || size(0) != p.elements())
      return refuse(op, fmt::format("{} is not where the gradient of {} lies, [{}, {})",
                                    spanText(plan, op.uses[0].span), p.name, p.begin, p.begin + p.elements()));
    break;
  case OpKind::Finish:
    if (Status s = expectType(1, ElementType::F64); !s) return s;
    if (size(1) < 1) return refuse(op, "writes no token count");
    return {};
  case OpKind::Convert:
    if (type(0) == type(1)) return refuse(op, "both element types are the same; use the buffer in place");
    return expectSize(1, size(0));
  case OpKind::SquaredNorm:
    if (Status s = expectType(1, ElementType::F64); !s) return s;
    return expectSize(1, plan.worldSize);
  case OpKind::Scale:
    for (size_t use : {0, 1})
      if (Status s = expectType(use, ElementType::F64); !s) return s;
    if (size(0) < 1) return refuse(op, "reads no token count");
    return expectSize(1, 2);
  case OpKind::AdamW: {
    if (Status s = expectType(1, ElementType::F64); !s) return s;
    if (Status s = expectSize(1, 2); !s) return s;
    for (size_t use = 2; use < op.uses.size(); ++use)
      if (Status s = expectSize(use, size(0)); !s) return s;
    for (size_t use = 3; use < op.uses.size(); ++use)
      if (Status s = expectType(use, ElementType::F32); !s) return s;
    const bool needsMaster = type(2) != ElementType::F32;
    if (needsMaster != (op.uses.size() == 6))
      return refuse(op, needsMaster ? "parameters of 16 bits need fp32 master weights as sixth use"
                                    : "fp32 parameters are their own master weights");
    break;
  }
  case OpKind::Broadcast:
    if (op.root < 0 || op.root >= plan.worldSize)
      return refuse(op, fmt::format("root {} is not a rank; there are {}", op.root, plan.worldSize));
    break;
  default:
    break;
  }
  return {};
}

} // namespace

Status checkStructure(const StepPlan &plan) {
  if (plan.worldSize < 1 || plan.accumulation < 1)
    return fail(Stage::Plan, fmt::format("plan: expected at least one rank and one micro-batch, found {} and {}",
                                         plan.worldSize, plan.accumulation));
  std::set<std::string_view> names;
  for (const PlanBuffer &buffer : plan.buffers) {
    if (buffer.name.empty() || !names.insert(buffer.name).second)
      return fail(Stage::Plan, fmt::format("plan: two buffers are called '{}'", buffer.name));
    if (buffer.elements.size() != 1 && buffer.elements.size() != static_cast<size_t>(plan.worldSize))
      return fail(Stage::Plan, fmt::format("plan: buffer {}: expected one number of elements, or {}, found {}",
                                           buffer.name, plan.worldSize, buffer.elements.size()));
    for (int64_t elements : buffer.elements)
      if (elements < 0 || elements > kMostElements)
        return fail(Stage::Plan,
                    fmt::format("plan: buffer {}: expected 0 to 2^56 elements, found {}", buffer.name, elements));
  }
  names.clear();
  for (const PlanParameter &p : plan.parameters) {
    if (!names.insert(p.name).second)
      return fail(Stage::Plan, fmt::format("plan: two parameters are called '{}'", p.name));
    int64_t elements = 1;
    bool fits = p.begin >= 0 && p.begin <= kMostElements;
    for (int64_t extent : p.shape)
      fits = fits && extent >= 0 && !__builtin_mul_overflow(elements, extent, &elements);
    if (!fits || elements > kMostElements)
      return fail(Stage::Plan,
                  fmt::format("plan: parameter {}: shape ({}) at element {} is negative or above 2^56 elements", p.name,
                              fmt::join(p.shape, ", "), p.begin));
    if (!(p.weightDecay >= 0) || std::isinf(p.weightDecay))
      return fail(Stage::Plan, fmt::format("plan: parameter {}: weight decay {}", p.name, p.weightDecay));
  }
  names.clear();
  int finishes = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const StepOp &op = plan.ops[i];
    if (!names.insert(op.name).second) return fail(Stage::Plan, fmt::format("plan: two ops are called '{}'", op.name));
    if (isHost(op.kind) != (op.lane == Lane::Host))
      return refuse(
          op, fmt::format("runs on lane {}; the host's ops and only they belong on lane host", toString(op.lane)));
    if (op.rank < -1 || op.rank >= plan.worldSize)
      return refuse(op, fmt::format("rank {} does not exist; there are {}", op.rank, plan.worldSize));
    finishes += op.kind == OpKind::Finish;
    if (Status status = checkUses(plan, op); !status) return status;
    if (Status status = checkKind(plan, op); !status) return status;
    for (const Wait &wait : op.waits) {
      if (wait.op < 0 || wait.op >= static_cast<int>(plan.ops.size()))
        return refuse(op, fmt::format("waits for op {}, which does not exist", wait.op));
      if (!wait.previousStep && wait.op >= static_cast<int>(i))
        return refuse(op, fmt::format("waits for {}, which comes later in the step: it would wait for ever",
                                      plan.ops[static_cast<size_t>(wait.op)].name));
    }
  }
  if (finishes != 1) return fail(Stage::Plan, fmt::format("plan: expected one finish op, found {}", finishes));
  return {};
}

} // namespace tilewright::dist
