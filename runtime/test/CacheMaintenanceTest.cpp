// Byte limit, bundles, and what the cache subcommands do.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/cache/CacheMaintenance.h"
#include "CacheSamples.h"
#include "TemporaryFolder.h"
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace tilewright;
namespace fs = std::filesystem;

namespace {

uint64_t fileBytes(const CacheEntry &entry) { return encodeEntryHead(entry).size() + entry.payload.size(); }

void setAge(const std::string &path, std::chrono::seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

std::chrono::seconds ageOf(const std::string &path) {
  return std::chrono::duration_cast<std::chrono::seconds>(fs::file_time_type::clock::now() - fs::last_write_time(path));
}

} // namespace

TEST_CASE("over the limit the least recently used entries go, and only then") {
  TemporaryFolder folder;
  Warnings warnings;
  auto options = cacheOptions(folder.path, warnings);
  options.maxBytes = 4 * fileBytes(sampleEntry(10)) + 100;
  DiskCache cache(options);
  for (int i = 10; i < 14; ++i) {
    cache.publish(sampleEntry(i));
    setAge(entryPath(folder.path, sampleEntry(i)), std::chrono::hours(24 * 30 - i));
  }
  CHECK(cacheInfo(folder.path)->entries == 4);
  // A hit of the oldest makes it the newest.
  REQUIRE(cache.find(sampleEntry(10).key()));
  cache.publish(sampleEntry(14));
  CHECK(cache.find(sampleEntry(10).key()));
  CHECK_FALSE(cache.find(sampleEntry(11).key()));
  CHECK(cache.find(sampleEntry(12).key()));
  CHECK(cache.find(sampleEntry(14).key()));
  CHECK(cacheInfo(folder.path)->bytes <= options.maxBytes);
  CHECK(warnings.texts.empty());
}

TEST_CASE("entries used within the last minutes are not evicted, even over the limit") {
  TemporaryFolder folder;
  Warnings warnings;
  auto options = cacheOptions(folder.path, warnings);
  options.maxBytes = 1;
  DiskCache cache(options);
  for (int i = 0; i < 3; ++i)
    cache.publish(sampleEntry(i));
  CHECK(cacheInfo(folder.path)->entries == 3);
  setAge(entryPath(folder.path, sampleEntry(0)), std::chrono::minutes(3));
  cache.publish(sampleEntry(3));
  CHECK(cacheInfo(folder.path)->entries == 3);
  CHECK_FALSE(cache.find(sampleEntry(0).key()));
}

TEST_CASE("0 is no limit") {
  TemporaryFolder folder;
  Warnings warnings;
  DiskCache cache(cacheOptions(folder.path, warnings));
  for (int i = 0; i < 20; ++i) {
    cache.publish(sampleEntry(i));
    setAge(entryPath(folder.path, sampleEntry(i)), std::chrono::hours(1000));
  }
  CHECK(cacheInfo(folder.path)->entries == 20);
}

TEST_CASE("a hit refreshes the time of last use at most once an interval") {
  TemporaryFolder folder;
  Warnings warnings;
  auto options = cacheOptions(folder.path, warnings);
  DiskCache cache(options);
  cache.publish(sampleEntry());
  std::string path = entryPath(folder.path, sampleEntry());
  setAge(path, std::chrono::hours(5));
  REQUIRE(cache.find(sampleEntry().key()));
  CHECK(ageOf(path) > std::chrono::hours(4));
  setAge(path, std::chrono::hours(25));
  REQUIRE(cache.find(sampleEntry().key()));
  CHECK(ageOf(path) < std::chrono::hours(1));
}

TEST_CASE("prune shrinks to the size asked for") {
  TemporaryFolder folder;
  Warnings warnings;
  DiskCache cache(cacheOptions(folder.path, warnings));
  for (int i = 10; i < 16; ++i) {
    cache.publish(sampleEntry(i));
    setAge(entryPath(folder.path, sampleEntry(i)), std::chrono::minutes(100 - i));
  }
  const uint64_t one = fileBytes(sampleEntry(10));
  auto pruned = cachePrune(folder.path, 2 * one + 10);
  REQUIRE(pruned);
  CHECK(pruned->entries == 4);
  CHECK(pruned->bytes == 4 * one);
  CHECK(cache.find(sampleEntry(15).key()));
  CHECK_FALSE(cache.find(sampleEntry(10).key()));
  CHECK(cachePrune(folder.path, 0)->entries == 2);
}

TEST_CASE("info and list tell what is there; a missing folder is an empty cache") {
  TemporaryFolder folder;
  Warnings warnings;
  auto none = cacheInfo(folder.path + "/none");
  REQUIRE(none);
  CHECK_FALSE(none->exists);
  CHECK(none->entries == 0);
  CHECK(cacheList(folder.path + "/none")->empty());
  CHECK(cacheClear(folder.path + "/none")->entries == 0);
  CHECK(cacheVerify(folder.path + "/none")->damages.empty());
  writeFile(folder.path + "/plain", "");
  CHECK_FALSE(cacheInfo(folder.path + "/plain"));
  fs::remove(folder.path + "/plain");

  DiskCache cache(cacheOptions(folder.path, warnings));
  for (int i = 0; i < 3; ++i) {
    cache.publish(sampleEntry(i));
    setAge(entryPath(folder.path, sampleEntry(i)), std::chrono::hours(10 + i));
  }
  fs::resize_file(entryPath(folder.path, sampleEntry(2)), 5);
  writeFile(folder.path + "/notes.txt", "mine");
  fs::create_directory(folder.path + "/failed");
  writeFile(folder.path + "/failed/x.cu", "x");
  auto info = cacheInfo(folder.path);
  REQUIRE(info);
  CHECK(info->entries == 3);
  CHECK(info->bytes == 2 * fileBytes(sampleEntry(0)) + 5);
  CHECK(info->foreignFiles == 1);
  CHECK(info->failedSources == 1);
  CHECK(info->oldestUse < info->newestUse);

  auto list = cacheList(folder.path);
  REQUIRE(list);
  REQUIRE(list->size() == 3);
  CHECK((*list)[0].key == sampleEntry(2).key()); // Just cut short, so just modified.
  CHECK_FALSE((*list)[0].damage.empty());
  REQUIRE((*list)[1].entry);
  CHECK((*list)[1].entry->symbol == "tw_test_0");
  CHECK((*list)[1].entry->report.registers == 100);
  CHECK((*list)[1].entry->payload.empty());
  CHECK((*list)[2].entry->symbol == "tw_test_1");
}

TEST_CASE("clear removes what is the cache's and nothing else") {
  TemporaryFolder folder;
  Warnings warnings;
  DiskCache cache(cacheOptions(folder.path, warnings));
  for (int i = 0; i < 3; ++i)
    cache.publish(sampleEntry(i));
  fs::remove(entryPath(folder.path, sampleEntry(1)));
  fs::create_directory(entryPath(folder.path, sampleEntry(1)));
  writeFile(entryPath(folder.path, sampleEntry(1)) + "/inner", "x");
  fs::create_directory(folder.path + "/failed");
  writeFile(folder.path + "/failed/x.cu", "x");
  writeFile(folder.path + "/notes.txt", "mine");
  writeFile(folder.path + "/short.twk", "not an entry's name");
  auto cleared = cacheClear(folder.path);
  REQUIRE(cleared);
  CHECK(cleared->entries == 3);
  CHECK(fs::exists(folder.path + "/notes.txt"));
  CHECK(fs::exists(folder.path + "/short.twk"));
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 2);
}

TEST_CASE("an exported bundle serves, is never written, and goes first") {
  TemporaryFolder folder;
  Warnings warnings;
  const std::string source = folder.path + "/cache", bundle = folder.path + "/deep/bundle";
  DiskCache cache(cacheOptions(source, warnings));
  for (int i = 0; i < 3; ++i)
    cache.publish(sampleEntry(i));
  fs::resize_file(entryPath(source, sampleEntry(2)), 100);
  CHECK(cacheExport(source, bundle).value() == 2);
  CHECK_FALSE(cacheExport(source, bundle, {sampleEntry(2).key()}));
  CHECK_FALSE(cacheExport(source, bundle, {std::string(64, '1')}));
  CHECK(cacheExport(source, bundle, {sampleEntry(1).key()}).value() == 1);
  writeFile(folder.path + "/plain", "");
  CHECK_FALSE(cacheExport(source, folder.path + "/plain"));

  auto options = cacheOptions(folder.path + "/other", warnings);
  options.bundles = {folder.path + "/missing", bundle};
  DiskCache reader(options);
  auto hit = reader.find(sampleEntry(0).key());
  REQUIRE(hit);
  CHECK(hit->fromBundle);
  CHECK(hit->path == entryPath(bundle, sampleEntry(0)));
  CHECK(hit->entry.payload == sampleEntry(0).payload);
  CHECK(reader.compilers(PayloadKind::Cubin) == std::vector<std::string>{"NVRTC 13.0"});
  CHECK(reader.compilers(PayloadKind::Object).empty());

  fs::resize_file(entryPath(bundle, sampleEntry(0)), 100);
  CHECK_FALSE(reader.find(sampleEntry(0).key()));
  CHECK(fs::exists(entryPath(bundle, sampleEntry(0))));
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts[0].find("bundle") != std::string::npos);
  reader.discard(entryPath(bundle, sampleEntry(1)), true, "does not load");
  CHECK(fs::exists(entryPath(bundle, sampleEntry(1))));
  chmod(entryPath(bundle, sampleEntry(1)).c_str(), 0666);
  CHECK_FALSE(reader.find(sampleEntry(1).key()));
}
