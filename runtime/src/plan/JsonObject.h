// Reads one JSON object strictly: wrong types, numbers out of range and unknown keys are errors that name the key and
// the place ("problem.window"). Missing keys leave the default. The first error wins; finish() returns it.
#pragma once

#include "tilewright/Error.h"
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tilewright {

class JsonObject {
public:
  JsonObject(const nlohmann::json &json, std::string place);

  void read(const char *key, int64_t &value);
  void read(const char *key, int &value);
  void read(const char *key, double &value);
  void read(const char *key, bool &value);
  void read(const char *key, std::string &value);
  /// null is nullopt.
  void read(const char *key, std::optional<double> &value);

  /// A string that `parse` turns into the value.
  template <class T, class Parse> void readName(const char *key, T &value, Parse parse) {
    std::string text;
    read(key, text);
    if (status && isPresent(key)) accept(key, value, parse(text));
  }

  /// The value of a key that the caller reads itself; nullptr when it is missing.
  const nlohmann::json *find(const char *key);
  /// Stores the value of a nested reader, or its error with the key before it.
  template <class T> void accept(const char *key, T &value, Expected<T> result) {
    if (result)
      value = std::move(*result);
    else
      refuse(key, result.error().message, result.error().hint);
  }
  void refuse(const char *key, const std::string &message, std::string hint = {});

  bool isPresent(const char *key) const { return json.is_object() && json.contains(key); }
  std::string placeOf(const char *key) const { return place + "." + key; }
  Status finish();

private:
  void expect(const char *key, const char *what, const nlohmann::json &found);

  const nlohmann::json &json;
  std::string place;
  std::vector<const char *> known;
  Status status;
};

/// "7", "\"text\"", "an array": a value in a message. Shallow, so that a deeply nested one costs no stack.
std::string describeJson(const nlohmann::json &json);

} // namespace tilewright
