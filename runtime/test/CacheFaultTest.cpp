// Whatever happens to a cache file, the answer is a correct entry or none, one warning that names the file, and a cache
// that works again after the next publish.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "CacheSamples.h"
#include "TemporaryFolder.h"
#include "tilewright/cache/CacheMaintenance.h"
#include <csignal>
#include <doctest/doctest.h>
#include <random>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace tilewright;
namespace fs = std::filesystem;

namespace {

void checkSame(const CacheEntry &a, const CacheEntry &b) {
  CHECK(toString(a.kind) == toString(b.kind));
  CHECK(a.inputs == b.inputs);
  CHECK(a.symbol == b.symbol);
  CHECK(a.sourceSha256 == b.sourceSha256);
  CHECK(a.report == b.report);
  CHECK(a.scratchBytes == b.scratchBytes);
  CHECK(a.generateMs == b.generateMs);
  CHECK(a.compileMs == b.compileMs);
  CHECK(a.created == b.created);
  CHECK(a.payload == b.payload);
}

/// Damages the middle one of three entries by `damage(path)` and follows the cache through its recovery.
template <class Damage> void checkRecovery(Damage damage, const char *reason = "") {
  TemporaryFolder folder;
  Warnings warnings;
  DiskCache writer(cacheOptions(folder.path, warnings));
  const CacheEntry entries[] = {sampleEntry(0), sampleEntry(1), sampleEntry(2)};
  for (const CacheEntry &entry : entries)
    REQUIRE(writer.publish(entry) == entryPath(folder.path, entry));
  const std::string path = entryPath(folder.path, entries[1]);
  damage(path);

  auto verification = cacheVerify(folder.path);
  REQUIRE(verification);
  CHECK(verification->good == 2);
  REQUIRE(verification->damages.size() == 1);
  CHECK(verification->damages[0].path == path);
  CHECK_FALSE(verification->damages[0].remedy.empty());
  CHECK_MESSAGE(verification->damages[0].what.find(reason) != std::string::npos, verification->damages[0].what);

  DiskCache cache(cacheOptions(folder.path, warnings));
  CHECK_FALSE(cache.find(entries[1].key()));
  CHECK_FALSE(cache.find(entries[1].key()));
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts[0].find(path) != std::string::npos);
  CHECK_FALSE(fs::exists(fs::symlink_status(path)));
  for (int healthy : {0, 2}) {
    auto hit = cache.find(entries[healthy].key());
    REQUIRE(hit);
    checkSame(hit->entry, entries[healthy]);
  }
  CHECK(cache.publish(entries[1]) == path);
  auto again = cache.find(entries[1].key());
  REQUIRE(again);
  checkSame(again->entry, entries[1]);
  CHECK(warnings.texts.size() == 1);
  CHECK(cacheVerify(folder.path)->damages.empty());
}

void flipBit(const std::string &path, size_t at) {
  std::string bytes = readFile(path);
  REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 4);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file << bytes;
}

} // namespace

TEST_CASE("an entry survives the disk unchanged and is readable by its owner alone") {
  TemporaryFolder folder;
  Warnings warnings;
  const std::string directory = folder.path + "/new/cache";
  mode_t before = umask(0);
  DiskCache cache(cacheOptions(directory, warnings));
  for (int number : {1, 2}) {
    CacheEntry entry = sampleEntry(number, number == 2 ? 0 : 100000);
    if (number == 2) entry.kind = PayloadKind::Object;
    std::string path = cache.publish(entry);
    CHECK(path == entryPath(directory, entry));
    auto hit = cache.find(entry.key());
    REQUIRE(hit);
    CHECK(hit->path == path);
    CHECK_FALSE(hit->fromBundle);
    checkSame(hit->entry, entry);
    struct stat state;
    REQUIRE(stat(path.c_str(), &state) == 0);
    CHECK((state.st_mode & 0777) == 0600);
    REQUIRE(stat(directory.c_str(), &state) == 0);
    CHECK((state.st_mode & 0777) == 0700);
  }
  umask(before);
  CHECK(warnings.texts.empty());
  CHECK_FALSE(cache.find(std::string(64, '0')));
}

TEST_CASE("files cut short") {
  const size_t whole = encodeEntryHead(sampleEntry(1)).size() + 3000;
  checkRecovery([](const std::string &path) { fs::resize_file(path, 0); }, "empty");
  for (size_t size : {size_t{1}, size_t{100}, kEntryHeaderBytes - 1, kEntryHeaderBytes, whole / 2, whole - 1}) {
    CAPTURE(size);
    checkRecovery([&](const std::string &path) { fs::resize_file(path, size); },
                  size < kEntryHeaderBytes ? "cut short" : "announces");
  }
}

TEST_CASE("bytes appended") {
  checkRecovery([](const std::string &path) { std::ofstream(path, std::ios::app) << 'x'; }, "announces");
}

TEST_CASE("one flipped bit in every field") {
  checkRecovery([](const std::string &path) { flipBit(path, 0); }, "TWKERNEL");
  checkRecovery([](const std::string &path) { flipBit(path, 8); }, "format version");
  checkRecovery([](const std::string &path) { flipBit(path, 12); }, "checksum of its header"); // kind
  checkRecovery([](const std::string &path) { flipBit(path, 16); }, "announces");              // description size
  checkRecovery([](const std::string &path) { flipBit(path, 23); }, "announces");
  checkRecovery([](const std::string &path) { flipBit(path, 24); }, "announces"); // payload size
  checkRecovery([](const std::string &path) { flipBit(path, 31); }, "announces");
  checkRecovery([](const std::string &path) { flipBit(path, 40); }, "checksum of its header");  // key
  checkRecovery([](const std::string &path) { flipBit(path, 100); }, "checksum of its header"); // payload hash
  checkRecovery([](const std::string &path) { flipBit(path, 200); }, "checksum of its header"); // header hash
  checkRecovery([](const std::string &path) { flipBit(path, 240); }, "checksum of its header"); // description
  checkRecovery([](const std::string &path) { flipBit(path, fs::file_size(path) - 1500); }, "checksum of its payload");
  checkRecovery([](const std::string &path) { flipBit(path, fs::file_size(path) - 1); }, "checksum of its payload");
}

TEST_CASE("no single byte may change unnoticed") {
  CacheEntry entry = sampleEntry(1, 50);
  std::string good = encodeEntryHead(entry) + std::string(entry.payload.begin(), entry.payload.end());
  REQUIRE(decodeEntry(good, entry.key()));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    if (decodeEntry(bad, entry.key())) FAIL("byte ", at);
  }
}

TEST_CASE("random bytes and hostile headers") {
  std::mt19937 random(7);
  CacheEntry entry = sampleEntry(1, 50);
  std::string good = encodeEntryHead(entry) + std::string(entry.payload.begin(), entry.payload.end());
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 1000, '\0');
    for (char &byte : bytes)
      byte = static_cast<char>(random());
    if (round % 2)
      bytes.replace(0, std::min<size_t>(bytes.size(), 16), good.substr(0, std::min<size_t>(bytes.size(), 16)));
    CHECK_FALSE(decodeEntry(bytes, entry.key()));
  }
  std::string huge = good;
  for (int i = 16; i < 32; ++i)
    huge[i] = '\xff'; // Sizes whose sum wraps round.
  CHECK_FALSE(decodeEntry(huge, entry.key()));
  checkRecovery([&](const std::string &path) {
    std::string bytes(4096, '\0');
    for (char &byte : bytes)
      byte = static_cast<char>(random());
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << bytes;
  });
}

TEST_CASE("another entry's bytes") {
  checkRecovery(
      [](const std::string &path) {
        fs::copy_file(fs::path(path).parent_path() / (sampleEntry(0).key() + ".twk"), path,
                      fs::copy_options::overwrite_existing);
      },
      "another kernel's name");
}

TEST_CASE("something else in place of the file") {
  checkRecovery([](const std::string &path) { fs::remove(path), fs::create_directory(path); }, "a folder");
  checkRecovery(
      [](const std::string &path) {
        fs::remove(path);
        fs::create_directory(path);
        writeFile(path + "/content", "x");
      },
      "a folder");
  checkRecovery([](const std::string &path) { fs::remove(path), fs::create_symlink("/etc/passwd", path); },
                "symbolic link");
  checkRecovery([](const std::string &path) { fs::remove(path), mkfifo(path.c_str(), 0600); }, "not a regular file");
}

TEST_CASE("permissions and owners that are not to be trusted") {
  checkRecovery([](const std::string &path) { chmod(path.c_str(), 0); }, geteuid() ? "opened" : "unreadable");
  checkRecovery([](const std::string &path) { chmod(path.c_str(), 0620); }, "writable by other users");
  checkRecovery([](const std::string &path) { chmod(path.c_str(), 0602); }, "writable by other users");
  if (geteuid() == 0)
    checkRecovery([](const std::string &path) { chown(path.c_str(), 12345, -1); }, "belongs to user");
  else
    MESSAGE("skipped: only root can give a file to another user");
}

TEST_CASE("temporary files: those of the dead and the old go, those of the living stay") {
  TemporaryFolder folder;
  Warnings warnings;
  CacheEntry entry = sampleEntry(1);
  // A child publishes into a folder where renaming fails, and dies in between.
  pid_t child = fork();
  if (child == 0) {
    rlimit limit{1000, 1000}; // Bytes a file may have: the kernel kills the writer half-way.
    setrlimit(RLIMIT_FSIZE, &limit);
    DiskCache(cacheOptions(folder.path, warnings)).publish(entry);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  auto info = cacheInfo(folder.path);
  REQUIRE(info->temporaryFiles == 1);
  auto verification = cacheVerify(folder.path);
  REQUIRE(verification->damages.size() == 1);
  CHECK(verification->damages[0].what.find("process that is gone") != std::string::npos);

  writeFile(folder.path + "/.tmp-ffffffff-1-0000000000000000", "another machine's, being written");
  writeFile(folder.path + "/.tmp-ffffffff-1-0000000000000001", "another machine's, two hours old");
  fs::last_write_time(folder.path + "/.tmp-ffffffff-1-0000000000000001",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::create_directory(folder.path + "/.tmp-ffffffff-1-0000000000000002");
  fs::last_write_time(folder.path + "/.tmp-ffffffff-1-0000000000000002",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  DiskCache cache(cacheOptions(folder.path, warnings));
  CHECK(cacheInfo(folder.path)->temporaryFiles == 1);
  CHECK(fs::exists(folder.path + "/.tmp-ffffffff-1-0000000000000000"));
  CHECK(cache.publish(entry) != "");
  CHECK(warnings.texts.empty());
}

TEST_CASE("a write that fails costs one warning and leaves nothing") {
  TemporaryFolder folder;
  pid_t child = fork();
  if (child == 0) {
    Warnings warnings;
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    DiskCache cache(cacheOptions(folder.path, warnings));
    bool good = cache.publish(sampleEntry(1)).empty() && cache.publish(sampleEntry(2)).empty() &&
                warnings.texts.size() == 1 && warnings.texts[0].find("File too large") != std::string::npos;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("a full disk costs one warning and leaves nothing") {
  TemporaryFolder folder;
  if (mount("tmpfs", folder.path.c_str(), "tmpfs", 0, "size=16k,mode=0700") != 0) {
    MESSAGE("skipped: this user may not mount a tmpfs");
    return;
  }
  Warnings warnings;
  {
    DiskCache cache(cacheOptions(folder.path, warnings));
    CHECK(cache.publish(sampleEntry(1, 40000)) == "");
    CHECK(cache.publish(sampleEntry(2, 40000)) == "");
    REQUIRE(warnings.texts.size() == 1);
    CHECK(warnings.texts[0].find("No space left") != std::string::npos);
    CHECK(fs::is_empty(folder.path));
    CHECK(cache.publish(sampleEntry(3, 2000)) != "");
    CHECK(cache.find(sampleEntry(3, 2000).key()));
  }
  CHECK(umount(folder.path.c_str()) == 0);
}

TEST_CASE("folders that cannot serve") {
  TemporaryFolder folder;
  auto works = [](const std::string &directory, const char *reason) {
    Warnings warnings;
    DiskCache cache(cacheOptions(directory, warnings));
    CHECK_FALSE(cache.find(sampleEntry(1).key()));
    CHECK(cache.publish(sampleEntry(1)) == "");
    CHECK(cache.publish(sampleEntry(2)) == "");
    CHECK(cache.failedDirectory() == "");
    REQUIRE(warnings.texts.size() == 1);
    CHECK_MESSAGE(warnings.texts[0].find(reason) != std::string::npos, warnings.texts[0]);
  };
  {
    Warnings warnings;
    DiskCache none(cacheOptions("", warnings));
    CHECK(none.publish(sampleEntry(1)) == "");
    CHECK_FALSE(none.find(sampleEntry(1).key()));
  }
  writeFile(folder.path + "/file", "x");
  works(folder.path + "/file", "is not a folder");
  works(folder.path + "/file/below", "Not a directory");
  fs::create_directory(folder.path + "/open");
  chmod((folder.path + "/open").c_str(), 0777);
  works(folder.path + "/open", "writable by other users");
  works("/proc/tilewright", "cannot create");
  if (geteuid() == 0) {
    fs::create_directory(folder.path + "/others");
    REQUIRE(chown((folder.path + "/others").c_str(), 12345, -1) == 0);
    works(folder.path + "/others", "belongs to user 12345");
    // As a plain user, below a folder that only root may write.
    chmod(folder.path.c_str(), 0755);
    pid_t child = fork();
    if (child == 0) {
      if (setuid(12345) != 0) _exit(2);
      Warnings warnings;
      DiskCache cache(cacheOptions(folder.path + "/mine", warnings));
      bool good = cache.publish(sampleEntry(1)).empty() && warnings.texts.size() == 1 &&
                  warnings.texts[0].find("Permission denied") != std::string::npos;
      _exit(good ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
}
