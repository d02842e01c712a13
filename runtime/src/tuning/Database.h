// SQLite with its handles owned and its codes as Errors. One thread at a time.
#pragma once

#include "tilewright/Error.h"
#include <memory>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace tilewright {

class Database;

/// A prepared statement. Values are bound in order with add(), columns of the current row read by number.
class Statement {
public:
  Statement(Statement &&other) noexcept : handle(std::exchange(other.handle, nullptr)), bound(other.bound) {}
  Statement &operator=(Statement &&) = delete;
  ~Statement();

  void add(std::string_view text);
  void add(int64_t number);
  void add(double number);

  enum class Step { Row, Done };
  /// Runs to the next row, or to the end. After an error or Done the statement can be bound anew.
  Expected<Step> step();
  void reset();

  std::string text(int column) const;
  int64_t integer(int column) const;
  double number(int column) const;

private:
  friend class Database;
  explicit Statement(sqlite3_stmt *handle) : handle(handle) {}
  sqlite3_stmt *handle = nullptr;
  int bound = 0;
};

class Database {
public:
  enum class Mode { ReadWrite, ReadOnly };
  /// The file must exist. Read-only opening works in folders that cannot be written.
  static Expected<std::unique_ptr<Database>> open(const std::string &path, Mode mode);
  ~Database();

  Status run(const char *sql);
  Expected<Statement> prepare(const char *sql);
  /// Rows that the last statement changed.
  int64_t changes() const;
  /// Whether the last error means that the file's content is at fault: not a database, or a damaged one.
  bool isDamaged() const;

private:
  Database(sqlite3 *handle, std::string path) : handle(handle), path(std::move(path)) {}
  Error error(std::string_view what) const;
  sqlite3 *handle = nullptr;
  std::string path;
};

} // namespace tilewright
