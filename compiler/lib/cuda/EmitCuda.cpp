#include "tilewright/cuda/EmitCuda.h"

#include "CudaText.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "tilewright/Templates.h"
#include "llvm/ADT/TypeSwitch.h"
#include <fmt/format.h>

using namespace mlir;

namespace tilewright {
namespace {

/// Prints a straight-line function of positions as a device function. Bounds become tw::PositionBounds, classes
/// tw::TileClass.
class FunctionPrinter {
public:
  explicit FunctionPrinter(func::FuncOp function) : function(function) {}

  std::string print() {
    Block &body = function.getBody().front();
    std::string parameters = "const tw::Args &args";
    for (auto [i, argument] : llvm::enumerate(body.getArguments())) {
      std::string name = parameterNames()[i];
      parameters += fmt::format(", {} {}", cudaType(argument.getType()), name);
      text.name(argument, name);
    }
    padPositions();
    std::string out =
        fmt::format("__device__ __forceinline__ {} {}({}) {{\n", returnType(), function.getSymName().str(), parameters);
    for (Operation &op : body.without_terminator())
      out += declare(op);
    auto results = body.getTerminator()->getOperands();
    out += results.size() == 1 ? "  return " : "  return {";
    for (auto [i, result] : llvm::enumerate(results)) {
      std::string value = text.bare(result);
      out += i ? ", " : "";
      out += results.size() == 4 ? fmt::format("int({})", value) : value;
    }
    return out + (results.size() == 1 ? ";\n}\n" : "};\n}\n");
  }

private:
  /// The rows that pad a tile are masked and scored like others, and so are its columns before the mask.
  void padPositions() {
    auto arguments = function.getArguments();
    const bool isScore = function.getResultTypes()[0].isF32(),
               isMask = function.getResultTypes().size() == 1 && !isScore;
    if (!isScore && !isMask) return;
    auto position = arguments.begin() + isScore;
    text.mayExceed(position[0], position[2]);
    if (isScore) text.mayExceed(position[1], position[3]);
  }

  /// What the functions of a problem take, in order (Passes.td).
  std::vector<const char *> parameterNames() {
    switch (function.getResultTypes().size()) {
    case 4:
      return {"first", "last", "sq", "sk", "h", "b"};
    case 2:
      return {"qFirst", "qLast", "kFirst", "kLast", "sq", "sk", "h", "b"};
    default:
      break;
    }
    if (function.getResultTypes()[0].isF32()) return {"s", "q", "k", "sq", "sk", "h", "b"};
    return {"q", "k", "sq", "sk", "h", "b"};
  }

  std::string returnType() {
    auto results = function.getResultTypes();
    if (results.size() == 4) return "tw::PositionBounds";
    return results.size() == 2 ? "tw::TileClass" : cudaType(results[0]);
  }

  /// A variable for what is used more than once or has two results; the rest is written where it is used.
  std::string declare(Operation &op) {
    if (isa<arith::ConstantOp>(op)) return "";
    if (auto bounds = dyn_cast<tw::TableBoundsOp>(op)) {
      std::string name = fmt::format("t{}", count++);
      std::string line = fmt::format("  const tw::TableBounds {} = tw::tableBounds(args.tables[{}], {}, {}, {});\n",
                                     name, bounds.getTable(), bounds.getBatch() ? text.bare(bounds.getBatch()) : "0",
                                     text.bare(bounds.getFirst()), text.bare(bounds.getLast()));
      text.name(bounds.getMin(), name + ".min");
      text.name(bounds.getMax(), name + ".max");
      return line;
    }
    Value result = op.getResult(0);
    if (result.hasOneUse() || result.use_empty()) return "";
    std::string name = fmt::format("v{}", count++);
    std::string line = fmt::format("  const {} {} = {};\n", cudaType(result.getType()), name, text.bare(result));
    text.name(result, name);
    return line;
  }

  func::FuncOp function;
  CudaText text;
  int count = 0;
};

class KernelPrinter {
public:
  std::string print(tw::CudaKernelOp kernel) {
    std::string launch;
    if (auto type = kernel.getLaunchType()) launch = fmt::format(", const __grid_constant__ {} launch", type->str());
    out = fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const __grid_constant__ tw::Args args{}) {{\n",
        kernel.getThreads(), kernel.getMinBlocks(), kernel.getSymName().str(), launch);
    printBlock(kernel.getBody().front());
    return out + "}\n";
  }

private:
  void line(const std::string &statement) { out += std::string(2 * depth, ' ') + statement + "\n"; }

  void printBlock(Block &block) {
    ++depth;
    for (Operation &op : block)
      printStatement(op);
    --depth;
  }

  void printNested(const std::string &head, Region &region) {
    line(head + " {");
    printBlock(region.front());
    line("}");
  }

  void printStatement(Operation &op) {
    llvm::TypeSwitch<Operation *>(&op)
        .Case([&](tw::NameOp o) {
          line(fmt::format("{} {} = {};", cudaType(o.getNamed().getType()), o.getIdentifier().str(),
                           text.bare(o.getValue())));
          text.name(o.getNamed(), o.getIdentifier().str());
        })
        .Case([&](tw::VariableOp o) {
          std::string arguments;
          for (Value argument : o.getArguments())
            arguments += (arguments.empty() ? "" : ", ") + text.bare(argument);
          line(fmt::format("{} {}{};", cudaType(o.getObject().getType()), o.getIdentifier().str(),
                           arguments.empty() ? "" : "(" + arguments + ")"));
          text.name(o.getObject(), o.getIdentifier().str());
        })
        .Case([&](tw::AssignOp o) {
          line(fmt::format("{} = {};", text.expression(o.getTarget()), text.bare(o.getValue())));
        })
        .Case([&](tw::MicroOp o) {
          if (!o.getValue()) line(text.statement(o) + ";");
        })
        .Case([&](tw::WhileOp o) { printNested(fmt::format("while ({})", text.bare(o.getCondition())), o.getBody()); })
        .Case([&](tw::IfOp o) { printNested(fmt::format("if ({})", text.bare(o.getCondition())), o.getBody()); })
        .Case([&](tw::UnrollOp o) {
          std::string index = o.getIdentifier().str();
          text.name(o.getBody().front().getArgument(0), index);
          out += "#pragma unroll\n";
          printNested(fmt::format("for (int {0} = 0; {0} < {1}; ++{0})", index, o.getCount()), o.getBody());
        });
  }

  std::string out;
  int depth = 0;
  CudaText text;
};

} // namespace

Expected<std::string> emitCuda(ModuleOp module) {
  tw::CudaKernelOp kernel;
  module.walk([&](tw::CudaKernelOp op) { kernel = op; });
  if (!kernel) return fail(Stage::Emit, "the module holds no tw.cuda_kernel: a schedule pass must run first");

  SmallVector<std::string> names;
  for (Attribute name : kernel.getTemplates())
    names.push_back(cast<StringAttr>(name).str());
  SmallVector<std::string_view> views(names.begin(), names.end());
  std::string source = assembleTemplates(std::span<const std::string_view>(views.data(), views.size()));

  source += "\n// ---- constants\n";
  for (Attribute declaration : kernel.getDeclarations())
    source += cast<StringAttr>(declaration).str() + "\n";
  source += "\n// ---- mask, score and tile bounds\n";
  module.walk([&](func::FuncOp function) { source += FunctionPrinter(function).print(); });
  source += "\n// ---- kernel\n";
  return source + KernelPrinter().print(kernel);
}

} // namespace tilewright
