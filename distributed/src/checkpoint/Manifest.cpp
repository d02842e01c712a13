#include "Manifest.h"
#include "plan/JsonObject.h"
#include "tilewright/plan/KernelPlan.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::dist {
namespace {

using Json = nlohmann::json;

constexpr const char *kFormat = "tilewright checkpoint 1";

Json toJson(const Manifest &manifest) {
  Json files = Json::array();
  for (const FileRecord &file : manifest.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  return {{"format", kFormat},
          {"id", manifest.id},
          {"step", manifest.step},
          {"world_size", manifest.worldSize},
          {"strategy", manifest.strategy},
          {"parameter_type", toString(manifest.parameterType)},
          {"version", manifest.version},
          {"notes", manifest.notes},
          {"files", files}};
}

std::string hashOf(const Json &json) { return sha256Hex(json.dump(-1, ' ', false, Json::error_handler_t::replace)); }

Expected<FileRecord> fileFromJson(const Json &json, const std::string &place) {
  FileRecord file;
  JsonObject object(json, place);
  object.read("name", file.name);
  object.read("bytes", file.bytes);
  object.read("sha256", file.sha256);
  if (Status status = object.finish(); !status) return propagate(status);
  return file;
}

} // namespace

std::string optimizerFileName(int rank, int worldSize) {
  return fmt::format("optimizer-{}-of-{}.safetensors", rank, worldSize);
}

std::string Manifest::text() const {
  Json json = toJson(*this);
  json["sha256"] = hashOf(json);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Expected<Manifest> Manifest::parse(const std::string &text, const std::string &path, bool &intact) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return fail(Stage::Input, fmt::format("{}: not a JSON object", path));
  Manifest manifest;
  std::string format, hash;
  JsonObject object(json, path + ": checkpoint");
  object.read("format", format);
  object.read("id", manifest.id);
  object.read("step", manifest.step);
  object.read("world_size", manifest.worldSize);
  object.read("strategy", manifest.strategy);
  object.readName("parameter_type", manifest.parameterType, [](std::string_view text) -> Expected<ElementType> {
    for (ElementType type : {ElementType::F32, ElementType::BF16})
      if (text == toString(type)) return type;
    return fail(Stage::Input, fmt::format("expected float32 or bfloat16, found '{}'", text));
  });
  object.read("version", manifest.version);
  object.read("sha256", hash);
  if (const Json *notes = object.find("notes")) {
    for (const auto &[key, value] : notes->items()) {
      if (!notes->is_object() || !value.is_string()) {
        object.refuse("notes", "expected an object of strings");
        break;
      }
      manifest.notes[key] = value.get<std::string>();
    }
  }
  if (const Json *files = object.find("files")) {
    if (!files->is_array()) object.refuse("files", fmt::format("expected an array, found {}", describeJson(*files)));
    for (size_t i = 0; files->is_array() && i < files->size(); ++i) {
      Expected<FileRecord> file = fileFromJson((*files)[i], fmt::format("files[{}]", i));
      if (file)
        manifest.files.push_back(std::move(*file));
      else
        object.refuse("files", file.error().message);
    }
  }
  if (format != kFormat) object.refuse("format", fmt::format("expected \"{}\", found \"{}\"", kFormat, format));
  if (manifest.step < 0) object.refuse("step", fmt::format("expected at least 0, found {}", manifest.step));
  constexpr int kMostRanks = 1 << 16;
  if (manifest.worldSize < 1 || manifest.worldSize > kMostRanks)
    object.refuse("world_size", fmt::format("expected 1 to {}, found {}", kMostRanks, manifest.worldSize));
  if (Status status = object.finish(); !status) return propagate(status);
  json.erase("sha256");
  intact = hashOf(json) == hash;
  return manifest;
}

} // namespace tilewright::dist
