// What a failed compile says.
#include "tilewright/cuda/Nvrtc.h"
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>

namespace tilewright::cuda {
namespace {

enum NvrtcCode : int { kOutOfMemory = 1, kInvalidOption = 5, kCompilation = 6, kBuiltinOperationFailure = 7 };

std::string_view lineOf(std::string_view text, int number) {
  for (int line = 1; !text.empty(); ++line) {
    size_t end = std::min(text.find('\n'), text.size());
    if (line == number) return text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

std::string numbered(std::string_view text) {
  std::string result;
  for (int line = 1; !text.empty(); ++line) {
    size_t end = std::min(text.find('\n'), text.size());
    result += fmt::format("{:5} | {}\n", line, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

/// The path written, or empty: the explanation of one failure must not fail for another.
std::string dump(const NvrtcRequest &request, std::string_view suffix, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code code;
  std::string folder = request.failedDir;
  if (folder.empty()) {
    // A fixed name in a folder that all may write could be somebody else's link.
    folder = (fs::temp_directory_path(code) / "tilewright-failed-XXXXXX").string();
    if (code || !mkdtemp(folder.data())) return {};
  }
  fs::create_directories(folder, code);
  fs::path path = fs::path(folder) / (request.name + std::string(suffix));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? path.string() : std::string();
}

/// The PTX line that ptxas complains about: "ptxas application ptx input, line 57; error ...".
int ptxLine(std::string_view log) {
  constexpr std::string_view marker = "ptx input, line ";
  size_t at = log.find(marker);
  int line = 0;
  if (at != std::string_view::npos) std::from_chars(log.data() + at + marker.size(), log.data() + log.size(), line);
  return line;
}

} // namespace

tl::unexpected<Error> Nvrtc::explain(const NvrtcRequest &request, int code, std::string log,
                                     std::span<const std::string> options) const {
  const std::string compiler = fmt::format("{} ({})", libraryVersion.text(), path());
  const std::string asked = fmt::format("compile kernel {} for {}", request.name, request.architecture);
  const char *codeText = functions.getErrorString(code);
  std::string context = fmt::format("{} with {}, options {}", asked, compiler, fmt::join(options, " "));

  if (code == kBuiltinOperationFailure)
    return fail(
        Stage::Compile,
        fmt::format("cannot {}: {} does not find its builtins, libnvrtc-builtins.so.{}.{}", asked, compiler,
                    libraryVersion.major, libraryVersion.minor),
        fmt::format("put that file beside {} or into LD_LIBRARY_PATH; it comes with the same NVRTC package", path()),
        std::move(log));

  if (code == kInvalidOption) {
    int number = 0;
    size_t digits = request.architecture.find_first_of("0123456789");
    if (digits != std::string::npos)
      std::from_chars(request.architecture.data() + digits, request.architecture.data() + request.architecture.size(),
                      number);
    if (!supported.empty() && std::ranges::find(supported, number) == supported.end())
      return fail(Stage::Compile,
                  fmt::format("cannot {}: {} does not know this architecture, it serves {}", asked, compiler,
                              fmt::join(supported, ", ")),
                  "install a newer NVRTC or choose another target", std::move(log));
    return fail(Stage::Compile, fmt::format("cannot {}: an option was refused: {}", context, firstErrorLine(log)),
                "remove the option", std::move(log));
  }

  if (code != kCompilation)
    return fail(Stage::Compile, fmt::format("cannot {}: {}", context, codeText ? codeText : "unknown error"),
                code == kOutOfMemory ? "free memory; a compile takes about 100 MB" : "", std::move(log));

  std::string message = fmt::format("cannot {}: {}", asked, firstErrorLine(log));
  if (std::string source = dump(request, ".numbered.cu", numbered(request.source)); !source.empty())
    message += fmt::format("\n  source with line numbers: {}", source);
  if (int line = ptxLine(log); line && request.output == NvrtcOutput::Cubin) {
    NvrtcRequest again = request;
    again.output = NvrtcOutput::Ptx;
    if (auto ptx = compile(again)) {
      std::string_view text(ptx->code.data(), ptx->code.size());
      message += fmt::format("\n  PTX line {}: {}", line, lineOf(text, line));
      if (std::string file = dump(request, ".ptx", text); !file.empty()) message += fmt::format("\n  PTX: {}", file);
    }
  }
  message += fmt::format("\n  compiler: {}, options {}", compiler, fmt::join(options, " "));
  std::string hint;
  if (log.find("setmaxnreg") != std::string::npos || log.find("wgmma") != std::string::npos)
    if (!request.architecture.ends_with('a')) hint = "the kernel uses instructions that need the target sm_90a";
  if (log.find("uses too much shared data") != std::string::npos) hint = "choose smaller tiles or fewer stages";
  return fail(Stage::Compile, std::move(message), std::move(hint), std::move(log));
}

} // namespace tilewright::cuda
