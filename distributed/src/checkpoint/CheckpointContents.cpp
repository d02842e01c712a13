#include "CheckpointContents.h"
#include "CheckpointFolder.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>

namespace tilewright::dist {
namespace {

namespace fs = std::filesystem;

Expected<std::string> stepFolder(const std::string &path) {
  std::error_code ignored;
  if (fs::exists(path + "/" + kManifestName, ignored)) return path;
  const std::string hint = "give a folder such as step-00000010, or the directory that holds it";
  if (!fs::is_directory(path, ignored))
    return fail(Stage::Input, fmt::format("checkpoint {}: no such folder", path), hint);
  Expected<std::optional<CheckpointName>> newest = newestIn(path);
  if (!newest) return propagate(newest);
  if (!*newest)
    return fail(Stage::Input,
                fmt::format("checkpoint {}: there is no {} in it, and no folder step-...", path, kManifestName), hint);
  return path + "/" + (*newest)->text();
}

/// What to load instead of a damaged checkpoint.
std::string hintBeside(const std::string &folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  const std::optional<CheckpointName> own = CheckpointName::parse(path.filename().string());
  Expected<std::vector<CheckpointName>> names = checkpointsIn(path.parent_path().string());
  if (!own || !names) return {};
  for (auto name = names->rbegin(); name != names->rend(); ++name)
    if (*name < *own) return fmt::format("the one before it is {}", (path.parent_path() / name->text()).string());
  return {};
}

} // namespace

Expected<CheckpointContents> CheckpointContents::open(const std::string &path) {
  Expected<std::string> folder = stepFolder(path);
  if (!folder) return propagate(folder);
  CheckpointContents contents;
  contents.folder = std::move(*folder);
  Status status = contents.readManifest();
  if (status) status = contents.readHeaders();
  if (status) status = contents.findPieces();
  if (status) status = contents.checkSizes();
  // What a header says about an edit is more than that the manifest's hash is wrong.
  if (status && !contents.manifestIntact)
    status = fail(Stage::Input, fmt::format("{}/{}: checkpoint.sha256: does not fit the rest: the file was edited",
                                            contents.folder, kManifestName));
  if (!status) {
    if (status.error().hint.empty()) status.error().hint = hintBeside(contents.folder);
    return propagate(status);
  }
  return contents;
}

Status CheckpointContents::readManifest() {
  const std::string path = folder + "/" + kManifestName;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad())
    return fail(Stage::Input, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  Expected<Manifest> read = Manifest::parse(text, path, manifestIntact);
  if (!read) return propagate(read);
  description = std::move(*read);
  std::vector<std::string> expected = {kModelName};
  for (int rank = 0; rank < description.worldSize; ++rank)
    expected.push_back(optimizerFileName(rank, description.worldSize));
  std::vector<std::string> found;
  for (const FileRecord &record : description.files)
    found.push_back(record.name);
  if (found != expected)
    return fail(Stage::Input, fmt::format("{}: checkpoint.files: expected {}, found {}", path,
                                          fmt::join(expected, ", "), fmt::join(found, ", ")));
  return {};
}

Status CheckpointContents::readHeaders() {
  for (size_t i = 0; i < description.files.size(); ++i) {
    Expected<SafetensorsHeader> header = SafetensorsHeader::read(pathOf(i));
    if (!header) return propagate(header);
    auto differs = [&](std::string_view field, const auto &expected, const auto &found, const char *why) {
      return fail(Stage::Input, fmt::format("{}: {}: {} has {}, the file {}: {}", pathOf(i), field, kManifestName,
                                            expected, found, why));
    };
    const std::string step = header->metadata["step"], id = header->metadata["checkpoint"];
    if (step != std::to_string(description.step))
      return differs("__metadata__.step", description.step, step, "it belongs to another step, or was edited");
    if (id != description.id)
      return differs("__metadata__.checkpoint", description.id, id, "it belongs to another checkpoint");
    headers.push_back(std::move(*header));
  }
  for (const SafeTensor &tensor : model().tensors)
    if (tensor.type != description.parameterType)
      return fail(Stage::Input, fmt::format("{}: {}.dtype: expected {}, found {}", pathOf(0), tensor.name,
                                            toString(description.parameterType), toString(tensor.type)));
  return {};
}

Status CheckpointContents::findPieces() {
  for (size_t file = 1; file < headers.size(); ++file)
    for (const SafeTensor &tensor : headers[file].tensors) {
      auto refuse = [&](const std::string &what) {
        return fail(Stage::Input, fmt::format("{}: {}: {}", pathOf(file), tensor.name, what));
      };
      const std::optional<StateTensorName> name = parseStateTensorName(tensor.name);
      if (!name) return refuse("expected a name such as m/PARAMETER[0:128]");
      const SafeTensor *parameter = model().find(name->parameter);
      if (!parameter) return refuse(fmt::format("{} has no parameter {}", kModelName, name->parameter));
      if (tensor.type != ElementType::F32)
        return refuse(fmt::format("dtype: expected float32, found {}", toString(tensor.type)));
      if (tensor.shape != std::vector<int64_t>{name->count} || name->begin + name->count > parameter->elements())
        return refuse(fmt::format("shape: expected elements of the {} that the parameter has, found ({})",
                                  parameter->elements(), fmt::join(tensor.shape, ", ")));
      pieces[{name->kind, name->parameter}].push_back({name->begin, name->count, file, tensor.begin});
    }
  for (StateKind kind : kStateKinds) {
    if (kind == StateKind::Master && description.parameterType == ElementType::F32) continue;
    for (const SafeTensor &parameter : model().tensors) {
      std::vector<Piece> &list = pieces[{kind, parameter.name}];
      std::ranges::sort(list, {}, &Piece::begin);
      int64_t covered = 0;
      for (const Piece &piece : list) {
        if (piece.begin != covered)
          return fail(Stage::Input,
                      fmt::format("{}: {}/{}: elements [{}, {}) are {}", pathOf(piece.file), toString(kind),
                                  parameter.name, std::min(piece.begin, covered), std::max(piece.begin, covered),
                                  piece.begin < covered ? "there twice" : "in no file"));
        covered += piece.count;
      }
      if (covered != parameter.elements())
        return fail(Stage::Input, fmt::format("{}/optimizer-*.safetensors: {}/{}: elements [{}, {}) are in no file",
                                              folder, toString(kind), parameter.name, covered, parameter.elements()));
    }
  }
  return {};
}

Status CheckpointContents::checkSizes() const {
  for (size_t i = 0; i < headers.size(); ++i)
    if (const int64_t bytes = headers[i].dataBegin + headers[i].dataBytes; bytes != description.files[i].bytes)
      return fail(Stage::Input, fmt::format("{}: size: {} has {}, the file {}: it was edited", pathOf(i), kManifestName,
                                            description.files[i].bytes, bytes));
  return {};
}

CheckpointSummary CheckpointContents::summary() const {
  CheckpointSummary summary{folder,
                            description.step,
                            description.worldSize,
                            description.strategy,
                            description.parameterType,
                            description.version,
                            description.notes,
                            {}};
  for (const SafeTensor &tensor : model().tensors)
    summary.parameters.push_back({tensor.name, tensor.shape, 0});
  return summary;
}

Status CheckpointContents::verifyData(int first, int stride) const {
  for (size_t i = static_cast<size_t>(first); i < description.files.size(); i += static_cast<size_t>(stride)) {
    Expected<std::string> hash = sha256OfFile(pathOf(i));
    if (!hash) return propagate(hash);
    if (*hash != description.files[i].sha256)
      return fail(Stage::Input,
                  fmt::format("{}: data: SHA-256 is {}..., {} expects {}...: the file is damaged", pathOf(i),
                              hash->substr(0, 12), kManifestName, description.files[i].sha256.substr(0, 12)),
                  hintBeside(folder));
  }
  return {};
}

Status CheckpointContents::readModel(const SafeTensor &tensor, int64_t begin, int64_t count, void *to) const {
  const int64_t size = sizeInBytes(tensor.type);
  return readTensorData(pathOf(0), model(), tensor.begin + begin * size, count * size, to);
}

Status CheckpointContents::readState(StateKind kind, const std::string &parameter, int64_t begin, int64_t count,
                                     float *to) const {
  for (const Piece &piece : pieces.at({kind, parameter})) {
    const int64_t from = std::max(begin, piece.begin), end = std::min(begin + count, piece.begin + piece.count);
    if (from >= end) continue;
    constexpr int64_t size = sizeof(float);
    if (Status status =
            readTensorData(pathOf(piece.file), headers[piece.file], piece.offset + (from - piece.begin) * size,
                           (end - from) * size, to + (from - begin));
        !status)
      return status;
  }
  return {};
}

} // namespace tilewright::dist
