#include "tilewright/tensor/AlignedBuffer.h"
#include <array>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <optional>

namespace tilewright {
namespace {

/// Below this an allocation is not worth asking the system about.
constexpr int64_t kLargeAllocation = int64_t{64} << 20;

/// What the kernel believes can be had without swapping. Linux grants far more than it has, and kills the process
/// once the pages are touched: asking first turns that into an error.
std::optional<int64_t> availableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word)
    if (word == "MemAvailable:") {
      int64_t kibibytes = 0;
      if (file >> kibibytes) return kibibytes * 1024;
      break;
    }
  return std::nullopt;
}

} // namespace

void AlignedBuffer::Free::operator()(void *memory) const { std::free(memory); }

std::string sizeText(int64_t bytes) {
  static constexpr std::array<const char *, 7> units = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < units.size(); ++unit)
    amount /= 1024;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{} bytes ({:.1f} {})", bytes, amount, units[unit]);
}

Expected<AlignedBuffer> AlignedBuffer::zeros(int64_t bytes, std::string_view what) {
  constexpr int64_t overhead = kAlignment + kSlack;
  if (bytes < 0 || bytes > std::numeric_limits<int64_t>::max() - overhead)
    return fail(Stage::Input, fmt::format("{}: a size of {} bytes is not one memory can have", what, bytes));
  const std::string hint = "use a smaller problem, or a machine with more memory";
  if (bytes >= kLargeAllocation)
    if (const auto available = availableMemory(); available && bytes > *available)
      return fail(
          Stage::Input,
          fmt::format("{}: not enough memory: {} needed, {} available", what, sizeText(bytes), sizeText(*available)),
          hint);
  AlignedBuffer buffer;
  buffer.memory.reset(std::calloc(1, static_cast<size_t>(bytes + overhead)));
  if (!buffer.memory)
    return fail(Stage::Input, fmt::format("{}: not enough memory: {} needed", what, sizeText(bytes)), hint);
  buffer.bytes = bytes;
  std::memset(buffer.data() + bytes, 0xff, kSlack);
  return buffer;
}

} // namespace tilewright
