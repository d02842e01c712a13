#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/tuning/TunedStore.h"
#include "TunedSamples.h"
#include <nlohmann/json.hpp>
#include <sqlite3.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace tilewright;

namespace {

std::string fileIn(const TemporaryFolder &folder) { return folder.path + "/" + std::string(TunedStore::kFileName); }

void execute(const std::string &path, const char *sql) {
  sqlite3 *database = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &database) == SQLITE_OK);
  CHECK(sqlite3_exec(database, sql, nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(database);
}

Status put(TunedStore &store, const TunedCandidate &candidate) { return store.put(std::span(&candidate, 1)); }

TunedCandidate failed(int tileKV, TuningOutcome outcome) {
  TunedCandidate c = sampleCandidate(tileKV, 0);
  c.outcome = outcome;
  c.detail = "signal 11 (\"SIGSEGV\"), 100 % \n of it";
  return c;
}

} // namespace

TEST_CASE("a row comes back as it went in, whatever its outcome") {
  TemporaryFolder folder;
  Warnings warnings;
  auto store = openStore(folder.path, warnings.log);
  TunedCandidate ok = sampleCandidate(64, 0.25);
  ok.confirmed = true;
  ok.clockMhz = 1980;
  ok.problem.mask = "k < 64 || k <= q";
  ok.problem.scale = 0.1;
  REQUIRE(put(*store, ok));
  for (TuningOutcome outcome : {TuningOutcome::Invalid, TuningOutcome::CompileFailed, TuningOutcome::Spills,
                                TuningOutcome::WrongResult, TuningOutcome::Crashed, TuningOutcome::TimedOut}) {
    TunedCandidate c = failed(16 * (1 + static_cast<int>(outcome)), outcome);
    REQUIRE(put(*store, c));
    auto found = store->find(c.environment, c.problem, c.role, c.schedule);
    REQUIRE(found);
    CHECK(nlohmann::json(*found) == nlohmann::json(c));
  }
  auto found = store->find(ok.environment, ok.problem, ok.role, ok.schedule);
  REQUIRE(found);
  CHECK(nlohmann::json(*found) == nlohmann::json(ok));
  CHECK(found->problem == ok.problem);
  CHECK(store->count() == 7);
  CHECK(warnings.texts.empty());
  struct stat info = {};
  REQUIRE(stat(store->path().c_str(), &info) == 0);
  CHECK((info.st_mode & 077) == 0); // the owner's alone
}

TEST_CASE("every part of the identity tells rows apart, everything else replaces") {
  TemporaryFolder folder;
  Warnings warnings;
  auto store = openStore(folder.path, warnings.log);
  const TunedCandidate base = sampleCandidate(64, 1);
  std::vector<TunedCandidate> different(14, base);
  different[1].environment.device = "another";
  different[2].environment.driver = "another";
  different[3].environment.compiler = "another";
  different[4].environment.generator = "another";
  different[5].environment.policy = "another";
  different[6].environment.target = "another";
  different[7].problem.batch = 3;
  different[8].problem.seqKV = 2048;
  different[9].problem.headsKV = 4;
  different[10].problem.causal = true;
  different[11].problem.layout = Layout::BHSD;
  different[12].role = KernelRole::DQ;
  different[13].schedule.stages = 1;
  REQUIRE(store->put(different));
  CHECK(store->count() == different.size());
  TunedCandidate again = base;
  again.ms = 2;
  again.problem.scale = 0.5; // costs the same
  REQUIRE(put(*store, again));
  CHECK(store->count() == different.size());
  CHECK(store->find(base.environment, base.problem, base.role, base.schedule)->ms == 2);
}

TEST_CASE("a confirmed time is not replaced by a first one") {
  TemporaryFolder folder;
  Warnings warnings;
  auto store = openStore(folder.path, warnings.log);
  TunedCandidate confirmed = sampleCandidate(64, 1), first = sampleCandidate(64, 0.5);
  confirmed.confirmed = true;
  REQUIRE(put(*store, first));
  REQUIRE(put(*store, confirmed));
  REQUIRE(put(*store, first));
  auto found = store->find(first.environment, first.problem, first.role, first.schedule);
  REQUIRE(found);
  CHECK(found->ms == 1);
  CHECK(found->confirmed);
}

TEST_CASE("many processes write at once and no row is lost or doubled") {
  TemporaryFolder folder;
  constexpr int kProcesses = 8, kRows = 25;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto log = std::make_shared<Log>();
      auto store = TunedStore::openOrCreate(folder.path, log); // all create it
      int bad = store ? 0 : 1;
      for (int row = 0; store && row < kRows; ++row) {
        TunedCandidate own = sampleCandidate(16 * (row + 1), 1 + row), shared = own;
        own.environment.device = "process " + std::to_string(process);
        bad += !put(**store, own) + !put(**store, shared);
      }
      _exit(bad);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  Warnings warnings;
  auto store = openStore(folder.path, warnings.log);
  CHECK(store->count() == kProcesses * kRows + kRows);
  CHECK(store->all().size() == kProcesses * kRows + kRows);
  CHECK(warnings.texts.empty());
}

TEST_CASE("a writer killed in the middle leaves a whole store") {
  TemporaryFolder folder;
  for (int delay : {1, 3, 7, 15, 30}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto store = TunedStore::openOrCreate(folder.path, std::make_shared<Log>());
      for (int row = 0; store; ++row)
        (void)put(**store, sampleCandidate(16 * (row % 60 + 1), 1 + row));
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    Warnings warnings;
    auto store = openStore(folder.path, warnings.log);
    REQUIRE(put(*store, sampleCandidate(1024, 1)));
    CHECK(store->all().size() == store->count());
    CHECK(warnings.texts.empty());
  }
}

TEST_CASE("readers find nothing where there is no store, and make none") {
  TemporaryFolder folder;
  Warnings warnings;
  CHECK(!TunedStore::openExisting(folder.path, warnings.log));
  CHECK(!TunedStore::openExisting(folder.path + "/nowhere", warnings.log));
  CHECK(std::filesystem::is_empty(folder.path));
  CHECK(warnings.texts.empty());
}

TEST_CASE("a damaged file is one warning for readers, and is set aside by writers") {
  for (const std::string &content :
       {std::string("not a database, but long enough to have a header of one"), std::string(4096, '\0'),
        std::string("SQLite format 3\0", 16) + std::string(5000, 'x')}) {
    TemporaryFolder folder;
    Warnings warnings;
    writeFile(fileIn(folder), content);
    if (auto store = TunedStore::openExisting(folder.path, warnings.log)) CHECK(store->all().empty());
    CHECK(warnings.texts.size() == 1);
    warnings.texts.clear();
    auto store = openStore(folder.path, warnings.log);
    CHECK(warnings.texts.size() == 1);
    CHECK(put(*store, sampleCandidate(64, 1)));
    CHECK(store->count() == 1);
    size_t aside = 0;
    for (const auto &entry : std::filesystem::directory_iterator(folder.path))
      if (entry.path().string().find(".damaged-") != std::string::npos) {
        ++aside;
        CHECK(readFile(entry.path()) == content);
      }
    CHECK(aside == 1);
  }
}

TEST_CASE("pages damaged in the middle do not make readers fail") {
  TemporaryFolder folder;
  {
    Warnings warnings;
    auto store = openStore(folder.path, warnings.log);
    std::vector<TunedCandidate> many;
    for (int i = 1; i <= 60; ++i)
      many.push_back(sampleCandidate(16 * i, i));
    REQUIRE(store->put(many));
  }
  std::string bytes = readFile(fileIn(folder));
  REQUIRE(bytes.size() > 3 * 4096);
  std::fill(bytes.begin() + 4096 + 100, bytes.end() - 100, '\x5a');
  writeFile(fileIn(folder), bytes);
  Warnings warnings;
  auto store = TunedStore::openExisting(folder.path, warnings.log);
  if (store) CHECK(store->all().size() < 60);
  CHECK(warnings.texts.size() == 1);
}

TEST_CASE("rows that are not valid are left out, with one warning") {
  TemporaryFolder folder;
  Warnings warnings;
  auto store = openStore(folder.path, warnings.log);
  std::vector<TunedCandidate> many;
  for (int i = 1; i <= 8; ++i)
    many.push_back(sampleCandidate(16 * i, i));
  REQUIRE(store->put(many));
  execute(store->path(), "UPDATE candidates SET problem='{\"batch\": \"two\"}' WHERE ms=1");
  execute(store->path(), "UPDATE candidates SET outcome='splendid' WHERE ms=2");
  execute(store->path(), "UPDATE candidates SET role='backwards' WHERE ms=3");
  execute(store->path(), "UPDATE candidates SET ms=-1 WHERE ms=4");
  execute(store->path(), "UPDATE candidates SET problem='{' WHERE ms=5");
  CHECK(store->all().size() == 3);
  CHECK(store->rows(many[0].environment, many[0].problem, many[0].role).size() == 3);
  CHECK(warnings.texts.size() == 1);
}

TEST_CASE("a disk that is full is an error of put, and nothing is half written") {
  TemporaryFolder folder;
  Warnings warnings;
  auto store = openStore(folder.path, warnings.log);
  REQUIRE(put(*store, sampleCandidate(16, 1)));
  const pid_t child = fork(); // limits stay with a process
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit{40000, 40000};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto own = TunedStore::openOrCreate(folder.path, std::make_shared<Log>());
    if (!own) _exit(2);
    std::vector<TunedCandidate> many;
    for (int i = 2; i <= 60; ++i) {
      many.push_back(sampleCandidate(16 * i, i));
      many.back().detail = std::string(2000, 'x');
    }
    const bool refused = !(*own)->put(many);
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(refused && (*own)->all().size() == 1 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(put(*store, sampleCandidate(32, 2)));
  CHECK(store->all().size() == 2);
}

TEST_CASE("lines out and in again are the same rows; bad lines are named") {
  TemporaryFolder folder, other;
  Warnings warnings;
  auto store = openStore(folder.path, warnings.log), copy = openStore(other.path, warnings.log);
  REQUIRE(put(*store, sampleCandidate(64, 1)));
  REQUIRE(put(*store, failed(32, TuningOutcome::Crashed)));
  std::stringstream lines;
  REQUIRE(store->exportLines(lines));
  std::stringstream withBad("\n{]\n" + lines.str() + "{\"target\": 1}\n[]\n");
  auto imported = copy->importLines(withBad, "tuned.jsonl");
  REQUIRE(imported);
  CHECK(imported->taken == 2);
  CHECK(imported->refused == 3);
  CHECK(imported->firstRefusal.starts_with("tuned.jsonl:2: "));
  CHECK(nlohmann::json(copy->all()) == nlohmann::json(store->all()));
  lines.clear();
  lines.seekg(0);
  REQUIRE(copy->importLines(lines, "again"));
  CHECK(copy->count() == 2);
}

TEST_CASE("a time of zero does not pass for a measurement") {
  nlohmann::json json = sampleCandidate(64, 1);
  CHECK(tunedCandidateFromJson(json));
  json["ms"] = 0;
  auto refused = tunedCandidateFromJson(json);
  REQUIRE(!refused);
  CHECK(refused.error().message.find("ms") != std::string::npos);
}
