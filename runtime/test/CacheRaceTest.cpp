// Two dozen processes at one folder, with another one clearing, pruning and verifying, and members killed on the way.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "CacheSamples.h"
#include "TemporaryFolder.h"
#include "tilewright/cache/CacheMaintenance.h"
#include <csignal>
#include <doctest/doctest.h>
#include <functional>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

using namespace tilewright;

namespace {

constexpr int kProcesses = 24;

/// Runs `work` in child processes that all begin at the same moment; the number that returned true. Children that
/// `killed` names are killed after a random moment and do not count.
int runTogether(int processes, const std::function<bool(int)> &work, const std::function<bool(int)> &killed = {}) {
  int barrier[2];
  REQUIRE(pipe(barrier) == 0);
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(barrier[1]);
      char byte;
      if (read(barrier[0], &byte, 1) != 0) _exit(2); // Returns at the end of the pipe, for all at once.
      _exit(work(i) ? 0 : 1);
    }
    children.push_back(child);
  }
  close(barrier[0]);
  close(barrier[1]);
  std::mt19937 random(1);
  int good = 0;
  for (int i = 0; i < processes; ++i) {
    if (killed && killed(i)) {
      usleep(random() % 2000);
      kill(children[i], SIGKILL);
    }
    int status = 0;
    waitpid(children[i], &status, 0);
    good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good;
}

/// What a process does with a kernel: look, compile on a miss, publish, and hold the right bytes in the end.
bool obtain(DiskCache &cache, int number) {
  CacheEntry entry = sampleEntry(number, 200000);
  if (auto hit = cache.find(entry.key())) return hit->entry.payload == entry.payload;
  cache.publish(entry);
  return true;
}

} // namespace

TEST_CASE("all the same kernel: everyone has it, one entry, no temporary file") {
  TemporaryFolder folder;
  const std::string directory = folder.path + "/cache";
  CHECK(runTogether(kProcesses, [&](int) {
          Warnings warnings;
          DiskCache cache(cacheOptions(directory, warnings));
          return obtain(cache, 1) && obtain(cache, 1) && cache.find(sampleEntry(1, 200000).key()) &&
                 warnings.texts.empty();
        }) == kProcesses);
  auto info = cacheInfo(directory);
  CHECK(info->entries == 1);
  CHECK(info->temporaryFiles == 0);
  CHECK(info->foreignFiles == 0);
  CHECK(cacheVerify(directory)->damages.empty());
}

TEST_CASE("different kernels, and everyone through all of them in random order") {
  TemporaryFolder folder;
  const std::string directory = folder.path + "/cache";
  CHECK(runTogether(kProcesses, [&](int i) {
          Warnings warnings;
          DiskCache cache(cacheOptions(directory, warnings));
          std::mt19937 random(i);
          bool good = obtain(cache, 100 + i);
          for (int round = 0; round < 12; ++round)
            good = obtain(cache, random() % 6) && good;
          return good && warnings.texts.empty();
        }) == kProcesses);
  CHECK(cacheInfo(directory)->entries == kProcesses + 6);
  CHECK(cacheInfo(directory)->temporaryFiles == 0);
  CHECK(cacheVerify(directory)->damages.empty());
}

TEST_CASE("while one clears, prunes and verifies, nobody fails and no verification finds damage") {
  TemporaryFolder folder;
  const std::string directory = folder.path + "/cache";
  CHECK(runTogether(kProcesses + 1, [&](int i) {
          Warnings warnings;
          if (i == kProcesses) {
            bool good = true;
            for (int round = 0; round < 60; ++round) {
              auto verification = cacheVerify(directory);
              good = good && verification && verification->damages.empty();
              good = good && cachePrune(directory, 300000) && cacheList(directory) && cacheInfo(directory);
              if (round % 3 == 0) good = good && cacheClear(directory);
            }
            return good;
          }
          DiskCache cache(cacheOptions(directory, warnings));
          std::mt19937 random(i);
          bool good = true;
          for (int round = 0; round < 20; ++round)
            good = obtain(cache, random() % 6) && good;
          return good && warnings.texts.empty();
        }) == kProcesses + 1);
  CHECK(cacheInfo(directory)->temporaryFiles == 0);
}

TEST_CASE("killed members leave nothing that disturbs the others or stays") {
  TemporaryFolder folder;
  const std::string directory = folder.path + "/cache";
  auto victim = [](int i) { return i % 3 == 0; };
  int good = runTogether(
      kProcesses,
      [&](int i) {
        Warnings warnings;
        DiskCache cache(cacheOptions(directory, warnings));
        bool good = true;
        for (int round = 0; round < 20 || victim(i); ++round) {
          if (victim(i))
            cache.publish(sampleEntry(round % 6, 200000));
          else
            good = obtain(cache, round % 6) && good;
        }
        return good && warnings.texts.empty();
      },
      victim);
  CHECK(good == kProcesses - kProcesses / 3);
  Warnings warnings;
  DiskCache cache(cacheOptions(directory, warnings));
  CHECK(cacheInfo(directory)->temporaryFiles == 0);
  CHECK(cacheVerify(directory)->damages.empty());
}
