#include "tilewright/Environment.h"
#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <unistd.h>

namespace tilewright {
namespace {

std::optional<uint64_t> parseBytes(std::string_view text) {
  int shift = 0;
  switch (text.empty() ? 0 : text.back()) {
  case 'K':
    shift = 10;
    break;
  case 'M':
    shift = 20;
    break;
  case 'G':
    shift = 30;
    break;
  case 'T':
    shift = 40;
    break;
  default:
    break;
  }
  if (shift) text.remove_suffix(1);
  uint64_t number = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number > std::numeric_limits<uint64_t>::max() >> shift) return std::nullopt;
  return number << shift;
}

std::optional<int> parseCount(std::string_view text) {
  int number = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number < 1 || number > 4096) return std::nullopt;
  return number;
}

std::optional<bool> parseFlag(std::string_view text) {
  for (std::string_view yes : {"1", "true", "yes", "on"})
    if (text == yes) return true;
  for (std::string_view no : {"0", "false", "no", "off"})
    if (text == no) return false;
  return std::nullopt;
}

std::vector<std::string> splitPaths(std::string_view text) {
  std::vector<std::string> paths;
  while (!text.empty()) {
    size_t colon = std::min(text.find(':'), text.size());
    if (colon) paths.emplace_back(text.substr(0, colon));
    text.remove_prefix(std::min(colon + 1, text.size()));
  }
  return paths;
}

/// Stores a parsed value; false when the text is not a value of the member's type.
template <class T> bool store(T &member, std::optional<T> value) {
  if (value) member = *value;
  return value.has_value();
}

bool isText(Environment &, std::string_view) { return true; }

struct KnobEntry {
  Knob knob;
  bool (*set)(Environment &, std::string_view);
};

constexpr KnobEntry kKnobs[] = {
    {{"TILEWRIGHT_CACHE_DIR", KnobType::Path, "$XDG_CACHE_HOME/tilewright, else ~/.cache/tilewright",
      "folder of the kernel cache"},
     [](Environment &e, std::string_view v) { return e.cacheDir = v, true; }},
    {{"TILEWRIGHT_CACHE_MAX_BYTES", KnobType::Bytes, "2G",
      "size the cache is kept under, least recently used kernels go first; 0 is unlimited"},
     [](Environment &e, std::string_view v) { return store(e.cacheMaxBytes, parseBytes(v)); }},
    {{"TILEWRIGHT_BUNDLES", KnobType::PathList, "none",
      "folders of exported kernels, searched before the cache and never written"},
     [](Environment &e, std::string_view v) { return e.bundles = splitPaths(v), true; }},
    {{"TILEWRIGHT_NVRTC", KnobType::Path, "searched", "the NVRTC library to compile CUDA kernels with"},
     [](Environment &e, std::string_view v) { return e.nvrtc = v, true; }},
    {{"TILEWRIGHT_CUDA_DRIVER", KnobType::Path, "libcuda.so.1", "the CUDA driver library"},
     [](Environment &e, std::string_view v) { return e.cudaDriver = v, true; }},
    {{"TILEWRIGHT_NCCL", KnobType::Path, "libnccl.so.2", "the NCCL library"},
     [](Environment &e, std::string_view v) { return e.nccl = v, true; }},
    {{"TILEWRIGHT_CUBLASLT", KnobType::Path, "searched", "the cuBLASLt library, for training on GPUs"},
     [](Environment &e, std::string_view v) { return e.cublasLt = v, true; }},
    {{"TILEWRIGHT_DUMP_DIR", KnobType::Path, "none",
      "folder that receives every emitted source, cubin, object and compile log"},
     [](Environment &e, std::string_view v) { return e.dumpDir = v, true; }},
    {{"TILEWRIGHT_NO_COMPILE", KnobType::Flag, "0", "fail, naming the plan, where a kernel would have to be compiled"},
     [](Environment &e, std::string_view v) { return store(e.noCompile, parseFlag(v)); }},
    {{"TILEWRIGHT_TUNED", KnobType::Flag, "1", "use the schedules that `tilewright tune` found; 0 is the defaults"},
     [](Environment &e, std::string_view v) { return store(e.tuned, parseFlag(v)); }},
    {{"TILEWRIGHT_RECORD", KnobType::Path, "none",
      "file that receives every distinct problem that is prepared, for `tilewright tune --problems`"},
     [](Environment &e, std::string_view v) { return e.record = v, true; }},
    {{"TILEWRIGHT_THREADS", KnobType::Count, "one a hardware thread", "threads that run CPU kernels"},
     [](Environment &e, std::string_view v) { return store(e.threads, parseCount(v)); }},
    // The Python package and distributed jobs read these where they start; here they are only known.
    {{"TILEWRIGHT_LIBRARY", KnobType::Path, "searched", "the libtilewright that the Python package opens"}, isText},
    {{"TILEWRIGHT_JOB_TOKEN", KnobType::Text, "none", "secret that the ranks of a job prove to each other"}, isText},
    {{"TILEWRIGHT_LISTEN_ADDRESS", KnobType::Text, "127.0.0.1", "numeric address of this host for a job's other ranks"},
     isText},
    {{"TILEWRIGHT_NETWORK_TIMEOUT", KnobType::Text, "30", "seconds after which a rank that does not answer is lost"},
     isText},
    {{"TILEWRIGHT_HANG_TIMEOUT", KnobType::Text, "1800", "seconds that a rank waits for others that do answer"},
     isText},
    {{"TILEWRIGHT_RENDEZVOUS_FD", KnobType::Text, "none", "listening socket that a launcher hands down to rank 0"},
     isText},
};

std::string_view acceptedValues(KnobType type) {
  switch (type) {
  case KnobType::Path:
    return "a path";
  case KnobType::PathList:
    return "paths separated by ':'";
  case KnobType::Bytes:
    return "a number of bytes, optionally with the suffix K, M, G or T";
  case KnobType::Count:
    return "an integer from 1 to 4096";
  case KnobType::Flag:
    return "1, true, yes, on or 0, false, no, off";
  case KnobType::Text:
    return "any text";
  }
  return "";
}

} // namespace

std::string_view toString(KnobType type) {
  switch (type) {
  case KnobType::Path:
    return "path";
  case KnobType::PathList:
    return "paths";
  case KnobType::Bytes:
    return "bytes";
  case KnobType::Count:
    return "count";
  case KnobType::Flag:
    return "flag";
  case KnobType::Text:
    return "text";
  }
  return "";
}

std::span<const Knob> environmentKnobs() {
  static const std::vector<Knob> knobs = [] {
    std::vector<Knob> all;
    for (const KnobEntry &entry : kKnobs)
      all.push_back(entry.knob);
    return all;
  }();
  return knobs;
}

std::string environmentHelp() {
  std::string text;
  for (const Knob &knob : environmentKnobs())
    text +=
        fmt::format("  {:<27} {:<6} {} (default: {})\n", knob.name, toString(knob.type), knob.help, knob.defaultText);
  return text;
}

Expected<Environment> Environment::parse(std::span<const std::string_view> entries) {
  constexpr std::string_view prefix = "TILEWRIGHT_";
  Environment environment;
  std::string cudaPath;
  for (std::string_view entry : entries) {
    size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    std::string_view name = entry.substr(0, equals), value = entry.substr(equals + 1);
    if (value.empty()) continue;
    if (name == "HOME") environment.home = value;
    if (name == "XDG_CACHE_HOME") environment.xdgCacheHome = value;
    if (name == "CUDA_HOME") environment.cudaHome = value;
    if (name == "CUDA_PATH") cudaPath = value;
    if (name == "LD_LIBRARY_PATH") environment.libraryPath = value;
    if (name.substr(0, prefix.size()) != prefix) continue;

    const KnobEntry *known = std::ranges::find(kKnobs, name, [](const KnobEntry &e) { return e.knob.name; });
    if (known == std::end(kKnobs)) {
      environment.unknown.emplace_back(name);
      continue;
    }
    if (!known->set(environment, value))
      return fail(Stage::Input,
                  fmt::format("environment variable {}: expected {}, found \"{}\"", name,
                              acceptedValues(known->knob.type), value),
                  fmt::format("correct it or unset {}; the default is {}", name, known->knob.defaultText));
  }
  if (environment.cudaHome.empty()) environment.cudaHome = cudaPath;
  return environment;
}

Expected<Environment> Environment::ofProcess() {
  std::vector<std::string_view> entries;
  for (char **entry = environ; entry && *entry; ++entry)
    entries.emplace_back(*entry);
  return parse(entries);
}

std::string Environment::cacheDirectory() const {
  if (!cacheDir.empty()) return cacheDir;
  // The XDG base directory specification says that relative paths in its variables are to be ignored.
  if (xdgCacheHome.starts_with('/')) return xdgCacheHome + "/tilewright";
  if (home.starts_with('/')) return home + "/.cache/tilewright";
  return {};
}

} // namespace tilewright
