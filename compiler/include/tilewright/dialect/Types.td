// Types of the tile level.
#ifndef TILEWRIGHT_TYPES
#define TILEWRIGHT_TYPES

include "tilewright/dialect/Dialect.td"

def TileType : TwType<"Tile", "tile"> {
  let summary = "A rectangle of values that a block works on: !tw.tile<128x64xf32>";
  let parameters = (ins "int64_t":$rows, "int64_t":$cols, "::mlir::Type":$elementType);
  let hasCustomAssemblyFormat = 1;
  let builders = [TypeBuilderWithInferredContext<(ins "int64_t":$rows, "int64_t":$cols, "::mlir::Type":$elementType), [{
    return $_get(elementType.getContext(), rows, cols, elementType);
  }]>];
}

def F32Tile : Type<CPred<"::llvm::isa<::tilewright::tw::TileType>($_self) && "
                         "::llvm::cast<::tilewright::tw::TileType>($_self).getElementType().isF32()">,
                   "tile of f32", "::tilewright::tw::TileType">;

#endif
