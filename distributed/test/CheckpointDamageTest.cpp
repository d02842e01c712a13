#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include "TrainingModel.h"
#include "checkpoint/CheckpointFolder.h"
#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/distributed/checkpoint/Safetensors.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

using namespace model;
namespace fs = std::filesystem;

namespace {

/// One rank that trains, saves and loads.
struct Alone {
  std::unique_ptr<Transport> transport = std::move(*connectGloo({}));
  std::unique_ptr<ComputeDevice> device = hostDevice();
  std::unique_ptr<Engine> engine =
      std::move(*Engine::create(parameterList(), {Strategy::Bucketed}, *transport, *device));
};

std::string readAll(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void writeAll(const std::string &path, const std::string &text) { std::ofstream(path, std::ios::binary) << text; }

/// A checkpoint's folder with steps 1 and 2, of which the newer gets spoilt.
struct Saved : TemporaryFolder {
  std::string folder = path + "/step-00000002", modelFile = folder + "/model.safetensors",
              stateFile = folder + "/optimizer-0-of-1.safetensors", manifest = folder + "/checkpoint.json";
  Saved() {
    Alone alone;
    initialise(*alone.engine);
    REQUIRE(alone.engine->start());
    for (int step = 0; step < 2; ++step) {
      REQUIRE(trainStep(*alone.engine, {}, 0, step));
      auto saved = saveCheckpoint(*alone.engine, {path, {}, 2});
      REQUIRE_MESSAGE(saved, saved.error().text());
    }
  }
  /// What loading says; nothing may have been loaded.
  std::string refusal() const {
    Alone alone;
    initialise(*alone.engine, 5);
    const uint64_t before = digest(*alone.engine);
    auto loaded = loadCheckpoint(*alone.engine, path);
    if (loaded) return "loaded";
    CHECK(digest(*alone.engine) == before);
    CHECK(alone.engine->updates() == 0);
    return loaded.error().text();
  }
  void refused(std::initializer_list<const char *> parts) const {
    const std::string said = refusal();
    for (const char *part : parts)
      CHECK_MESSAGE(said.find(part) != std::string::npos, said);
  }
  /// Changes a safetensors file's header; the file stays well-formed JSON with the same data.
  void editHeader(const std::string &file, const std::function<void(nlohmann::json &)> &edit) const {
    const std::string bytes = readAll(file);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length));
    edit(header);
    std::string text = header.dump();
    text.resize(std::max<size_t>(text.size(), length), ' '); // the padding that it had
    setHeader(file, text, bytes.substr(8 + length));
  }
  void setHeader(const std::string &file, const std::string &header, const std::string &data) const {
    const uint64_t length = header.size();
    writeAll(file, std::string(reinterpret_cast<const char *>(&length), sizeof(length)) + header + data);
  }
  void setLength(const std::string &file, uint64_t length) const {
    std::string bytes = readAll(file);
    std::memcpy(bytes.data(), &length, sizeof(length));
    writeAll(file, bytes);
  }
  void editManifest(const std::function<void(nlohmann::json &)> &edit) const {
    nlohmann::json json = nlohmann::json::parse(readAll(manifest));
    edit(json);
    writeAll(manifest, json.dump());
  }
};

} // namespace

TEST_CASE("a file that was cut off, goes on, or has a bad length is refused by name") {
  for (const char *which : {"model.safetensors", "optimizer-0-of-1.safetensors"}) {
    Saved saved;
    const std::string file = saved.folder + "/" + which, good = readAll(file);
    CHECK(inspectCheckpoint(saved.path, true));
    writeAll(file, good + "abc");
    saved.refused({which, "data: expected", "goes on after its last tensor"});
    for (size_t size : {size_t{0}, size_t{7}, size_t{100}, good.size() / 2, good.size() - 1}) {
      writeAll(file, good.substr(0, size));
      saved.refused({which});
    }
    saved.refused({"data: expected", "is cut off", "the one before it is", "step-00000001"});
    CHECK(inspectCheckpoint(saved.path + "/step-00000001", true));
    for (uint64_t length : {uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 62, uint64_t{good.size()}, ~uint64_t{0}}) {
      writeAll(file, good);
      saved.setLength(file, length);
      saved.refused({which, "header length: expected 2 to"});
    }
    saved.setHeader(file, "{not json", "");
    saved.refused({which, "header: not a JSON object"});
    fs::remove(file);
    saved.refused({which, "No such file"});
    fs::create_directory(file);
    saved.refused({which, "not a regular file"});
  }
}

TEST_CASE("a damaged checkpoint's hint names the one before it by number, not by letters") {
  Saved saved;
  fs::rename(saved.path + "/step-00000001", saved.path + "/step-99999999");
  fs::rename(saved.folder, saved.path + "/step-100000000");
  fs::create_directory(saved.path + "/step-100000000.10"); // later, though "1" comes before "2"
  writeAll(saved.path + "/newest", "step-100000000\n");
  fs::resize_file(saved.path + "/step-100000000/model.safetensors", 100);
  const std::string said = saved.refusal();
  CHECK_MESSAGE(said.find("the one before it is " + saved.path + "/step-99999999") != std::string::npos, said);
}

TEST_CASE("a checkpoint that cannot be pointed to is taken back: the directory is as it was, and saving goes on") {
  Saved saved;
  auto contents = [&] {
    std::vector<std::string> names;
    for (const auto &entry : fs::directory_iterator(saved.path))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  };
  const std::vector<std::string> before = contents();
  {
    auto folder = SavingFolder::open(saved.path);
    REQUIRE(folder);
    writeAll(folder->path() + "/model.safetensors", "");
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit full{4, limit.rlim_max}; // as a disk that has no room for the pointer
    setrlimit(RLIMIT_FSIZE, &full);
    auto published = folder->publish(3, 1);
    setrlimit(RLIMIT_FSIZE, &limit);
    REQUIRE_FALSE(published);
    CHECK_MESSAGE(published.error().text().find("newest") != std::string::npos, published.error().text());
  }
  CHECK(contents() == before);
  Alone alone;
  REQUIRE(loadCheckpoint(*alone.engine, saved.path));
  REQUIRE(trainStep(*alone.engine, {}, 0, 2));
  CHECK(saveCheckpoint(*alone.engine, {saved.path, {}, 1}));
  CHECK(contents() == std::vector<std::string>{"newest", "step-00000003"});
}

TEST_CASE("one bit of the data, of the header or of the manifest is noticed") {
  Saved saved;
  for (const std::string &file : {saved.modelFile, saved.stateFile, saved.manifest}) {
    const std::string good = readAll(file);
    for (size_t at : {good.size() - 2, good.size() / 2, good.size() / 3, size_t{40}, size_t{9}}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      writeAll(file, bad);
      CAPTURE(at);
      saved.refused({fs::path(file).filename().c_str()});
    }
    std::string bad = good;
    bad[good.size() - 2] = static_cast<char>(bad[good.size() - 2] ^ 64);
    writeAll(file, bad);
    if (file != saved.manifest) saved.refused({"data: SHA-256 is", "the file is damaged"});
    writeAll(file, good);
  }
}

TEST_CASE("edited headers are refused with the tensor and the field") {
  Saved saved;
  const std::string state = readAll(saved.stateFile), modelBytes = readAll(saved.modelFile);
  auto refused = [&](const std::string &file, std::function<void(nlohmann::json &)> edit,
                     std::initializer_list<const char *> parts) {
    saved.editHeader(file, edit);
    saved.refused(parts);
    writeAll(saved.stateFile, state);
    writeAll(saved.modelFile, modelBytes);
  };
  using Json = nlohmann::json;
  const std::string range = "m/weight[0:221]";
  refused(saved.stateFile, [&](Json &j) { j[range]["dtype"] = "I32"; }, {"m/weight[0:221]: dtype: expected float32"});
  refused(saved.stateFile, [&](Json &j) { j[range]["dtype"] = "F8"; }, {"m/weight[0:221].dtype", "found \"F8\""});
  refused(saved.stateFile, [&](Json &j) { j[range]["shape"] = {222}; }, {"m/weight[0:221].data_offsets", "888 bytes"});
  refused(saved.stateFile, [&](Json &j) { j[range]["shape"] = {-1}; }, {"m/weight[0:221].shape", "natural"});
  refused(saved.stateFile,
          [&](Json &j) {
            j[range]["shape"] = {uint64_t{1} << 62, 8};
          },
          {"m/weight[0:221].shape: larger than"});
  refused(saved.stateFile, [&](Json &j) { j[range]["color"] = 1; }, {"m/weight[0:221].color: unknown field"});
  refused(saved.stateFile, [&](Json &j) { j[range].erase("shape"); }, {"m/weight[0:221].shape: missing"});
  refused(saved.stateFile,
          [&](Json &j) {
            j[range]["data_offsets"] = {0, 884};
          },
          {".data_offsets: expected to begin at"});
  refused(saved.stateFile,
          [&](Json &j) {
            for (int end : {0, 1})
              j[range]["data_offsets"][static_cast<size_t>(end)] =
                  j[range]["data_offsets"][static_cast<size_t>(end)].get<int64_t>() + 4;
          },
          {"data_offsets: expected to begin at", "there is a gap"});
  refused(saved.stateFile,
          [&](Json &j) {
            j["m/weight[1:222]"] = j[range];
            j.erase(range);
          },
          {"m/weight[1:222]: shape: expected elements of the 221"});
  refused(saved.stateFile,
          [&](Json &j) {
            j["m/other[0:221]"] = j[range];
            j.erase(range);
          },
          {"model.safetensors has no parameter other"});
  refused(saved.stateFile,
          [&](Json &j) {
            j["v/tiny0[0:1]2"] = j["v/tiny0[0:1]"];
            j.erase("v/tiny0[0:1]");
          },
          {"v/tiny0[0:1]2: expected a name such as m/PARAMETER[0:128]"});
  // The second moment takes the first one's place: well-formed, but not what was written.
  refused(saved.stateFile, [&](Json &j) { j["m/tiny0[0:1]"].swap(j["v/tiny0[0:1]"]); }, {"data: SHA-256 is"});
  refused(saved.modelFile,
          [&](Json &j) {
            j["weight"]["shape"] = {17, 13};
          },
          {"model.safetensors: weight.shape: expected (13, 17)"});
  refused(saved.modelFile, [&](Json &j) { j["weight"]["dtype"] = "I32"; }, {"model.safetensors: weight.dtype"});
  refused(saved.modelFile,
          [&](Json &j) {
            j["wright"] = j["weight"];
            j.erase("weight");
          },
          {"m/weight[0:221]: model.safetensors has no parameter weight"});
  refused(saved.modelFile, [&](Json &j) { j["__metadata__"]["step"] = "3"; }, {"__metadata__.step", "another step"});
  refused(saved.modelFile, [&](Json &j) { j["__metadata__"]["step"] = 2; }, {"__metadata__: expected an object of"});
  // Names that are there twice.
  const size_t length =
      static_cast<unsigned char>(modelBytes[0]) | static_cast<size_t>(static_cast<unsigned char>(modelBytes[1])) << 8;
  saved.setHeader(saved.modelFile, "{\"weight\":{}," + modelBytes.substr(9, length - 1), modelBytes.substr(8 + length));
  saved.refused({"model.safetensors: header: 'weight' is there twice"});
  writeAll(saved.modelFile, modelBytes);
  // The shard of another step, and of another checkpoint of the same step.
  writeAll(saved.stateFile, readAll(saved.path + "/step-00000001/optimizer-0-of-1.safetensors"));
  saved.refused({"optimizer-0-of-1.safetensors: __metadata__.step: checkpoint.json has 2, the file 1"});
  writeAll(saved.stateFile, readAll(Saved().stateFile));
  saved.refused({"optimizer-0-of-1.safetensors: __metadata__.checkpoint", "another checkpoint"});
}

TEST_CASE("an edited manifest is refused with the field") {
  Saved saved;
  const std::string good = readAll(saved.manifest);
  auto refused = [&](std::function<void(nlohmann::json &)> edit, std::initializer_list<const char *> parts) {
    saved.editManifest(edit);
    saved.refused(parts);
    writeAll(saved.manifest, good);
  };
  using Json = nlohmann::json;
  refused([](Json &j) { j["step"] = 3; }, {"model.safetensors: __metadata__.step: checkpoint.json has 3, the file 2"});
  refused([](Json &j) { j["step"] = "two"; }, {"checkpoint.json: checkpoint.step"});
  refused([](Json &j) { j["step"] = -1; }, {"checkpoint.step", "-1"});
  refused([](Json &j) { j["world_size"] = 2; }, {"checkpoint.files: expected", "optimizer-1-of-2.safetensors"});
  refused([](Json &j) { j["world_size"] = 1 << 30; }, {"checkpoint.world_size", "1073741824"});
  refused([](Json &j) { j["format"] = "tilewright checkpoint 9"; }, {"checkpoint.format", "checkpoint 9"});
  refused([](Json &j) { j["notes"]["learning_rate"] = "9"; }, {"checkpoint.sha256", "was edited"});
  refused([](Json &j) { j["notes"]["learning_rate"] = 9; }, {"checkpoint.notes"});
  refused([](Json &j) { j["files"][0]["bytes"] = 12; }, {"model.safetensors: size: checkpoint.json has 12"});
  refused([](Json &j) { j["files"][1]["name"] = "../x"; }, {"checkpoint.files: expected", "../x"});
  refused([](Json &j) { j["files"] = 7; }, {"checkpoint.files: expected an array"});
  refused([](Json &j) { j["extra"] = 1; }, {"checkpoint.json", "extra"});
  refused([](Json &j) { j["parameter_type"] = "float16"; }, {"checkpoint.parameter_type", "float16"});
  writeAll(saved.manifest, "[]");
  saved.refused({"checkpoint.json: not a JSON object"});
  writeAll(saved.manifest, good.substr(0, good.size() / 2));
  saved.refused({"checkpoint.json: not a JSON object"});
}

TEST_CASE("headers lay data out aligned and without gaps, and read back as they were") {
  TemporaryFolder folder;
  SafetensorsHeader header;
  header.metadata = {{"a", "b"}};
  header.tensors = {
      {"x", ElementType::BF16, {3}}, {"empty", ElementType::F32, {0, 4}}, {"scalar", ElementType::F64, {}}};
  const std::string head = header.layOut();
  CHECK(head.size() == static_cast<size_t>(header.dataBegin));
  CHECK(header.dataBegin % 8 == 0);
  CHECK(header.dataBytes == 6 + 0 + 8);
  writeAll(folder.path + "/f", head + "012345abcdefgh");
  auto back = SafetensorsHeader::read(folder.path + "/f");
  REQUIRE_MESSAGE(back, back.error().text());
  CHECK(back->metadata == header.metadata);
  REQUIRE(back->tensors.size() == 3);
  CHECK(back->find("scalar")->begin == 6);
  CHECK(back->find("empty")->shape == std::vector<int64_t>{0, 4});
  CHECK(back->find("none") == nullptr);
  char read[8];
  CHECK(readTensorData(folder.path + "/f", *back, 6, 8, read));
  CHECK(std::string(read, 8) == "abcdefgh");
  CHECK_FALSE(readTensorData(folder.path + "/f", *back, 7, 8, read));
}
