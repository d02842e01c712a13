#include "WgmmaText.h"

#include "mlir/IR/BuiltinTypes.h"
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright {
namespace {

/// "d.x[0][j][e]" of all fp32 sums that a lane holds of 64 x `columns`, in the order of wgmma's registers.
std::vector<std::string> accumulatorRegisters(const std::string &object, int64_t columns) {
  std::vector<std::string> registers;
  for (int64_t i = 0; i < columns / 2; ++i)
    registers.push_back(fmt::format("{}.x[0][{}][{}]", object, i / 4, i % 4));
  return registers;
}

std::string operands(const char *constraint, const std::vector<std::string> &registers) {
  std::string list;
  for (const std::string &name : registers)
    list += fmt::format("{}\"{}\"({})", list.empty() ? "" : ", ", constraint, name);
  return list;
}

/// "%first, ..., %(first + count - 1)"
std::string places(int64_t first, int64_t count) {
  std::string list;
  for (int64_t i = 0; i < count; ++i)
    list += fmt::format("{}%{}", i ? ", " : "", first + i);
  return list;
}

std::string function(const std::string &name, const std::string &parameters, const std::string &body) {
  return fmt::format("__device__ __forceinline__ void {}({}) {{\n{}}}\n", name, parameters, body);
}

} // namespace

std::string WgmmaProduct::text() const {
  const bool fromRegisters = left.empty();
  const int64_t sums = columns / 2, steps = static_cast<int64_t>(right.size());
  const int64_t placeA = sums, placeB = fromRegisters ? sums + 4 * steps : sums + 1;
  const char *type = element.isBF16() ? "bf16" : "f16";
  std::vector<std::string> lines = {".reg .pred no, yes;", ".reg .b64 a, b;", "setp.ne.b32 no, 0, 0;",
                                    "setp.eq.b32 yes, 0, 0;", "wgmma.fence.sync.aligned;"};
  // A descriptor's low bits are the address in units of 16 bytes.
  auto moved = [&](const char *name, int64_t place, int64_t distance) -> std::string {
    if (distance == 0) return fmt::format("%{}", place);
    lines.push_back(fmt::format("add.s64 {}, %{}, {};", name, place, distance));
    return name;
  };
  for (int64_t step = 0; step < steps; ++step) {
    std::string b = moved("b", placeB, right[step]);
    std::string a = fromRegisters ? "{" + places(placeA + 4 * step, 4) + "}" : moved("a", placeA, left[step]);
    lines.push_back(fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, {}, {}, 1, 1, {}{};",
                                columns, type, type, places(0, sums), a, b, fromRegisters || step > 0 ? "yes" : "no",
                                fromRegisters ? "" : "0, ", rightAcrossLines ? 1 : 0));
  }
  lines.push_back("wgmma.commit_group.sync.aligned;");

  std::vector<std::string> inputs;
  for (int64_t i = 0; fromRegisters && i < 4 * steps; ++i)
    inputs.push_back(fmt::format("a.x[{}]", i));
  std::string reads = fromRegisters ? operands("r", inputs) : std::string("\"l\"(a)");
  std::string body = "  asm volatile(\"{\\n\"\n";
  for (const std::string &line : lines)
    body += fmt::format("    \"{}\\n\"\n", line);
  body += fmt::format("    \"}}\" : {}\n    : {}, \"l\"(b) : \"memory\");\n",
                      operands(fromRegisters ? "+f" : "=f", accumulatorRegisters("d", columns)), reads);
  std::string leftType =
      fromRegisters ? fmt::format("const tw::Probabilities<Element, {}> &a", 16 * steps) : std::string("tw::UInt64 a");
  return function(name, fmt::format("tw::Accumulator<16, {}> &d, {}, tw::UInt64 b", columns, leftType), body);
}

std::string wgmmaWaitText(const std::string &name, int64_t pending, const std::vector<int64_t> &columns,
                          int64_t probabilities) {
  std::vector<std::string> parameters, touched;
  for (size_t i = 0; i < columns.size(); ++i) {
    parameters.push_back(fmt::format("tw::Accumulator<16, {}> &d{}", columns[i], i));
    touched.push_back(operands("+f", accumulatorRegisters(fmt::format("d{}", i), columns[i])));
  }
  if (probabilities) {
    parameters.push_back(fmt::format("tw::Probabilities<Element, {}> &p", probabilities));
    std::vector<std::string> registers;
    for (int64_t i = 0; i < probabilities / 4; ++i)
      registers.push_back(fmt::format("p.x[{}]", i));
    touched.push_back(operands("+r", registers));
  }
  return function(name, fmt::format("{}", fmt::join(parameters, ", ")),
                  fmt::format("  asm volatile(\"wgmma.wait_group.sync.aligned {};\" : {} :: \"memory\");\n", pending,
                              fmt::join(touched, ", ")));
}

} // namespace tilewright
