#include "NpyHeader.h"
#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>

namespace tilewright {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::string_view kReadable = "float16, float32, float64, uint16, int32 or int64";
/// NumPy's own limit.
constexpr size_t kMaxRank = 64;

std::string hexBytes(std::string_view bytes) {
  return fmt::format("{:02x}",
                     fmt::join(std::span(reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size()), " "));
}

/// Untrusted text for an error message: printable and short.
std::string quoted(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 40))
    out += c >= 0x20 && c < 0x7f ? c : '?';
  return fmt::format("'{}'{}", out, text.size() > 40 ? "..." : "");
}

struct Descr {
  std::string_view code;
  NpyType type;
};
constexpr Descr kTypes[] = {{"f2", NpyType::F16},   {"f4", NpyType::F32}, {"f8", NpyType::F64}, {"u2", NpyType::U16},
                            {"V2", NpyType::Raw16}, {"i4", NpyType::I32}, {"i8", NpyType::I64}};

/// The dict literal's grammar, one method a production.
class HeaderParser {
public:
  HeaderParser(std::string_view text, std::string_view name) : text(text), name(name) {}

  Expected<NpyHeader> parse() {
    skipSpace();
    if (!take('{')) return refuse("expected a dict, '{'");
    for (skipSpace(); !take('}'); skipSpace()) {
      if (Status entry = parseEntry(); !entry) return propagate(entry);
      skipSpace();
      if (!take(',') && peek() != '}') return refuse("expected ',' or '}'");
    }
    skipSpace();
    if (position != text.size()) return refuse("expected nothing after the dict");
    if (!descr) return missing("descr");
    if (!fortranOrder) return missing("fortran_order");
    if (!shape) return missing("shape");
    return finish();
  }

private:
  Status parseEntry() {
    auto key = parseString("a key");
    if (!key) return propagate(key);
    skipSpace();
    if (!take(':')) return refuse("expected ':'");
    skipSpace();
    if (*key == "descr") return descr ? duplicate(*key) : parseDescr();
    if (*key == "fortran_order") return fortranOrder ? duplicate(*key) : parseOrder();
    if (*key == "shape") return shape ? duplicate(*key) : parseShape();
    return fail(Stage::Input,
                fmt::format("{}: bad .npy header: unknown key {}; expected descr, fortran_order and shape", name,
                            quoted(*key)));
  }

  Status parseDescr() {
    if (peek() == '[' || peek() == '(')
      return fail(Stage::Input, fmt::format("{}: a structured element type; expected {}", name, kReadable),
                  "save each field as an array of its own");
    auto value = parseString("an element type");
    if (!value) return propagate(value);
    descr = *value;
    return {};
  }

  Status parseOrder() {
    for (bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text.substr(position, word.size()) == word) {
        position += word.size();
        fortranOrder = value;
        return {};
      }
    }
    return refuse("fortran_order: expected True or False");
  }

  Status parseShape() {
    if (!take('(')) return refuse("shape: expected a tuple, '('");
    std::vector<int64_t> dims;
    for (skipSpace(); !take(')'); skipSpace()) {
      if (peek() == '-') return refuse("shape: a dimension is negative");
      int64_t dim = 0;
      const char *begin = text.data() + position, *end = text.data() + text.size();
      const auto [stop, status] = std::from_chars(begin, end, dim);
      if (status == std::errc::result_out_of_range) return refuse("shape: a dimension beyond 64 bits");
      if (status != std::errc()) return refuse("shape: expected a dimension");
      position += static_cast<size_t>(stop - begin);
      dims.push_back(dim);
      if (dims.size() > kMaxRank) return refuse("shape: more than 64 dimensions");
      skipSpace();
      const bool comma = take(',');
      if (!comma && peek() != ')') return refuse("shape: expected ',' or ')'");
      if (!comma && dims.size() == 1) return refuse("shape: expected a tuple, found a number in parentheses");
    }
    shape = std::move(dims);
    return {};
  }

  Expected<std::string_view> parseString(const char *what) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return refuse(fmt::format("expected {} in quotes", what));
    const size_t end = text.find(quote, position + 1);
    if (end == std::string_view::npos) return refuse("a string without end");
    const std::string_view value = text.substr(position + 1, end - position - 1);
    if (value.find('\\') != std::string_view::npos) return refuse("a backslash in a string");
    position = end + 1;
    return value;
  }

  Expected<NpyHeader> finish() {
    NpyHeader header;
    header.fortranOrder = *fortranOrder;
    header.shape = std::move(*shape);
    const std::string_view code = *descr;
    if (code == "O" || code == "|O")
      return fail(Stage::Input, fmt::format("{}: holds pickled Python objects; expected {}", name, kReadable),
                  "convert the array first: x.astype('float32')");
    const char order = code.empty() ? '\0' : code[0];
    const bool hasOrder = order == '<' || order == '>' || order == '=' || order == '|';
    const std::string_view element = code.substr(hasOrder ? 1 : 0);
    const auto *found =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Descr &type) { return type.code == element; });
    if (found == std::end(kTypes))
      return fail(Stage::Input, fmt::format("{}: element type {}; expected {}", name, quoted(code), kReadable),
                  "convert the array first, e.g. x.astype('float32')");
    header.type = found->type;
    // Two opaque bytes have no order of their own ('|'); this machine's is the only one they can mean.
    constexpr char foreign = std::endian::native == std::endian::little ? '>' : '<';
    header.swapBytes = order == foreign;

    // The product without the zeros must fit too: strides are made from it.
    int64_t bytes = sizeInBytes(header.type);
    bool empty = false;
    for (int64_t dim : header.shape) {
      empty |= dim == 0;
      if (dim != 0 && __builtin_mul_overflow(bytes, dim, &bytes))
        return fail(Stage::Input, fmt::format("{}: shape ({}) has more bytes than a file can hold", name,
                                              fmt::join(header.shape, ", ")));
    }
    header.dataBytes = empty ? 0 : bytes;
    header.elements = header.dataBytes / sizeInBytes(header.type);
    return header;
  }

  char peek() const { return position < text.size() ? text[position] : '\0'; }
  bool take(char c) {
    if (position >= text.size() || text[position] != c) return false;
    ++position;
    return true;
  }
  void skipSpace() {
    while (position < text.size() && (text[position] == ' ' || text[position] == '\n' || text[position] == '\t'))
      ++position;
  }

  tl::unexpected<Error> refuse(std::string_view expected) const {
    const std::string found = position < text.size() ? quoted(text.substr(position, 12)) : "the header's end";
    return fail(Stage::Input,
                fmt::format("{}: bad .npy header at column {}: {}; found {}", name, position, expected, found));
  }
  tl::unexpected<Error> missing(std::string_view key) const {
    return fail(Stage::Input, fmt::format("{}: bad .npy header: the key '{}' is missing", name, key));
  }
  tl::unexpected<Error> duplicate(std::string_view key) const {
    return fail(Stage::Input, fmt::format("{}: bad .npy header: the key '{}' stands twice", name, key));
  }

  std::string_view text, name;
  size_t position = 0;
  std::optional<std::string_view> descr;
  std::optional<bool> fortranOrder;
  std::optional<std::vector<int64_t>> shape;
};

} // namespace

std::string_view toString(NpyType type) {
  switch (type) {
  case NpyType::F16:
    return "float16";
  case NpyType::F32:
    return "float32";
  case NpyType::F64:
    return "float64";
  case NpyType::U16:
    return "uint16";
  case NpyType::Raw16:
    return "2-byte void";
  case NpyType::I32:
    return "int32";
  case NpyType::I64:
    return "int64";
  }
  return "?";
}

int64_t sizeInBytes(NpyType type) {
  switch (type) {
  case NpyType::F16:
  case NpyType::U16:
  case NpyType::Raw16:
    return 2;
  case NpyType::F32:
  case NpyType::I32:
    return 4;
  case NpyType::F64:
  case NpyType::I64:
    return 8;
  }
  return 0;
}

Expected<NpyPreamble> parseNpyPreamble(std::span<const char> start, int64_t fileSize, std::string_view name) {
  const std::string_view bytes(start.data(), start.size());
  if (bytes.empty()) return fail(Stage::Input, fmt::format("{}: empty; expected a .npy file", name));
  const size_t compared = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, compared) != kMagic.substr(0, compared))
    return fail(Stage::Input,
                fmt::format("{}: not a .npy file: expected it to start with {}, found {}", name, hexBytes(kMagic),
                            hexBytes(bytes.substr(0, compared))),
                bytes.substr(0, 2) == "PK" ? "this looks like an .npz archive: save each array by np.save" : "");
  const auto truncated = [&](std::string_view what, int64_t expected) {
    return fail(Stage::Input, fmt::format("{}: truncated in its {}: expected at least {} bytes, found {}", name, what,
                                          expected, fileSize));
  };
  const auto byteAt = [&](size_t i) { return static_cast<int64_t>(static_cast<unsigned char>(bytes[i])); };
  if (bytes.size() < kMagic.size() + 4) return truncated("preamble", 10);
  const int64_t major = byteAt(6), minor = byteAt(7);
  if (major < 1 || major > 3 || minor != 0)
    return fail(Stage::Input, fmt::format("{}: .npy format {}.{}; expected 1.0, 2.0 or 3.0", name, major, minor));
  NpyPreamble preamble;
  const size_t lengthBytes = major == 1 ? 2 : 4;
  preamble.headerOffset = static_cast<int64_t>(8 + lengthBytes);
  if (bytes.size() < 8 + lengthBytes) return truncated("preamble", preamble.headerOffset);
  for (size_t i = 0; i < lengthBytes; ++i)
    preamble.headerLength |= byteAt(8 + i) << (8 * i);
  if (preamble.headerLength > NpyPreamble::kMaxHeader)
    return fail(Stage::Input, fmt::format("{}: a .npy header of {} bytes; expected at most {}", name,
                                          preamble.headerLength, NpyPreamble::kMaxHeader));
  if (preamble.dataOffset() > fileSize) return truncated("header", preamble.dataOffset());
  return preamble;
}

Expected<NpyHeader> parseNpyHeader(std::string_view text, std::string_view name) {
  return HeaderParser(text, name).parse();
}

std::string npyHeaderFor(const NpyFile &file) {
  std::string_view code;
  for (const Descr &type : kTypes)
    if (type.type == file.type) code = type.code;
  constexpr char order = std::endian::native == std::endian::little ? '<' : '>';
  std::string dict = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 file.type == NpyType::Raw16 ? '|' : order, code, fmt::join(file.shape, ", "),
                                 file.shape.size() == 1 ? "," : "");
  constexpr size_t preamble = 10, alignment = 64;
  const size_t total = (preamble + dict.size() + 1 + alignment - 1) / alignment * alignment;
  dict.append(total - preamble - dict.size() - 1, ' ').push_back('\n');
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

} // namespace tilewright
