#include "tilewright/tuning/TunedStore.h"
#include "Database.h"
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <istream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sys/file.h>
#include <unistd.h>

namespace tilewright {
namespace {

constexpr const char *kCreate =
    "CREATE TABLE IF NOT EXISTS candidates("
    "target TEXT NOT NULL, device TEXT NOT NULL, driver TEXT NOT NULL, compiler TEXT NOT NULL,"
    "generator TEXT NOT NULL, policy TEXT NOT NULL,"
    "family TEXT NOT NULL, batch INTEGER NOT NULL, heads_q INTEGER NOT NULL, heads_kv INTEGER NOT NULL,"
    "seq_q INTEGER NOT NULL, seq_kv INTEGER NOT NULL, schedule TEXT NOT NULL,"
    "problem TEXT NOT NULL, role TEXT NOT NULL, outcome TEXT NOT NULL, ms REAL NOT NULL, fastest_ms REAL NOT NULL,"
    "slowest_ms REAL NOT NULL, repeats INTEGER NOT NULL, confirmed INTEGER NOT NULL, detail TEXT NOT NULL,"
    "clock_mhz REAL NOT NULL, recorded INTEGER NOT NULL,"
    // The family first: readers ask for one in every environment.
    "PRIMARY KEY(family, target, batch, heads_q, heads_kv, seq_q, seq_kv, device, driver, compiler, generator, policy,"
    "schedule)) WITHOUT ROWID";

constexpr const char *kInsert =
    "INSERT INTO candidates VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
    "problem=excluded.problem, outcome=excluded.outcome, ms=excluded.ms, fastest_ms=excluded.fastest_ms,"
    "slowest_ms=excluded.slowest_ms, repeats=excluded.repeats, confirmed=excluded.confirmed, detail=excluded.detail,"
    "clock_mhz=excluded.clock_mhz, recorded=excluded.recorded WHERE excluded.confirmed >= confirmed";

#define TW_COLUMNS                                                                                                     \
  "SELECT target, device, driver, compiler, generator, policy, problem, role, schedule, outcome, ms, fastest_ms,"      \
  "slowest_ms, repeats, confirmed, detail, clock_mhz, recorded FROM candidates "
constexpr const char *kOfFamily = " WHERE family=? AND target=?";
constexpr const char *kOfSizes = " AND batch=? AND heads_q=? AND heads_kv=? AND seq_q=? AND seq_kv=?";
constexpr const char *kOfEnvironment = " AND device=? AND driver=? AND compiler=? AND generator=? AND policy=?";

void addSizes(Statement &statement, const TuningSizes &sizes) {
  for (int64_t size : {sizes.batch, sizes.headsQ, sizes.headsKV, sizes.seqQ, sizes.seqKV})
    statement.add(size);
}

void addEnvironment(Statement &statement, const TuningEnvironment &e) {
  for (const std::string *text : {&e.device, &e.driver, &e.compiler, &e.generator, &e.policy})
    statement.add(*text);
}

std::string scheduleText(const Schedule &schedule) { return nlohmann::json(schedule).dump(); }

Expected<TunedCandidate> candidateOf(const Statement &row) {
  TunedCandidate c;
  TuningEnvironment &e = c.environment;
  int column = 0;
  for (std::string *text : {&e.target, &e.device, &e.driver, &e.compiler, &e.generator, &e.policy})
    *text = row.text(column++);
  auto json = [&] { return nlohmann::json::parse(row.text(column++), nullptr, false); };
  Expected<Problem> problem = problemFromJson(json());
  if (!problem) return propagate(problem);
  c.problem = std::move(*problem);
  Expected<KernelRole> role = parseKernelRole(row.text(column++));
  if (!role) return propagate(role);
  c.role = *role;
  Expected<Schedule> schedule = scheduleFromJson(json());
  if (!schedule) return propagate(schedule);
  c.schedule = *schedule;
  Expected<TuningOutcome> outcome = parseTuningOutcome(row.text(column++));
  if (!outcome) return propagate(outcome);
  c.outcome = *outcome;
  for (double *ms : {&c.ms, &c.fastestMs, &c.slowestMs})
    *ms = row.number(column++);
  c.repeats = static_cast<int>(row.integer(column++));
  c.confirmed = row.integer(column++) != 0;
  c.detail = row.text(column++);
  c.clockMhz = row.number(column++);
  c.recorded = row.integer(column++);
  if (c.outcome == TuningOutcome::Ok && !(c.ms > 0)) return fail(Stage::Cache, "a time of 0 where the outcome is ok");
  return c;
}

Status prepareFile(Database &database) {
  // A file system without shared memory between processes keeps its own journal: slower, as safe.
  for (const char *sql : {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", kCreate})
    if (Status status = database.run(sql); !status) return status;
  return {};
}

/// Success where every page is as SQLite wrote it.
Status checkPages(Database &database) {
  Expected<Statement> check = database.prepare("PRAGMA quick_check(1)");
  if (!check) return propagate(check);
  Expected<Statement::Step> step = check->step();
  if (!step) return propagate(step);
  const std::string found = *step == Statement::Step::Row ? check->text(0) : "ok";
  return found == "ok" ? Status() : fail(Stage::Cache, found);
}

/// The database, and whether it failed by the fault of the file's content.
Expected<std::unique_ptr<Database>> openForWriting(const std::string &path, bool &damaged) {
  damaged = false;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0)
    return fail(Stage::Cache, fmt::format("cannot make {}: {}", path, std::strerror(errno)),
                "TILEWRIGHT_CACHE_DIR can name a folder that can be written");
  close(file);
  auto database = Database::open(path, Database::Mode::ReadWrite);
  if (!database) return database;
  Status status = prepareFile(**database);
  damaged = !status && (*database)->isDamaged();
  if (status) {
    status = checkPages(**database);
    damaged = !status;
  }
  if (!status) return propagate(status);
  return database;
}

/// Gives a damaged file a name of its own, unless another process has done so meanwhile.
Status setAside(const std::string &directory, const std::string &path, std::string &asideName) {
  const int folder = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) flock(folder, LOCK_EX);
  bool damaged = false;
  Status result;
  if (auto again = openForWriting(path, damaged); !again && damaged) {
    asideName = fmt::format("{}.damaged-{}-{}", path, std::time(nullptr), getpid());
    for (const char *suffix : {"-wal", "-shm"})
      unlink((path + suffix).c_str());
    if (rename(path.c_str(), asideName.c_str()) != 0)
      result = fail(Stage::Cache, fmt::format("cannot rename the damaged {}: {}", path, std::strerror(errno)));
  }
  if (folder >= 0) close(folder); // and with it the lock
  return result;
}

} // namespace

struct TunedStore::State {
  std::string path;
  std::shared_ptr<Log> log;
  std::unique_ptr<Database> database;
  std::mutex mutex;

  void warn(const std::string &message) {
    log->warnOnce(path, fmt::format("tuned schedules: {}; what cannot be read is ignored", message));
  }

  /// The candidates that a query finds; `bind` gives its parameters.
  template <class Bind> std::vector<TunedCandidate> select(const std::string &where, Bind bind) {
    std::lock_guard lock(mutex);
    std::vector<TunedCandidate> found;
    Expected<Statement> query = database->prepare((TW_COLUMNS + where).c_str());
    if (!query) return warn(query.error().message), found;
    bind(*query);
    for (;;) {
      Expected<Statement::Step> step = query->step();
      if (!step) warn(step.error().message);
      if (!step || *step == Statement::Step::Done) return found;
      if (Expected<TunedCandidate> candidate = candidateOf(*query))
        found.push_back(std::move(*candidate));
      else
        warn(fmt::format("{} has a row that is not valid: {}", path, candidate.error().message));
    }
  }
};

TunedStore::TunedStore(std::unique_ptr<State> made) : state(std::move(made)) {}
TunedStore::~TunedStore() = default;
const std::string &TunedStore::path() const { return state->path; }

void TunedStore::warnOnce(const std::string &subject, std::string_view message) {
  state->log->warnOnce(state->path + ": " + subject, fmt::format("tuned schedules: {}", message));
}

std::shared_ptr<TunedStore> TunedStore::openExisting(const std::string &directory, std::shared_ptr<Log> log) {
  auto state = std::make_unique<State>();
  state->path = fmt::format("{}/{}", directory, kFileName);
  state->log = std::move(log);
  if (access(state->path.c_str(), F_OK) != 0) return nullptr;
  auto database = Database::open(state->path, Database::Mode::ReadOnly);
  if (!database) return state->warn(database.error().message), nullptr;
  state->database = std::move(*database);
  Expected<Statement> table =
      state->database->prepare("SELECT count(*) FROM sqlite_master WHERE type='table' AND name='candidates'");
  Expected<Statement::Step> step = table ? table->step() : Expected<Statement::Step>(propagate(table));
  if (!step) return state->warn(step.error().message), nullptr;
  if (table->integer(0) == 0) return nullptr; // another process is about to fill it
  return std::shared_ptr<TunedStore>(new TunedStore(std::move(state)));
}

Expected<std::shared_ptr<TunedStore>> TunedStore::openOrCreate(const std::string &directory, std::shared_ptr<Log> log) {
  auto state = std::make_unique<State>();
  state->path = fmt::format("{}/{}", directory, kFileName);
  state->log = std::move(log);
  std::error_code code;
  std::filesystem::create_directories(directory, code);
  if (code)
    return fail(Stage::Cache, fmt::format("cannot make the folder {}: {}", directory, code.message()),
                "TILEWRIGHT_CACHE_DIR can name a folder that can be written");
  bool damaged = false;
  auto database = openForWriting(state->path, damaged);
  if (!database && damaged) {
    const std::string reason = database.error().message;
    std::string aside;
    if (Status status = setAside(directory, state->path, aside); !status) return propagate(status);
    if (!aside.empty())
      state->log->write(LogLevel::Warning,
                        fmt::format("tuned schedules: {} is damaged ({}); it is now {}, and a new one is begun",
                                    state->path, reason, aside));
    database = openForWriting(state->path, damaged);
  }
  if (!database) return propagate(database);
  state->database = std::move(*database);
  return std::shared_ptr<TunedStore>(new TunedStore(std::move(state)));
}

Status TunedStore::put(std::span<const TunedCandidate> candidates) {
  std::lock_guard lock(state->mutex);
  Database &database = *state->database;
  if (Status status = database.run("BEGIN IMMEDIATE"); !status) return status;
  auto insertAll = [&]() -> Status {
    Expected<Statement> insert = database.prepare(kInsert);
    if (!insert) return propagate(insert);
    for (const TunedCandidate &c : candidates) {
      insert->reset();
      insert->add(c.environment.target);
      addEnvironment(*insert, c.environment);
      insert->add(tuningFamily(c.problem, c.role));
      addSizes(*insert, TuningSizes(c.problem));
      insert->add(scheduleText(c.schedule));
      insert->add(nlohmann::json(c.problem).dump());
      insert->add(toString(c.role));
      insert->add(toString(c.outcome));
      for (double ms : {c.ms, c.fastestMs, c.slowestMs})
        insert->add(ms);
      insert->add(static_cast<int64_t>(c.repeats));
      insert->add(static_cast<int64_t>(c.confirmed));
      insert->add(c.detail);
      insert->add(c.clockMhz);
      insert->add(c.recorded);
      if (Expected<Statement::Step> step = insert->step(); !step) return propagate(step);
    }
    return {};
  };
  Status status = insertAll();
  if (status) status = database.run("COMMIT");
  if (!status) (void)database.run("ROLLBACK"); // fails where SQLite has rolled back by itself
  return status;
}

std::optional<TunedCandidate> TunedStore::find(const TuningEnvironment &environment, const Problem &problem,
                                               KernelRole role, const Schedule &schedule) {
  auto found =
      state->select(fmt::format("{}{}{} AND schedule=?", kOfFamily, kOfSizes, kOfEnvironment), [&](Statement &query) {
        query.add(tuningFamily(problem, role));
        query.add(environment.target);
        addSizes(query, TuningSizes(problem));
        addEnvironment(query, environment);
        query.add(scheduleText(schedule));
      });
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

std::vector<TunedCandidate> TunedStore::rows(const TuningEnvironment &environment, const Problem &problem,
                                             KernelRole role) {
  return state->select(fmt::format("{}{}{}", kOfFamily, kOfSizes, kOfEnvironment), [&](Statement &query) {
    query.add(tuningFamily(problem, role));
    query.add(environment.target);
    addSizes(query, TuningSizes(problem));
    addEnvironment(query, environment);
  });
}

std::vector<TunedCandidate> TunedStore::timed(const std::string &target, const Problem &problem, KernelRole role) {
  return state->select(fmt::format("{}{} AND outcome='ok'", kOfFamily, kOfSizes), [&](Statement &query) {
    query.add(tuningFamily(problem, role));
    query.add(target);
    addSizes(query, TuningSizes(problem));
  });
}

std::vector<TuningSizes> TunedStore::sizes(const std::string &target, const Problem &problem, KernelRole role) {
  std::lock_guard lock(state->mutex);
  std::vector<TuningSizes> found;
  Expected<Statement> query = state->database->prepare(
      fmt::format("SELECT DISTINCT batch, heads_q, heads_kv, seq_q, seq_kv FROM candidates {} AND outcome='ok'",
                  kOfFamily)
          .c_str());
  if (!query) return state->warn(query.error().message), found;
  query->add(tuningFamily(problem, role));
  query->add(target);
  for (;;) {
    Expected<Statement::Step> step = query->step();
    if (!step) state->warn(step.error().message);
    if (!step || *step == Statement::Step::Done) return found;
    TuningSizes &sizes = found.emplace_back();
    int column = 0;
    for (int64_t *size : {&sizes.batch, &sizes.headsQ, &sizes.headsKV, &sizes.seqQ, &sizes.seqKV})
      *size = query->integer(column++);
  }
}

std::vector<TunedCandidate> TunedStore::all() {
  return state->select(" ORDER BY target, device, problem, role, policy, schedule", [](Statement &) {});
}

size_t TunedStore::count() {
  std::lock_guard lock(state->mutex);
  Expected<Statement> query = state->database->prepare("SELECT count(*) FROM candidates");
  if (!query || !query->step()) return 0;
  return static_cast<size_t>(query->integer(0));
}

Expected<size_t> TunedStore::clear() {
  std::lock_guard lock(state->mutex);
  if (Status status = state->database->run("DELETE FROM candidates"); !status) return propagate(status);
  return static_cast<size_t>(state->database->changes());
}

Status TunedStore::exportLines(std::ostream &out) {
  for (const TunedCandidate &candidate : all())
    out << nlohmann::json(candidate).dump() << '\n';
  return out ? Status() : fail(Stage::Output, "cannot write all lines", "is the disk full?");
}

Expected<ImportedLines> TunedStore::importLines(std::istream &in, const std::string &name) {
  ImportedLines result;
  std::vector<TunedCandidate> candidates;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    Expected<TunedCandidate> candidate = json.is_discarded()
                                             ? Expected<TunedCandidate>(fail(Stage::Input, "expected a JSON object"))
                                             : tunedCandidateFromJson(json);
    if (candidate) {
      candidates.push_back(std::move(*candidate));
      continue;
    }
    if (result.refused++ == 0) result.firstRefusal = fmt::format("{}:{}: {}", name, number, candidate.error().message);
  }
  if (Status status = put(candidates); !status) return propagate(status);
  result.taken = candidates.size();
  return result;
}

} // namespace tilewright
