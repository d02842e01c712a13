// Evaluates a mask over a box of positions (a tile) instead of at a point, by building IR for the answer.
//
// Numbers become intervals. To keep what cancels (q - k, k + sk - sq), a number is first written as a linear form over
// atoms: mask arguments, and results that are not linear (floordiv, table reads, min, ...), which get intervals of
// their own. Booleans become (possible, certain). Both are sound for every mask: `possible` is false only when no pair
// of the box is visible, `certain` true only when all are.
#pragma once

#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "tilewright/dialect/Tw.h"
#include <functional>

namespace tilewright {

/// Interval of a number over the box; the same value twice for one that does not vary.
struct Interval {
  mlir::Value min, max;
};

/// Whether some, and whether every pair of the box satisfies a condition.
struct Verdict {
  mlir::Value possible, certain;
};

/// sum of coefficient * atom, plus constant.
struct LinearForm {
  llvm::MapVector<mlir::Value, int64_t> terms;
  int64_t constant = 0;
  bool overflowed = false; ///< A coefficient or the constant left 64 bits: nothing follows from the form.

  LinearForm &add(const LinearForm &other, int64_t factor);
  LinearForm &addTerm(mlir::Value atom, int64_t coefficient);
  LinearForm &addConstant(int64_t value);
};

/// A comparison brought to the shape "form <= 0"; Equal and NotEqual are kept as such.
enum class Relation { AtMostZero, EqualsZero, DiffersFromZero };
struct Comparison {
  LinearForm form;
  Relation relation;
};

class BoxAnalysis {
public:
  /// `arguments` are the mask's (q, k, sq, sk, h, b) over the box.
  BoxAnalysis(mlir::ImplicitLocOpBuilder &builder, mlir::Block &mask, mlir::Type type,
              llvm::ArrayRef<Interval> arguments);

  /// Verdict on an i1 value of the mask; `negated` asks about its opposite.
  Verdict verdict(mlir::Value condition, bool negated = false);
  /// Verdict on a comparison.
  Verdict verdict(const Comparison &comparison);

  LinearForm linear(mlir::Value number);
  /// The comparison in standard shape, or failure when it is not between integers.
  std::optional<Comparison> comparison(mlir::Value condition, bool negated);

  /// Whether sums of the form's terms stay within the type that they are computed in.
  bool fits(const LinearForm &form);
  /// Whether "form <= 0" has the same answer with its one table element (any int32) cut off at +-2^30, where it
  /// outweighs all other terms together.
  bool isSaturable(const LinearForm &form);

  /// With `saturated`, table elements are cut off at +-2^30.
  Interval interval(const LinearForm &form, bool saturated = false);
  Interval intervalOfAtom(mlir::Value atom);

  /// True when the number may vary with a mask argument (0 is q, 1 is k).
  bool dependsOn(mlir::Value number, unsigned argument);
  bool dependsOn(const LinearForm &form, unsigned argument);

  // Arithmetic on the built values, folding constants.
  mlir::Value constant(int64_t value);
  mlir::Value constantBool(bool value);
  mlir::Value add(mlir::Value a, mlir::Value b);
  mlir::Value sub(mlir::Value a, mlir::Value b);
  mlir::Value scale(mlir::Value a, int64_t factor);
  mlir::Value min(mlir::Value a, mlir::Value b);
  mlir::Value max(mlir::Value a, mlir::Value b);
  mlir::Value floorDiv(mlir::Value a, int64_t divisor);
  mlir::Value both(mlir::Value a, mlir::Value b);
  mlir::Value either(mlir::Value a, mlir::Value b);
  mlir::Value select(mlir::Value condition, mlir::Value a, mlir::Value b);
  mlir::Value atMost(mlir::Value a, mlir::Value b);
  mlir::Value less(mlir::Value a, mlir::Value b);

private:
  struct Range {
    double low, high;
  };
  Range range(mlir::Value number);
  double magnitude(const LinearForm &form);
  Interval product(mlir::Value a, mlir::Value b);
  Interval tableInterval(mlir::Operation *read);

  mlir::ImplicitLocOpBuilder &builder;
  mlir::Block &mask;
  mlir::Type type;
  llvm::SmallVector<Interval, 6> arguments;
  llvm::DenseMap<mlir::Value, Interval> known;
};

/// The constant an integer value is, if it is one.
std::optional<int64_t> constantOf(mlir::Value value);

} // namespace tilewright
