#include "WalklessKernels.h"

using namespace mlir;

namespace tilewright {
namespace {

class DeltaScheduler : KernelPieces {
public:
  using KernelPieces::KernelPieces;

  /// Lanes share rows, nothing goes through shared memory.
  void run() {
    begin();
    useTemplates({"common/Args.cuh", "common/Block.cuh", "common/RowDot.cuh"});
    declare(fmt::format("using Element = {};", elementName(storedType())));
    declare(fmt::format("constexpr int kDimV = {}, kThreads = {}, kTileQ = {};",
                        ownLoads[0].getTile().getType().getCols(), options.warps * 32, ownRows));
    declare("constexpr int kLanes = tw::lanesForRow<Element, kDimV>();");
    nameBlock();
    Value lane = b.expression("int(threadIdx.x) / kLanes", {}, b.i32());
    Value dO = b.name("gradients", headOf("do", head)), o = b.name("outputs", headOf("o", head));
    Value delta = b.name("delta", rowsOf("delta", head));
    Value row = b.name("row", b.add(b.multiply(b.field(block, "tile", b.i32()), b.constant(ownRows)), lane));
    Value end = b.name("end", b.expression("min((block.tile + 1) * kTileQ, args.seqQ)", {}, b.i32()));
    // Every lane of a warp takes part in the reduction; rows past the end repeat the last one and are not stored.
    Value condition = b.expression("row - int(threadIdx.x % 32) / kLanes < $0", {end}, b.getI1Type());
    b.whileTrue(condition, [&] {
      Value clamped = b.name("clamped", b.expression("tw::Int64(min($0, args.seqQ - 1))", {row}, b.getI64Type()));
      Value sum = b.name(
          "sum", b.value("tw::rowDot",
                         {b.expression("$0 + $1 * args.dO.rowStride", {dO, clamped}, b.object("const Element *")),
                          b.expression("$0 + $1 * args.o.rowStride", {o, clamped}, b.object("const Element *"))},
                         b.getF32Type(), "Element, kDimV"));
      b.ifTrue(b.expression("$0 < $1 && threadIdx.x % kLanes == 0", {row, end}, b.getI1Type()), [&] {
        b.assign(b.expression("$0[$1]", {delta, row}, b.getF32Type()), sum);
      });
      b.assign(row, b.expression("$0 + kThreads / kLanes", {row}, b.i32()));
    });
    finish();
  }
};

} // namespace

void scheduleDelta(tw::KernelOp kernel, const ScheduleOptions &options) { DeltaScheduler(kernel, options).run(); }

} // namespace tilewright
