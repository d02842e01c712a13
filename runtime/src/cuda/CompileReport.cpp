#include "tilewright/cuda/CompileReport.h"
#include <charconv>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

namespace tilewright::cuda {
namespace {

template <class Visit> void forEachLine(std::string_view text, Visit visit) {
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string_view trimmed(std::string_view line) {
  size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

/// The number right before `unit`: 24 from "24 bytes spill stores" with unit " bytes spill stores".
std::optional<int64_t> numberBefore(std::string_view line, std::string_view unit) {
  size_t at = line.find(unit);
  if (at == std::string_view::npos) return std::nullopt;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9')
    --begin;
  int64_t number = 0;
  auto [end, code] = std::from_chars(line.data() + begin, line.data() + at, number);
  if (code != std::errc() || begin == at) return std::nullopt;
  return number;
}

/// ptxas writes performance findings about wgmma as "(C7510) Potential Performance Loss: ...".
bool isWgmmaFinding(std::string_view line) {
  size_t at = line.find("(C751");
  return at != std::string_view::npos && at + 6 < line.size() && line[at + 6] == ')';
}

} // namespace

CompileReport parsePtxasLog(std::string_view log, std::string_view symbol) {
  CompileReport report;
  bool inEntry = false, done = false;
  forEachLine(log, [&](std::string_view line) {
    if (isWgmmaFinding(line)) report.problems.emplace_back(trimmed(line));
    if (contains(line, "Compiling entry function '")) {
      size_t begin = line.find('\'') + 1;
      std::string_view name = line.substr(begin, line.find('\'', begin) - begin);
      inEntry = !done && (symbol.empty() || name == symbol);
      return;
    }
    if (!inEntry) return;
    if (auto bytes = numberBefore(line, " bytes stack frame")) {
      // Functions that the kernel calls have lines of the same form: what they spill, it spills.
      report.stackBytes = std::max(report.stackBytes, *bytes);
      report.spillStoreBytes += numberBefore(line, " bytes spill stores").value_or(0);
      report.spillLoadBytes += numberBefore(line, " bytes spill loads").value_or(0);
    }
    if (auto registers = numberBefore(line, " registers"); registers && contains(line, "Used ")) {
      report.registers = static_cast<int>(*registers);
      report.barriers = static_cast<int>(numberBefore(line, " barriers").value_or(0));
      report.sharedBytes = numberBefore(line, " bytes smem").value_or(0);
      done = true;
      inEntry = false;
    }
  });
  if (report.spillBytes())
    report.problems.push_back(fmt::format("registers spill to memory: {} bytes stored, {} bytes loaded a thread",
                                          report.spillStoreBytes, report.spillLoadBytes));
  return report;
}

CompileReport parsePtxasLog(std::string_view log, std::span<const std::string> symbols) {
  if (symbols.size() == 1) return parsePtxasLog(log, symbols.front());
  CompileReport all;
  for (const std::string &symbol : symbols) {
    CompileReport one = parsePtxasLog(log, symbol);
    all.registers = std::max(all.registers, one.registers);
    all.sharedBytes = std::max(all.sharedBytes, one.sharedBytes);
    all.stackBytes = std::max(all.stackBytes, one.stackBytes);
    all.barriers = std::max(all.barriers, one.barriers);
    all.spillStoreBytes += one.spillStoreBytes;
    all.spillLoadBytes += one.spillLoadBytes;
    for (const std::string &problem : one.problems)
      all.problems.push_back(symbol + ": " + problem);
  }
  return all;
}

std::string firstErrorLine(std::string_view log) {
  std::string_view first, error;
  forEachLine(log, [&](std::string_view line) {
    line = trimmed(line);
    if (first.empty()) first = line;
    // The front end writes "name.cu(12): error: ...", ptxas "ptxas ..., line 12; error   : ..." or "ptxas fatal   :
    // ...".
    if (error.empty() && (contains(line, "error") || contains(line, "ptxas fatal")) &&
        (contains(line, "error:") || contains(line, "error ") || contains(line, "fatal")))
      error = line;
  });
  return std::string(error.empty() ? first : error);
}

void to_json(nlohmann::json &json, const CompileReport &report) {
  json = {{"registers", report.registers},
          {"shared_bytes", report.sharedBytes},
          {"stack_bytes", report.stackBytes},
          {"spill_store_bytes", report.spillStoreBytes},
          {"spill_load_bytes", report.spillLoadBytes},
          {"barriers", report.barriers},
          {"problems", report.problems}};
}

Expected<CompileReport> compileReportFromJson(const nlohmann::json &json) {
  try {
    CompileReport report;
    json.at("registers").get_to(report.registers);
    json.at("shared_bytes").get_to(report.sharedBytes);
    json.at("stack_bytes").get_to(report.stackBytes);
    json.at("spill_store_bytes").get_to(report.spillStoreBytes);
    json.at("spill_load_bytes").get_to(report.spillLoadBytes);
    json.at("barriers").get_to(report.barriers);
    json.at("problems").get_to(report.problems);
    return report;
  } catch (const nlohmann::json::exception &exception) {
    return fail(Stage::Cache, fmt::format("compile report: {}", exception.what()));
  }
}

} // namespace tilewright::cuda
