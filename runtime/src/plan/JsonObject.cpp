#include "JsonObject.h"
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright {

std::string describeJson(const nlohmann::json &json) {
  if (json.is_array()) return "an array";
  if (json.is_object()) return "an object";
  constexpr size_t kLongest = 60;
  std::string text = json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

JsonObject::JsonObject(const nlohmann::json &json, std::string place) : json(json), place(std::move(place)) {
  if (!json.is_object())
    status = fail(Stage::Input, fmt::format("{}: expected an object, found {}", this->place, describeJson(json)));
}

const nlohmann::json *JsonObject::find(const char *key) {
  known.push_back(key);
  return isPresent(key) ? &json.at(key) : nullptr;
}

void JsonObject::refuse(const char *key, const std::string &message, std::string hint) {
  if (status) status = fail(Stage::Input, fmt::format("{}: {}", placeOf(key), message), std::move(hint));
}

void JsonObject::expect(const char *key, const char *what, const nlohmann::json &found) {
  refuse(key, fmt::format("expected {}, found {}", what, describeJson(found)));
}

void JsonObject::read(const char *key, int64_t &value) {
  const nlohmann::json *found = find(key);
  if (!found) return;
  if (!found->is_number_integer() || (found->is_number_unsigned() && found->get<uint64_t>() > uint64_t{INT64_MAX}))
    return expect(key, "an integer within 64 bits", *found);
  value = found->get<int64_t>();
}

void JsonObject::read(const char *key, int &value) {
  int64_t wide = value;
  read(key, wide);
  if (wide < INT32_MIN || wide > INT32_MAX)
    return refuse(key, fmt::format("expected an integer within 32 bits, found {}", wide));
  value = static_cast<int>(wide);
}

void JsonObject::read(const char *key, double &value) {
  const nlohmann::json *found = find(key);
  if (!found) return;
  if (!found->is_number()) return expect(key, "a number", *found);
  value = found->get<double>();
}

void JsonObject::read(const char *key, bool &value) {
  const nlohmann::json *found = find(key);
  if (!found) return;
  if (!found->is_boolean()) return expect(key, "true or false", *found);
  value = found->get<bool>();
}

void JsonObject::read(const char *key, std::string &value) {
  const nlohmann::json *found = find(key);
  if (!found) return;
  if (!found->is_string()) return expect(key, "a string", *found);
  value = found->get<std::string>();
}

void JsonObject::read(const char *key, std::optional<double> &value) {
  const nlohmann::json *found = find(key);
  if (!found) return;
  if (found->is_null())
    value.reset();
  else if (found->is_number())
    value = found->get<double>();
  else
    expect(key, "a number or null", *found);
}

Status JsonObject::finish() {
  if (!status) return status;
  for (auto entry = json.begin(); entry != json.end(); ++entry)
    if (std::none_of(known.begin(), known.end(), [&](const char *name) { return entry.key() == name; }))
      return fail(Stage::Input, fmt::format("{}: unknown key {}", place, describeJson(entry.key())),
                  fmt::format("known keys: {}", fmt::join(known, ", ")));
  return {};
}

} // namespace tilewright
