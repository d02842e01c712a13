#include "WalklessKernels.h"

using namespace mlir;

namespace tilewright {
namespace {

class MergeScheduler : KernelPieces {
public:
  using KernelPieces::KernelPieces;

  /// A warp a row. Blocks are numbered as the states of their tiles are.
  void run() {
    begin();
    tw::LoadStateOp load;
    kernel.walk([&](tw::LoadStateOp op) { load = op; });
    useTemplates({"common/Args.cuh", "common/Block.cuh", "common/Merge.cuh"});
    declare(fmt::format("using Element = {};", elementName(load.getStored())));
    declare(fmt::format("constexpr int kDimV = {}, kTileQ = {}, kHeads = {}, kParts = {}, kWarps = {};",
                        load.getO().getType().getCols(), ownRows, options.packedHeads, load.getParts(), options.warps));
    nameBlock();
    Value q0 = b.multiply(b.field(block, "tile", b.i32()), b.constant(ownSpan));
    Value owner = b.name("owner", b.expression("tw::RowOwner<kHeads>($0, kTileQ, $1, $2, args.seqQ)", {q0, head, batch},
                                               b.object("auto")));
    Value row = b.name("row", b.expression("tw::warpIndex()", {}, b.i32()));
    b.whileTrue(b.value(".owns", {owner, row}, b.getI1Type()), [&] {
      b.call("tw::mergeRow",
             {b.expression("args", {}, b.object("tw::Args")), owner, b.expression("blockIdx.x", {}, b.i32()), row},
             "Element, kTileQ, kDimV, kParts");
      b.assign(row, b.expression("$0 + kWarps", {row}, b.i32()));
    });
    finish();
  }
};

} // namespace

void scheduleMerge(tw::KernelOp kernel, const ScheduleOptions &options) { MergeScheduler(kernel, options).run(); }

} // namespace tilewright
