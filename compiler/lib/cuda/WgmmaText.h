// Device functions around wgmma (PTX ISA 9.7.15), written out for one shape. All k steps of a product are one asm
// statement: split in several, the assembler could place other work between them and serialise the pipeline.
#pragma once

#include "mlir/IR/Types.h"
#include <string>
#include <vector>

namespace tilewright {

/// d (+)= a b over one warp group: 64 rows, `columns` columns, k in steps of 16.
struct WgmmaProduct {
  std::string name;     ///< Of the device function.
  mlir::Type element;   ///< bf16 or f16
  int64_t columns = 0;  ///< N: a multiple of 8 up to 256.
  /// Distance of each k step's operands from the first, in units of 16 bytes. `left` is empty where the left operand
  /// lies in registers; the product then adds to d, otherwise it starts from zero.
  std::vector<int64_t> left, right;
  bool rightAcrossLines = false; ///< The right operand is MN-major ("transposed").

  /// The function: (Accumulator<16, N> &d, descriptor or Probabilities a, descriptor b). The product is issued and
  /// committed as a group of its own, not waited for.
  std::string text() const;
};

/// A function that waits until at most `pending` groups of products are in flight. The accumulators that are ready then
/// (`columns` of each) and the operand registers that may be written again (of `probabilities` columns; 0 for none) are
/// its parameters, so that nothing that touches them moves to before the wait.
std::string wgmmaWaitText(const std::string &name, int64_t pending, const std::vector<int64_t> &columns,
                          int64_t probabilities = 0);

} // namespace tilewright
