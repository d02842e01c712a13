#include "tilewright/distributed/checkpoint/Safetensors.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_set>
#include <utility>

namespace tilewright::dist {
namespace {

using Json = nlohmann::json;

/// Public readers refuse more; and it keeps a damaged length from being allocated.
constexpr int64_t kLongestHeader = 100'000'000;
constexpr int64_t kLengthBytes = 8;

constexpr std::pair<std::string_view, ElementType> kTypes[] = {{"F32", ElementType::F32},
                                                               {"BF16", ElementType::BF16},
                                                               {"F16", ElementType::F16},
                                                               {"F64", ElementType::F64},
                                                               {"I32", ElementType::I32}};

struct OpenFile {
  int descriptor;
  ~OpenFile() {
    if (descriptor >= 0) close(descriptor);
  }
};

/// False at the file's end or an error, which errno tells (0: the end).
bool readAt(int file, int64_t offset, int64_t bytes, void *to) {
  char *at = static_cast<char *>(to);
  while (bytes > 0) {
    const ssize_t got = pread(file, at, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    at += got;
    offset += got;
    bytes -= got;
  }
  return true;
}

std::string reasonOf(int code) { return code ? std::strerror(code) : "the file has become shorter"; }

Expected<std::vector<int64_t>> naturals(const Json &json) {
  std::vector<int64_t> numbers;
  bool good = json.is_array();
  for (size_t i = 0; good && i < json.size(); ++i) {
    good = json[i].is_number_unsigned() && json[i].get<uint64_t>() <= uint64_t{INT64_MAX};
    if (good) numbers.push_back(json[i].get<int64_t>());
  }
  if (!good) return fail(Stage::Input, fmt::format("expected an array of natural numbers, found {}", json.dump()));
  return numbers;
}

/// Without the file's name, which the caller puts before it.
Expected<SafeTensor> tensorFromJson(const std::string &name, const Json &json) {
  auto refuse = [&](std::string_view field, const std::string &what) {
    return fail(Stage::Input, fmt::format("{}.{}: {}", name, field, what));
  };
  if (!json.is_object()) return fail(Stage::Input, fmt::format("{}: expected an object", name));
  for (const auto &[key, value] : json.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets") return refuse(key, "unknown field");
  for (const char *key : {"dtype", "shape", "data_offsets"})
    if (!json.contains(key)) return refuse(key, "missing");
  SafeTensor tensor;
  tensor.name = name;
  const Json &dtype = json["dtype"];
  const auto *type = std::ranges::find_if(kTypes, [&](const auto &entry) {
    return dtype.is_string() && dtype.get_ref<const std::string &>() == entry.first;
  });
  if (type == std::end(kTypes))
    return refuse("dtype", fmt::format("expected F32, BF16, F16, F64 or I32, found {}", dtype.dump()));
  tensor.type = type->second;
  Expected<std::vector<int64_t>> shape = naturals(json["shape"]), offsets = naturals(json["data_offsets"]);
  if (!shape) return refuse("shape", shape.error().message);
  if (!offsets) return refuse("data_offsets", offsets.error().message);
  int64_t bytes = sizeInBytes(tensor.type);
  for (int64_t extent : *shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return refuse("shape", "larger than 2^63 bytes");
  tensor.shape = std::move(*shape);
  if (offsets->size() != 2 || (*offsets)[1] - (*offsets)[0] != bytes)
    return refuse("data_offsets", fmt::format("expected two numbers {} bytes apart, as dtype and shape need, found {}",
                                              bytes, json["data_offsets"].dump()));
  tensor.begin = (*offsets)[0];
  return tensor;
}

Status parseHeader(const std::string &text, SafetensorsHeader &header) {
  // Names twice in an object would silently lose one of them.
  std::string twice;
  std::vector<std::unordered_set<std::string>> keys;
  const Json json = Json::parse(
      text,
      [&](int, Json::parse_event_t event, Json &parsed) {
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        if (event == Json::parse_event_t::object_end) keys.pop_back();
        if (event == Json::parse_event_t::key && keys.size() <= 2) {
          const std::string &key = parsed.get_ref<const std::string &>();
          if (!keys.back().insert(key).second) twice = key;
        }
        return true;
      },
      false);
  if (!json.is_object()) return fail(Stage::Input, "header: not a JSON object");
  if (!twice.empty()) return fail(Stage::Input, fmt::format("header: '{}' is there twice", twice));
  for (const auto &[name, value] : json.items()) {
    if (name == "__metadata__") {
      for (const auto &[key, text] : value.items()) {
        if (!value.is_object() || !text.is_string())
          return fail(Stage::Input, "__metadata__: expected an object of strings");
        header.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    Expected<SafeTensor> tensor = tensorFromJson(name, value);
    if (!tensor) return propagate(tensor);
    header.tensors.push_back(std::move(*tensor));
  }
  std::ranges::stable_sort(header.tensors, {}, [](const SafeTensor &t) { return std::pair(t.begin, t.bytes()); });
  for (const SafeTensor &tensor : header.tensors) {
    if (tensor.begin != header.dataBytes)
      return fail(Stage::Input,
                  fmt::format("{}.data_offsets: expected to begin at {}, where the tensor before it ends, "
                              "found {}: {}",
                              tensor.name, header.dataBytes, tensor.begin,
                              tensor.begin < header.dataBytes ? "tensors overlap" : "there is a gap"));
    header.dataBytes += tensor.bytes();
  }
  return {};
}

} // namespace

int64_t SafeTensor::elements() const {
  int64_t count = 1;
  for (int64_t extent : shape)
    count *= extent;
  return count;
}

const SafeTensor *SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &SafeTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::string SafetensorsHeader::layOut() {
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  dataBytes = 0;
  for (SafeTensor &tensor : tensors) {
    tensor.begin = dataBytes;
    dataBytes += tensor.bytes();
    const auto *type = std::ranges::find(kTypes, tensor.type, &std::pair<std::string_view, ElementType>::second);
    json[tensor.name] = {{"dtype", type->first}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, dataBytes}}};
  }
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' '); // so that data is aligned
  dataBegin = kLengthBytes + static_cast<int64_t>(text.size());
  std::string length;
  for (int shift = 0; shift < 64; shift += 8)
    length += static_cast<char>(text.size() >> shift);
  return length + text;
}

Expected<SafetensorsHeader> SafetensorsHeader::read(const std::string &path) {
  auto refuse = [&](const std::string &what) { return fail(Stage::Input, fmt::format("{}: {}", path, what)); };
  // Not blocking: a pipe in the file's place must not stop the process.
  OpenFile file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat state;
  if (file.descriptor < 0 || fstat(file.descriptor, &state) != 0)
    return refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  if (!S_ISREG(state.st_mode)) return refuse("not a regular file");
  unsigned char length[kLengthBytes];
  if (state.st_size < kLengthBytes)
    return refuse(fmt::format("expected at least {} bytes, found {}", kLengthBytes, state.st_size));
  if (!readAt(file.descriptor, 0, kLengthBytes, length))
    return refuse(fmt::format("cannot be read: {}", reasonOf(errno)));
  uint64_t size = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i)
    size = size << 8 | length[i];
  if (size < 2 || size > uint64_t{kLongestHeader} || static_cast<int64_t>(size) > state.st_size - kLengthBytes)
    return refuse(fmt::format("header length: expected 2 to {} bytes, found {}",
                              std::min<int64_t>(kLongestHeader, state.st_size - kLengthBytes), size));
  std::string text(size, '\0');
  if (!readAt(file.descriptor, kLengthBytes, static_cast<int64_t>(size), text.data()))
    return refuse(fmt::format("cannot be read: {}", reasonOf(errno)));
  SafetensorsHeader header;
  header.dataBegin = kLengthBytes + static_cast<int64_t>(size);
  if (Status status = parseHeader(text, header); !status) return refuse(status.error().message);
  if (const int64_t found = state.st_size - header.dataBegin; found != header.dataBytes)
    return refuse(fmt::format("data: expected {} bytes after the header, found {}: the file {}", header.dataBytes,
                              found, found < header.dataBytes ? "is cut off" : "goes on after its last tensor"));
  return header;
}

Status readTensorData(const std::string &path, const SafetensorsHeader &header, int64_t offset, int64_t bytes,
                      void *to) {
  OpenFile file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.descriptor < 0)
    return fail(Stage::Input, fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  if (offset < 0 || bytes < 0 || offset > header.dataBytes - bytes)
    return fail(Stage::Input, fmt::format("{}: data: {} bytes from {} are not in the file", path, bytes, offset));
  if (!readAt(file.descriptor, header.dataBegin + offset, bytes, to))
    return fail(Stage::Input, fmt::format("{}: data: cannot be read: {}", path, reasonOf(errno)));
  return {};
}

} // namespace tilewright::dist
