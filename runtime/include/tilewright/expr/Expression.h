// The small language of masks and scores: `k <= q + sk - sq`, `doc[q] == doc[k]`, `s - slope[h] * abs(q - k)`.
// This file holds the typed syntax tree; Parser.h makes it from text, Evaluator.h computes it in double precision
// for references, and the compiler's build pass turns it into IR.
//
// Types: Bool, Int (64-bit semantics: a plan is refused when a value could leave int64), Float. Int promotes to Float
// where one side is Float. `//` and `%` floor (as in Python) on both; `/` is always Float.
#pragma once

#include "tilewright/plan/Problem.h"
#include <memory>

namespace tilewright::expr {

enum class Type { Bool, Int, Float };

/// Q, K: positions from 0. SQ, SK: lengths. H, B: query head and batch entry. S: the scaled score (scores only).
enum class Variable { Q, K, SQ, SK, H, B, S };

enum class Op {
  // leaves
  Literal, Variable, Table,
  // arithmetic
  Neg, Add, Sub, Mul, Div, FloorDiv, Mod,
  // comparisons (numbers -> Bool)
  Lt, Le, Gt, Ge, Eq, Ne,
  // logic
  And, Or, Not,
  // functions; Where is (Bool, T, T) -> T
  Where, Min, Max, Abs, Exp, Log, Tanh,
  // Int -> Float, inserted by the parser where a promotion happens
  ToFloat,
};

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  Op op = Op::Literal;
  Type type = Type::Int;
  int64_t intValue = 0;      ///< Literal of type Int or Bool
  double floatValue = 0;     ///< Literal of type Float
  Variable variable = Variable::Q;
  int table = -1;            ///< Table: index into Problem::tables
  std::vector<TableAxis> axes; ///< Table: its subscripts, as in that TableSpec
  std::vector<ExprPtr> args;
  int position = 0;          ///< Column in the source text, from 0
};

/// Canonical text: one spelling for equal trees, parsed back to the same tree.
std::string toString(const Expr &expr, const std::vector<TableSpec> &tables);

/// `expr` with every occurrence of `variable` replaced; the replacement has the variable's type.
ExprPtr substitute(const ExprPtr &expr, Variable variable, const ExprPtr &replacement);

/// Calls `visit` on every node, children first.
template <class Visitor> void walk(const Expr &expr, Visitor &&visit) {
  for (const ExprPtr &arg : expr.args) walk(*arg, visit);
  visit(expr);
}

} // namespace tilewright::expr
