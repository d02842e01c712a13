// Entries and caches that the cache tests share.
#pragma once

#include "tilewright/cache/DiskCache.h"
#include <fmt/format.h>
#include <string>
#include <vector>

/// A good entry; different numbers give different keys and payloads.
inline tilewright::CacheEntry sampleEntry(int number = 0, size_t payloadBytes = 3000) {
  tilewright::CacheEntry entry;
  entry.inputs = {"generator", fmt::format("plan {}", number), {"-x"}, "sm_90a", "NVRTC 13.0"};
  entry.symbol = fmt::format("tw_test_{}", number);
  entry.sourceSha256 = std::string(64, 'a');
  entry.report.registers = 100 + number;
  entry.report.problems = {"a finding"};
  entry.scratchBytes = 7;
  entry.generateMs = 1.5;
  entry.compileMs = 250.25;
  entry.created = 1700000000;
  entry.payload.resize(payloadBytes);
  for (size_t i = 0; i < payloadBytes; ++i)
    entry.payload[i] = static_cast<char>(i * 31 + number);
  return entry;
}

/// A log that keeps its warnings.
struct Warnings {
  std::vector<std::string> texts;
  std::shared_ptr<tilewright::Log> log =
      std::make_shared<tilewright::Log>([this](tilewright::LogLevel level, std::string_view text) {
        if (level == tilewright::LogLevel::Warning) texts.emplace_back(text);
      });
};

inline tilewright::DiskCache::Options cacheOptions(const std::string &directory, Warnings &warnings) {
  tilewright::DiskCache::Options options;
  options.directory = directory;
  options.log = warnings.log;
  return options;
}

inline std::string entryPath(const std::string &directory, const tilewright::CacheEntry &entry) {
  return directory + "/" + entry.key() + std::string(tilewright::kEntrySuffix);
}
