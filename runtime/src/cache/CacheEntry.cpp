#include "tilewright/cache/CacheEntry.h"
#include "tilewright/plan/KernelPlan.h"
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright {
namespace {

constexpr std::string_view kMagic = "TWKERNEL";
constexpr size_t kHashDigits = 64, kKeyAt = 32, kPayloadHashAt = 96, kHeadHashAt = 160;

void appendNumber(std::string &out, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i)
    out.push_back(static_cast<char>(number >> (8 * i)));
}

uint64_t numberAt(std::span<const char> bytes, size_t at, int count) {
  uint64_t number = 0;
  for (int i = 0; i < count; ++i)
    number |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return number;
}

std::string_view view(std::span<const char> bytes, size_t at, size_t count) { return {bytes.data() + at, count}; }

nlohmann::json describe(const CacheEntry &entry) {
  return {{"symbol", entry.symbol},
          {"generator", entry.inputs.generatorId},
          {"plan", entry.inputs.planText},
          {"options", entry.inputs.options},
          {"architecture", entry.inputs.architecture},
          {"compiler", entry.inputs.compiler},
          {"source_sha256", entry.sourceSha256},
          {"report", entry.report},
          {"scratch_bytes", entry.scratchBytes},
          {"generate_ms", entry.generateMs},
          {"compile_ms", entry.compileMs},
          {"created", entry.created}};
}

Status readDescription(std::string_view text, CacheEntry &entry) {
  try {
    nlohmann::json json = nlohmann::json::parse(text);
    json.at("symbol").get_to(entry.symbol);
    json.at("generator").get_to(entry.inputs.generatorId);
    json.at("plan").get_to(entry.inputs.planText);
    json.at("options").get_to(entry.inputs.options);
    json.at("architecture").get_to(entry.inputs.architecture);
    json.at("compiler").get_to(entry.inputs.compiler);
    json.at("source_sha256").get_to(entry.sourceSha256);
    auto report = cuda::compileReportFromJson(json.at("report"));
    if (!report) return propagate(report);
    entry.report = std::move(*report);
    json.at("scratch_bytes").get_to(entry.scratchBytes);
    json.at("generate_ms").get_to(entry.generateMs);
    json.at("compile_ms").get_to(entry.compileMs);
    json.at("created").get_to(entry.created);
    return {};
  } catch (const nlohmann::json::exception &exception) {
    return fail(Stage::Cache, fmt::format("its description cannot be read: {}", exception.what()));
  }
}

} // namespace

std::string_view toString(PayloadKind kind) { return kind == PayloadKind::Cubin ? "cubin" : "object"; }

bool isEntryName(std::string_view fileName, std::string *key) {
  if (fileName.size() != kHashDigits + kEntrySuffix.size() || !fileName.ends_with(kEntrySuffix)) return false;
  std::string_view digits = fileName.substr(0, kHashDigits);
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return false;
  if (key) *key = digits;
  return true;
}

std::string encodeEntryHead(const CacheEntry &entry) {
  // Symbols and logs may hold bytes that are no UTF-8: replace rather than throw.
  std::string description = describe(entry).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string head(kMagic);
  appendNumber(head, kEntryFormat, 4);
  appendNumber(head, static_cast<uint32_t>(entry.kind), 4);
  appendNumber(head, description.size(), 8);
  appendNumber(head, entry.payload.size(), 8);
  head += entry.key();
  head += sha256Hex({entry.payload.data(), entry.payload.size()});
  head += sha256Hex(head + description);
  return head + description;
}

Expected<CacheEntry> decodeEntry(std::span<const char> bytes, std::string_view expectedKey) {
  auto damaged = [](std::string what) { return fail(Stage::Cache, std::move(what)); };
  if (bytes.empty()) return damaged("the file is empty");
  if (bytes.size() < kEntryHeaderBytes)
    return damaged(fmt::format("cut short: {} bytes, the header alone has {}", bytes.size(), kEntryHeaderBytes));
  if (view(bytes, 0, kMagic.size()) != kMagic) return damaged("not a kernel: it does not begin with TWKERNEL");
  if (uint64_t format = numberAt(bytes, 8, 4); format != kEntryFormat)
    return damaged(fmt::format("format version {}, this build reads {}", format, kEntryFormat));
  const uint64_t kind = numberAt(bytes, 12, 4), descriptionSize = numberAt(bytes, 16, 8),
                 payloadSize = numberAt(bytes, 24, 8), available = bytes.size() - kEntryHeaderBytes;
  if (descriptionSize > available || payloadSize != available - descriptionSize)
    return damaged(fmt::format("its header announces {} bytes of description and {} of payload, the file holds {}",
                               descriptionSize, payloadSize, available));
  std::string_view description = view(bytes, kEntryHeaderBytes, descriptionSize);
  std::string_view payload = view(bytes, kEntryHeaderBytes + descriptionSize, payloadSize);
  if (sha256Hex(std::string(view(bytes, 0, kHeadHashAt)) += description) != view(bytes, kHeadHashAt, kHashDigits))
    return damaged("the checksum of its header does not match");
  if (sha256Hex(payload) != view(bytes, kPayloadHashAt, kHashDigits))
    return damaged("the checksum of its payload does not match");
  if (kind != static_cast<uint32_t>(PayloadKind::Cubin) && kind != static_cast<uint32_t>(PayloadKind::Object))
    return damaged(fmt::format("unknown kind of payload {}", kind));

  CacheEntry entry;
  entry.kind = static_cast<PayloadKind>(kind);
  if (Status status = readDescription(description, entry); !status) return propagate(status);
  if (std::string_view key = view(bytes, kKeyAt, kHashDigits); key != expectedKey || entry.key() != expectedKey)
    return damaged(fmt::format("it holds kernel {} ({}) under another kernel's name", entry.symbol, key.substr(0, 16)));
  entry.payload.assign(payload.begin(), payload.end());
  return entry;
}

} // namespace tilewright
