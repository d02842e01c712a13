#include "NpyHeader.h"
#include "tilewright/tensor/Npy.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <functional>
#include <sys/stat.h>
#include <unistd.h>

namespace tilewright {
namespace {

/// Closes on every way out.
struct FileDescriptor {
  int fd = -1;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

/// Copies `count` bytes at `offset` to `to`. Callers stay within the size they gave.
using ReadAt = std::function<Status(int64_t offset, int64_t count, char *to)>;

template <class Word> void swapWords(char *data, int64_t count) {
  for (int64_t i = 0; i < count; ++i, data += sizeof(Word))
    std::reverse(data, data + sizeof(Word));
}

void swapBytes(char *data, int64_t count, int64_t wordSize) {
  switch (wordSize) {
  case 2:
    return swapWords<uint16_t>(data, count);
  case 4:
    return swapWords<uint32_t>(data, count);
  default:
    return swapWords<uint64_t>(data, count);
  }
}

/// Writes the elements of a Fortran-ordered array in C order: walks the output and keeps the input's offset.
template <class Word> void transpose(const Word *from, const std::vector<int64_t> &shape, int64_t count, Word *to) {
  const size_t rank = shape.size();
  std::vector<int64_t> stride(rank), index(rank);
  int64_t size = 1;
  for (size_t axis = 0; axis < rank; ++axis) {
    stride[axis] = size;
    size *= shape[axis];
  }
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[offset];
    for (size_t axis = rank; axis-- > 0;) {
      offset += stride[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= stride[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

Status toCOrder(NpyArray &array, int64_t count, std::string_view name) {
  auto ordered = AlignedBuffer::zeros(array.data.size(), name);
  if (!ordered) return propagate(ordered);
  switch (sizeInBytes(array.type)) {
  case 2:
    transpose(array.data.as<uint16_t>(), array.shape, count, ordered->as<uint16_t>());
    break;
  case 4:
    transpose(array.data.as<uint32_t>(), array.shape, count, ordered->as<uint32_t>());
    break;
  default:
    transpose(array.data.as<uint64_t>(), array.shape, count, ordered->as<uint64_t>());
    break;
  }
  array.data = std::move(*ordered);
  return {};
}

Expected<NpyArray> read(int64_t size, const ReadAt &readAt, std::string_view name) {
  char start[NpyPreamble::kMaxSize];
  const int64_t startSize = std::min(size, NpyPreamble::kMaxSize);
  if (Status status = readAt(0, startSize, start); !status) return propagate(status);
  auto preamble = parseNpyPreamble({start, static_cast<size_t>(startSize)}, size, name);
  if (!preamble) return propagate(preamble);

  std::string text(static_cast<size_t>(preamble->headerLength), '\0');
  if (Status status = readAt(preamble->headerOffset, preamble->headerLength, text.data()); !status)
    return propagate(status);
  auto header = parseNpyHeader(text, name);
  if (!header) return propagate(header);

  const int64_t found = size - preamble->dataOffset();
  if (found < header->dataBytes)
    return fail(Stage::Input,
                fmt::format("{}: truncated: expected {} bytes of data, found {}", name, header->dataBytes, found));
  if (found > header->dataBytes)
    return fail(Stage::Input,
                fmt::format("{}: expected {} bytes of data, found {} more after them", name, header->dataBytes,
                            found - header->dataBytes),
                "a file that several arrays were saved to holds them one after the other: save each to its own");

  NpyArray array;
  array.type = header->type;
  array.shape = std::move(header->shape);
  auto data = AlignedBuffer::zeros(header->dataBytes, name);
  if (!data) return propagate(data);
  array.data = std::move(*data);
  if (Status status = readAt(preamble->dataOffset(), header->dataBytes, array.data.data()); !status)
    return propagate(status);
  if (header->swapBytes) swapBytes(array.data.data(), header->elements, sizeInBytes(header->type));
  if (header->fortranOrder && array.shape.size() > 1)
    if (Status status = toCOrder(array, header->elements, name); !status) return propagate(status);
  return array;
}

} // namespace

Expected<NpyArray> readNpy(std::span<const char> bytes, std::string_view name) {
  return read(
      static_cast<int64_t>(bytes.size()),
      [&](int64_t offset, int64_t count, char *to) -> Status {
        if (count > 0) std::memcpy(to, bytes.data() + offset, static_cast<size_t>(count));
        return {};
      },
      name);
}

Expected<NpyArray> readNpy(const std::filesystem::path &path) {
  const std::string name = path.string();
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return fail(Stage::Input, fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0)
    return fail(Stage::Input, fmt::format("{}: cannot be examined: {}", name, std::strerror(errno)));
  if (S_ISDIR(info.st_mode)) return fail(Stage::Input, fmt::format("{}: expected a .npy file, found a folder", name));
  if (!S_ISREG(info.st_mode))
    return fail(Stage::Input, fmt::format("{}: expected a .npy file, found a device, socket or pipe", name));
  return read(
      info.st_size,
      [&](int64_t offset, int64_t count, char *to) -> Status {
        while (count > 0) {
          const ssize_t got = ::pread(file.fd, to, static_cast<size_t>(count), offset);
          if (got < 0 && errno == EINTR) continue;
          if (got < 0) return fail(Stage::Input, fmt::format("{}: cannot be read: {}", name, std::strerror(errno)));
          if (got == 0)
            return fail(Stage::Input,
                        fmt::format("{}: became shorter while it was read: {} bytes are missing", name, count));
          offset += got;
          to += got;
          count -= got;
        }
        return {};
      },
      name);
}

} // namespace tilewright
