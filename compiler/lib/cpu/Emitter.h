// Builds the instructions of a CPU kernel: a thin layer over the builder that knows the vector width and writes loads,
// stores, loops and constants in one line each. Values are scalars or vectors of `lanes` elements; the arithmetic below
// takes either, and both operands must have the same type.
#pragma once

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace tilewright::cpu {

using mlir::Type;
using mlir::Value;

class Emitter : public mlir::ImplicitLocOpBuilder {
public:
  Emitter(mlir::Location loc, mlir::MLIRContext *context, int64_t vectorBits);

  /// f32 elements in a vector register: 16, 8 or 4.
  const int64_t lanes;
  /// x86-64-v3 and above convert fp16 in hardware (F16C).
  const bool hasHalfConversion;

  Type f32, i1, i16, i32, i64, pointer;
  mlir::VectorType vectorOf(Type element) const { return mlir::VectorType::get({lanes}, element); }
  /// `element`, or a vector of it where `shape` is a vector.
  static Type like(Type shape, Type element);

  Value constant(int64_t value);            ///< i64
  Value constant(Type type, int64_t value); ///< Integer or vector of integers
  Value number(Type type, double value);    ///< f32 or vector of f32
  Value splat(double value) { return number(vectorOf(f32), value); }

  Value add(Value a, Value b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value div(Value a, Value b); ///< f32 only
  /// a b + c, in one rounding where the target has it.
  Value fma(Value a, Value b, Value c);
  Value compare(mlir::arith::CmpFPredicate predicate, Value a, Value b);
  Value compare(mlir::arith::CmpIPredicate predicate, Value a, Value b);
  Value select(Value condition, Value a, Value b);
  /// a > b ? a : b, one instruction. A NaN in either gives b, so that the second operand decides.
  Value maxOrSecond(Value a, Value b);
  Value minOrSecond(Value a, Value b);
  Value minSigned(Value a, Value b);
  Value maxSigned(Value a, Value b);
  Value bitcast(Type type, Value value);
  Value broadcast(Value scalar);
  /// True when any lane of a vector of i1 is.
  Value anyLane(Value condition);
  /// Sign-extends a position to i64.
  Value toI64(Value position);
  /// An i64 as a position of type `type`.
  Value toPosition(Type type, Value value);

  /// base + bytes
  Value advance(Value base, Value bytes);
  Value advance(Value base, int64_t bytes);
  /// `alignment` in bytes.
  Value load(Type type, Value address, unsigned alignment);
  void store(Value value, Value address, unsigned alignment);
  /// A vector of `element` read from `address`; lanes whose `condition` is false are not touched and read as zero.
  Value maskedLoad(Type element, Value address, Value condition, unsigned alignment);

  using Carried = llvm::SmallVector<Value, 8>;
  /// for (i = begin; i < end; i += step), i64.
  void loop(Value begin, Value end, int64_t step, llvm::function_ref<void(Value)> body);
  /// The same with values carried from one iteration to the next.
  Carried loop(Value begin, Value end, int64_t step, mlir::ValueRange inits,
               llvm::function_ref<Carried(Value, mlir::ValueRange)> body);
  void loop(int64_t begin, int64_t end, int64_t step, llvm::function_ref<void(Value)> body);
  Carried loop(int64_t begin, int64_t end, int64_t step, mlir::ValueRange inits,
               llvm::function_ref<Carried(Value, mlir::ValueRange)> body);
  void branch(Value condition, llvm::function_ref<void()> then, llvm::function_ref<void()> otherwise = nullptr);
};

} // namespace tilewright::cpu
