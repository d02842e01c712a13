#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include "tilewright/tensor/Npy.h"
#include "tilewright/tensor/Random.h"
#include <csignal>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace tilewright;
namespace fs = std::filesystem;

namespace {

int64_t entries(const fs::path &folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

Tensor random(ElementType type, TensorShape shape, Layout layout) {
  auto tensor = Tensor::zeros(type, shape, layout);
  REQUIRE(tensor);
  REQUIRE(fillNormal(*tensor, 3, 0));
  return std::move(*tensor);
}

} // namespace

TEST_CASE("a tensor comes back bit for bit, in every type and layout") {
  TemporaryFolder folder;
  for (ElementType type : {ElementType::F32, ElementType::F16, ElementType::BF16})
    for (Layout layout : {Layout::BSHD, Layout::BHSD}) {
      const Tensor tensor = random(type, {2, 3, 5, 8}, layout);
      const fs::path path = fs::path(folder.path) / "t.npy";
      REQUIRE(writeNpy(npyFile(path, tensor)));
      auto back = readTensor(path, {layout, type == ElementType::BF16});
      REQUIRE(back);
      CHECK((back->type() == type));
      CHECK((back->shape() == tensor.shape()));
      CHECK(std::memcmp(back->data(), tensor.data(), static_cast<size_t>(tensor.bytes())) == 0);
    }
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("the header is NumPy's own, the data starts at a multiple of 64 bytes") {
  TemporaryFolder folder;
  const fs::path path = fs::path(folder.path) / "lse.npy";
  const Tensor lse = random(ElementType::F32, {2, 3, 5, 1}, Layout::BHSD);
  REQUIRE(writeNpy(npyFileOfRows(path, lse)));
  const std::string bytes = readFile(path);
  std::string header("\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 5), }", 72);
  header.resize(127, ' ');
  header += '\n';
  CHECK(bytes.substr(0, 128) == header);
  CHECK(bytes.size() == 128 + 120);
  CHECK(bytes.substr(128) == std::string(static_cast<const char *>(lse.data()), 120));
}

TEST_CASE("vectors, scalars and empty arrays") {
  TemporaryFolder folder;
  const int64_t values[] = {1, 2, 3};
  const std::vector<int64_t> shapes[] = {{3}, {}, {0, 4}};
  for (const auto &shape : shapes) {
    const fs::path path = fs::path(folder.path) / "t.npy";
    REQUIRE(writeNpy({path, NpyType::I64, shape, values}));
    auto back = readNpy(path);
    REQUIRE(back);
    CHECK(back->shape == shape);
    CHECK((back->type == NpyType::I64));
  }
}

TEST_CASE("an old file is replaced whole, or kept where writing fails") {
  TemporaryFolder folder;
  const fs::path path = fs::path(folder.path) / "o.npy";
  writeFile(path, "old");
  const Tensor tensor = random(ElementType::F32, {1, 1, 2, 2}, Layout::BSHD);
  const NpyFile files[] = {npyFile(path, tensor), npyFile(fs::path(folder.path) / "none" / "lse.npy", tensor)};
  auto status = writeNpy(files);
  REQUIRE_FALSE(status);
  CHECK((status.error().stage == Stage::Output));
  CHECK(status.error().message ==
        (fs::path(folder.path) / "none" / "lse.npy").string() + ": its folder does not exist");
  CHECK(readFile(path) == "old");
  CHECK(entries(folder.path) == 1);
  REQUIRE(writeNpy(files[0]));
  CHECK(readFile(path).substr(1, 5) == "NUMPY");
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("a folder in the file's place is named, and nothing else is written") {
  TemporaryFolder folder;
  fs::create_directory(fs::path(folder.path) / "dq.npy");
  const Tensor tensor = random(ElementType::F32, {1, 1, 2, 2}, Layout::BSHD);
  const NpyFile files[] = {npyFile(fs::path(folder.path) / "o.npy", tensor),
                           npyFile(fs::path(folder.path) / "dq.npy", tensor)};
  auto status = writeNpy(files);
  REQUIRE_FALSE(status);
  CHECK(status.error().message ==
        (fs::path(folder.path) / "dq.npy").string() + ": expected a file to write, found a folder");
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("a write that fails in the middle leaves nothing") {
  TemporaryFolder folder;
  const Tensor tensor = random(ElementType::F32, {1, 4, 256, 64}, Layout::BSHD);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, limited{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  limited = before;
  limited.rlim_cur = 100000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limited) == 0);
  auto status = writeNpy(npyFile(fs::path(folder.path) / "o.npy", tensor));
  ::setrlimit(RLIMIT_FSIZE, &before);
  REQUIRE_FALSE(status);
  CHECK(status.error().message == (fs::path(folder.path) / "o.npy").string() + ": cannot be written: File too large");
  CHECK(entries(folder.path) == 0);
}

TEST_CASE("a full disk is an error that names the size, and leaves nothing") {
  TemporaryFolder folder;
  const fs::path disk = fs::path(folder.path) / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    MESSAGE("skipped: mounting a small disk is not permitted here");
    return;
  }
  const Tensor tensor = random(ElementType::F32, {1, 4, 256, 64}, Layout::BSHD);
  const Tensor small = random(ElementType::F32, {1, 1, 2, 2}, Layout::BSHD);
  const NpyFile files[] = {npyFile(disk / "lse.npy", small), npyFile(disk / "o.npy", tensor)};
  auto status = writeNpy(files);
  const auto left = entries(disk);
  ::umount(disk.c_str());
  REQUIRE_FALSE(status);
  CHECK(status.error().message == (disk / "o.npy").string() + ": the disk is full: 262272 bytes (256.1 KiB) needed");
  CHECK(left == 0);
}
