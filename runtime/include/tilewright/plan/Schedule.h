// How a kernel is cut and ordered. A pure value: the autotuner searches it, and a user may set any field.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/plan/Problem.h"
#include "tilewright/plan/Target.h"
#include <map>
#include <optional>

namespace tilewright TILEWRIGHT_PUBLIC {

/// Which kernel of a problem. Forward needs one; backward runs Delta, then the kernels of its strategy (Backward).
enum class KernelRole {
  Forward, ///< O and LSE; with Schedule::splitKV above 1 the parts' states, which Merge turns into O and LSE
  Delta,   ///< delta = rowsum(dO * O), the softmax gradient's row constant (FlashAttention-2, algorithm 2 line 4)
  DQ,      ///< dQ, one block a q tile
  DKV,     ///< dK and dV, one block a kv tile; loops over the q heads of the group
  Fused,   ///< DKV that also adds dS K to fp32 sums of dQ in global memory (FlashAttention-2, algorithm 2 line 15)
  Convert, ///< dQ from Fused's sums, one block a q tile
  Merge,   ///< O and LSE from the states of a split Forward, one block a q tile
};

/// The two ways to compute gradients.
enum class Backward {
  TwoKernel, ///< DKV and DQ, which do not depend on each other: seven matrix products, the same bits in every run
  Fused,     ///< Fused, then Convert: five products and so faster, but blocks add to dQ in the order they arrive, so
             ///< its last bits differ from run to run. CUDA, bf16 and fp16
};

/// Whether a role belongs to the forward pass.
constexpr bool isForward(KernelRole role) { return role == KernelRole::Forward || role == KernelRole::Merge; }

std::string_view toString(KernelRole role); ///< "forward", "delta", "dq", "dkv", "fused", "convert", "merge"
Expected<KernelRole> parseKernelRole(std::string_view text);
std::string_view toString(Backward strategy); ///< "two_kernel", "fused"
Expected<Backward> parseBackward(std::string_view text);
/// The kernels that compute one direction, in launch order: backward starts from a forward's O and LSE.
/// Merge belongs to a forward whose schedule says so: forwardRoles().
std::vector<KernelRole> rolesOf(Direction direction, Backward strategy = Backward::TwoKernel);

/// In which order blocks take tiles.
enum class Order {
  Plain,        ///< q tiles (DKV: kv tiles) ascending
  LongestFirst, ///< tiles with most work first, so that the last wave is short
};

/// What a Hopper kernel's softmax runs under.
enum class Overlap {
  None,     ///< Other warp groups' products as they fall
  Intra,    ///< The group's own product of P and V (FlashAttention-3, section 3.2)
  PingPong, ///< Another group's products: groups take turns at the tensor cores (section 3.1)
  Both,
};
constexpr bool overlapsWithin(Overlap overlap) { return overlap == Overlap::Intra || overlap == Overlap::Both; }
constexpr bool overlapsBetween(Overlap overlap) { return overlap == Overlap::PingPong || overlap == Overlap::Both; }

/// What keeps a schedule from running.
enum class ScheduleLimit {
  None,
  Form, ///< Fields out of range, or that do not divide each other as the kernel needs it.
  SharedMemory,
  Registers,
};

struct Schedule {
  int tileQ = 64;  ///< Rows of q a block owns (DKV, Fused: streams at a time).
  int tileKV = 64; ///< Rows of k and v a block streams at a time (DKV, Fused: owns).
  int stages = 2;  ///< Depth of the ring of streamed tiles in shared memory; 1 loads and computes in turn. CPU: 1.
  int warps = 4;   ///< Warps of a block. They split the owned rows, 16 or 32 rows each. CPU: 1. Hopper's forward: the
                   ///< consumers, 16 rows each.
  int columnWarps = 1; ///< DKV, Fused on GPUs: so many warps share their rows, split the columns, hand each other P and
                       ///< dS through shared memory. 1 keeps them in registers. Elsewhere 1.
  int blocksPerSM = 1; ///< Blocks an SM should hold; bounds the registers of a thread. CPU: 1.
  Order order = Order::Plain;      ///< Hopper's forward, whose grid is persistent: plain deals tiles in rounds,
                                   ///< longest_first gives the next one to the block that is free.
  Overlap overlap = Overlap::None; ///< Hopper's forward; elsewhere none.
  int splitKV = 1; ///< Forward: a q tile's visited kv tiles are dealt in order to so many blocks, as evenly as they can
                   ///< be; each writes its state (m, l, o), and Merge adds the states up. For few queries over many
                   ///< keys, which leave processors idle otherwise. CPU and Hopper's forward; elsewhere 1.
  bool packHeads = false; ///< Hopper's forward: the query heads of a kv head share q tiles, tile_q / group queries of
                          ///< each, so that K and V are read once for all of them. For few queries (decoding).
  double rescaleThreshold = 0; ///< The accumulator is rescaled only when a row's maximum grew by more than this, in
                               ///< log2 units; 0 always rescales. Exact after normalisation. At most 16. CPU: 0.

  bool operator==(const Schedule &) const = default;

  /// A good schedule without measuring. Delta reads tileQ and warps only. Convert's follows the default Fused: tileQ
  /// and columnWarps say how the sums lie. Merge's follows the default Forward: tileQ and splitKV say how states lie.
  static Schedule defaultFor(const Problem &problem, const Target &target, KernelRole role);

  /// Refuses what cannot run, naming the field, its value and the limit it breaks.
  Status validate(const Problem &problem, const Target &target, KernelRole role) const;

  /// The limit that validate() finds broken first.
  ScheduleLimit brokenLimit(const Problem &problem, const Target &target, KernelRole role) const;

  /// Dynamic shared memory a block needs, in bytes; 0 on the CPU.
  int64_t sharedBytes(const Problem &problem, const Target &target, KernelRole role) const;

  /// Registers a thread needs, estimated from its accumulators; 0 on the CPU and for Delta. What ptxas really takes is
  /// in the compile report.
  int registersPerThread(const Problem &problem, const Target &target, KernelRole role) const;

  /// Fused: warps along the rows of dQ's tile; the others split its columns. The squarest split into whole 16 x 16
  /// blocks (a warp then reads least of dS and K for what it computes); 0 where none is.
  int rowWarpsOfDQ(const Problem &problem) const;

  /// "tile_q=128,tile_kv=64,stages=2,warps=4,column_warps=1,blocks_per_sm=2,order=plain,overlap=none,split_kv=1,pack_heads=false,rescale_threshold=0"
  std::string canonicalText() const;
};

/// What a user sets by `--schedule tile_q=128,dkv.tile_kv=64`: a field for every kernel or, with a role before it, for
/// one.
class ScheduleOverrides {
public:
  /// Fields are tile_q, tile_kv, stages, warps, order (plain | longest_first), overlap (none | intra |
  /// ping_pong | both), split_kv, pack_heads (true | false), rescale_threshold.
  /// `backward=two_kernel` or `backward=fused` chooses the strategy; it takes no role before it. Fields of dq and dkv
  /// choose two_kernel too, those of fused fused. Convert follows Fused and Merge follows Forward: they have no fields
  /// of their own. Errors list the names and the accepted values.
  static Expected<ScheduleOverrides> parse(std::string_view text);
  /// The same as an object: {"tile_q": 128, "dkv.tile_kv": 64, "backward": "fused"}.
  static Expected<ScheduleOverrides> fromJson(const nlohmann::json &json);
  /// The fields that apply to `role` replaced in `schedule`; role-specific ones win over general ones.
  Status apply(KernelRole role, Schedule &schedule) const;
  bool empty() const { return fields.empty() && !strategy; }
  /// The strategy set by `backward=`, or chosen by a field of one of its kernels.
  std::optional<Backward> backward() const { return strategy; }

private:
  Status settleStrategy();

  std::map<std::string, std::string> fields; ///< "tile_q" or "dkv.tile_q" -> value
  std::optional<Backward> strategy;
};

/// Query heads of one kv head that share a q tile: the problem's group where heads are packed, else 1.
int64_t packedHeads(const Schedule &schedule, const Problem &problem);
/// The q tiles of a forward and of its merge: positions in each, tiles of a head (or, packed, of a group of heads), and
/// so many heads or groups a batch entry.
struct QueryTiles {
  int64_t positions, tiles, heads;
};
QueryTiles queryTiles(const Schedule &schedule, const Problem &problem, int64_t seqQ, int64_t headsQ);

/// The kernels that one forward takes, in launch order: Forward, and Merge after it where the schedule splits keys.
std::vector<KernelRole> forwardRoles(const Schedule &forward);

/// The strategy for a problem's gradients that a user leaves open: Fused on CUDA targets for bf16 and fp16 with dims
/// up to 128 where the measured schedule fits the target's shared memory (sm_80 and newer at dims up to 64, sm_90 and
/// newer datacentre parts up to 128), else TwoKernel.
Backward defaultBackward(const Problem &problem, const Target &target);

/// The kernels of a problem's gradients in launch order, by the strategy that `overrides` set or the default one. The
/// default gives way to TwoKernel where the overrides' fields do not fit Fused. Refuses a strategy that the target or
/// the dtype does not have.
Expected<std::vector<KernelRole>> backwardRoles(const Problem &problem, const Target &target,
                                                const ScheduleOverrides &overrides = {});

void to_json(nlohmann::json &json, const Schedule &schedule);
Expected<Schedule> scheduleFromJson(const nlohmann::json &json);

} // namespace tilewright
