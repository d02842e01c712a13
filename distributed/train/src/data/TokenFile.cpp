#include "tilewright/train/TokenFile.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace tilewright::train {

struct TokenFile::Descriptor {
  int number = -1;
  explicit Descriptor(int number) : number(number) {}
  ~Descriptor() { close(number); }
  Descriptor(const Descriptor &) = delete;
  Descriptor &operator=(const Descriptor &) = delete;
};

std::string_view toString(TokenFormat format) { return format == TokenFormat::Text ? "text" : "uint16"; }

Expected<TokenFormat> tokenFormat(std::string_view name, const std::string &path) {
  if (name == "text") return TokenFormat::Text;
  if (name == "uint16") return TokenFormat::Uint16;
  if (name != "auto")
    return fail(Stage::Input, fmt::format("data format: expected auto, text or uint16, found '{}'", name));
  for (std::string_view ending : {".bin", ".u16", ".tokens"})
    if (path.ends_with(ending)) return TokenFormat::Uint16;
  return TokenFormat::Text;
}

Expected<TokenFile> TokenFile::open(const std::string &path, TokenFormat format, int64_t vocabulary) {
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (number < 0) return fail(Stage::Input, fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  TokenFile result;
  result.file = std::make_shared<Descriptor>(number);
  struct stat status {};
  if (fstat(number, &status) != 0)
    return fail(Stage::Input, fmt::format("{}: cannot read its size: {}", path, std::strerror(errno)));
  if (!S_ISREG(status.st_mode))
    return fail(Stage::Input, fmt::format("{}: expected a file, found something else", path),
                "batches are read from anywhere in it, which folders and pipes do not allow");
  if (status.st_size == 0) return fail(Stage::Input, fmt::format("{}: the file is empty", path));
  const int64_t bytes = format == TokenFormat::Text ? 1 : 2;
  if (status.st_size % bytes)
    return fail(Stage::Input,
                fmt::format("{}: {} bytes are no number of uint16 tokens, which have 2 each", path, status.st_size),
                "an incomplete copy, or text (--format text)?");
  result.name = path;
  result.kind = format;
  result.vocabulary = vocabulary;
  result.count = status.st_size / bytes;
  return result;
}

Status TokenFile::read(int64_t begin, std::span<int32_t> to) const {
  const int64_t bytes = kind == TokenFormat::Text ? 1 : 2;
  std::vector<uint8_t> raw(to.size() * static_cast<size_t>(bytes));
  for (size_t got = 0; got < raw.size();) {
    const ssize_t n =
        pread(file->number, raw.data() + got, raw.size() - got, begin * bytes + static_cast<int64_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return fail(Stage::Input, fmt::format("{}: cannot read at byte {}: {}", name,
                                            begin * bytes + static_cast<int64_t>(got), std::strerror(errno)));
    if (n == 0)
      return fail(Stage::Input,
                  fmt::format("{}: the file had {} bytes when training started, and ends before byte {} now", name,
                              count * bytes, begin * bytes + static_cast<int64_t>(raw.size())),
                  "data must not change while it is trained on");
    got += static_cast<size_t>(n);
  }
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = kind == TokenFormat::Text ? raw[i] : raw[2 * i] | raw[2 * i + 1] << 8;
  const auto bad = std::find_if(to.begin(), to.end(), [&](int32_t token) { return token >= vocabulary; });
  if (bad == to.end()) return {};
  const int64_t at = begin + (bad - to.begin());
  return fail(Stage::Input,
              fmt::format("{}: token {} (at byte {}) is {}, outside the vocabulary of {}", name, at, at * bytes, *bad,
                          vocabulary),
              kind == TokenFormat::Uint16 ? "--vocabulary sets its size; is the file text (--format text)?"
                                          : "tokens of text are bytes: --vocabulary must be at least 256");
}

Status TokenFile::verify() const {
  std::vector<int32_t> part(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
  for (int64_t begin = 0; begin < count; begin += static_cast<int64_t>(part.size())) {
    const size_t size = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(part.size()), count - begin));
    if (Status status = read(begin, std::span(part).first(size)); !status) return status;
  }
  return {};
}

} // namespace tilewright::train
