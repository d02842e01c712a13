#include "Database.h"
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

namespace tilewright {
namespace {

constexpr int kBusyMilliseconds = 10000;

/// What a result code asks of the person who gets it.
const char *hintOf(int code) {
  switch (code & 0xff) {
  case SQLITE_FULL:
    return "make room on the disk";
  case SQLITE_BUSY:
    return "another process has been writing for ten seconds: try again";
  case SQLITE_READONLY:
  case SQLITE_PERM:
  case SQLITE_CANTOPEN:
    return "the folder and the file must be yours to write";
  case SQLITE_NOTADB:
  case SQLITE_CORRUPT:
    return "remove the file: what was tuned is measured anew";
  default:
    return "";
  }
}

/// Percent-encodes what has a meaning in a file URI.
std::string uriOf(const std::string &path, std::string_view parameters) {
  std::string uri = "file:";
  for (char c : path)
    uri += c == '%' || c == '?' || c == '#' ? fmt::format("%{:02x}", static_cast<unsigned char>(c)) : std::string(1, c);
  return uri + "?" + std::string(parameters);
}

} // namespace

Statement::~Statement() { sqlite3_finalize(handle); }

void Statement::add(std::string_view text) {
  sqlite3_bind_text(handle, ++bound, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
}
void Statement::add(int64_t number) { sqlite3_bind_int64(handle, ++bound, number); }
void Statement::add(double number) { sqlite3_bind_double(handle, ++bound, number); }

void Statement::reset() {
  sqlite3_reset(handle);
  bound = 0;
}

Expected<Statement::Step> Statement::step() {
  const int code = sqlite3_step(handle);
  if (code == SQLITE_ROW) return Step::Row;
  sqlite3 *database = sqlite3_db_handle(handle);
  std::string reason = sqlite3_errmsg(database);
  reset();
  if (code == SQLITE_DONE) return Step::Done;
  return fail(Stage::Cache, fmt::format("{}: {}", sqlite3_db_filename(database, "main"), reason), hintOf(code));
}

std::string Statement::text(int column) const {
  const auto *bytes = reinterpret_cast<const char *>(sqlite3_column_text(handle, column));
  return bytes ? std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(handle, column))) : std::string();
}
int64_t Statement::integer(int column) const { return sqlite3_column_int64(handle, column); }
double Statement::number(int column) const { return sqlite3_column_double(handle, column); }

Expected<std::unique_ptr<Database>> Database::open(const std::string &path, Mode mode) {
  sqlite3 *handle = nullptr;
  // Without a writable folder there can be no shared-memory file beside the database: it is then read as it stands.
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  const bool writable = access(folder.empty() ? "." : folder.c_str(), W_OK) == 0 && access(path.c_str(), W_OK) == 0;
  const bool immutable = mode == Mode::ReadOnly && !writable;
  const std::string uri = uriOf(path, immutable ? "mode=ro&immutable=1" : "mode=rw");
  const int code = sqlite3_open_v2(
      uri.c_str(), &handle,
      SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | (immutable ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE), nullptr);
  std::unique_ptr<Database> database(new Database(handle, path));
  if (code != SQLITE_OK) return tl::unexpected<Error>(database->error("open"));
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyMilliseconds);
  return database;
}

Database::~Database() { sqlite3_close_v2(handle); }

Error Database::error(std::string_view what) const {
  return {Stage::Cache,
          fmt::format("cannot {} {}: {}", what, path, handle ? sqlite3_errmsg(handle) : "out of memory"),
          handle ? hintOf(sqlite3_errcode(handle)) : "",
          {}};
}

Status Database::run(const char *sql) {
  if (sqlite3_exec(handle, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return tl::unexpected<Error>(error("use"));
}

Expected<Statement> Database::prepare(const char *sql) {
  sqlite3_stmt *statement = nullptr;
  if (sqlite3_prepare_v2(handle, sql, -1, &statement, nullptr) == SQLITE_OK) return Statement(statement);
  return tl::unexpected<Error>(error("use"));
}

int64_t Database::changes() const { return sqlite3_changes64(handle); }

bool Database::isDamaged() const {
  const int code = sqlite3_errcode(handle) & 0xff;
  return code == SQLITE_NOTADB || code == SQLITE_CORRUPT;
}

} // namespace tilewright
