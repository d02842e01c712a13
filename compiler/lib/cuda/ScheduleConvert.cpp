#include "WalklessKernels.h"

using namespace mlir;

namespace tilewright {
namespace {

class ConvertScheduler : KernelPieces {
public:
  using KernelPieces::KernelPieces;

  /// A warp for each 16 rows, in the order in which fused left the fragments.
  void run() {
    begin();
    tw::LoadSumsOp load;
    kernel.walk([&](tw::LoadSumsOp op) { load = op; });
    declareConstants(load);
    Value shared = b.name("shared", b.value("tw::sharedBase", {}, b.object("tw::UInt32")));
    Value warpRow = b.name("warpRow", b.expression("tw::warpIndex() * 16", {}, b.i32()));
    nameBlock();
    Value tile = b.field(block, "tile", b.i32());
    Value sums = b.name("sums", sumsOf(head, tile, ownRows));
    Value dq = b.variable("dq", "tw::Accumulator<16, kPadQK>");
    b.call("tw::loadTile", {dq, sums, warpRow, b.constant(0)}, "kColsSums");
    if (load.getCentred()) {
      Value ofRows = b.variable("rowSums", "tw::RowSums<16>");
      b.call("tw::loadRowSums", {ofRows, sums, warpRow, b.expression("kPadQK", {}, b.i32())}, "kColsSums");
      sampleMeanKey(shared, b.multiply(tile, b.constant(ownRows)), load.getBoundsAttr(), load.getMaskAttr());
      b.call("__syncthreads", {});
      b.call("tw::subtractRowSums", {dq, ofRows, shared, b.constant(0)});
      b.call("__syncthreads", {});
    }
    b.call(".scaleBy", {dq, b.argument("scale", b.getF32Type())});
    Value stage = b.variable("stage", "Stage", {shared}), zero = b.constant(0);
    Value row = b.add(b.multiply(tile, b.constant(ownRows)), warpRow);
    b.call("tw::storeTile", {headOf("dq", head), strideOf("dq"), dq, row, b.length("seqQ"), zero, stage, warpRow, zero},
           "kDimQK");
    finish();
  }

private:
  void declareConstants(tw::LoadSumsOp load) {
    useTemplates({"common/Block.cuh", "sm80/Reduce.cuh", "sm80/Store.cuh"});
    declare(fmt::format("using Element = {};", elementName(load.getStored())));
    declare(fmt::format("constexpr int kDimQK = {}, kTileQ = {}, kThreads = {};", load.getTile().getType().getCols(),
                        ownRows, options.warps * 32));
    declare(fmt::format("constexpr int kPadQK = tw::roundUp<16 * {}>(kDimQK), kColsSums = kPadQK{};",
                        options.columnWarps, load.getCentred() ? " + 8" : ""));
    declare("using Stage = tw::SharedTile<Element, kTileQ, kPadQK>;");
    declare("constexpr int kSharedBytes = Stage::bytes > kPadQK * 4 ? Stage::bytes : kPadQK * 4;");
  }
};

} // namespace

void scheduleConvert(tw::KernelOp kernel, const ScheduleOptions &options) { ConvertScheduler(kernel, options).run(); }

} // namespace tilewright
