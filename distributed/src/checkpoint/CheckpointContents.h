// A checkpoint as it lies on the disk: its manifest, its files' headers, and where each element of the state is.
#pragma once

#include "Manifest.h"
#include "StateRanges.h"
#include "tilewright/distributed/checkpoint/Safetensors.h"
#include <map>

namespace tilewright::dist {

class CheckpointContents {
public:
  /// `path` is a step's folder or a directory of them. Everything but the data is checked; errors name file and field.
  static Expected<CheckpointContents> open(const std::string &path);

  const std::string &path() const { return folder; }
  const Manifest &manifest() const { return description; }
  const SafetensorsHeader &model() const { return headers.front(); }
  CheckpointSummary summary() const;

  /// Compares the data of every `stride`-th file from `first` on with its hash.
  Status verifyData(int first = 0, int stride = 1) const;

  /// Elements [begin, begin + count) of a parameter in the model's type, or of its state.
  Status readModel(const SafeTensor &tensor, int64_t begin, int64_t count, void *to) const;
  Status readState(StateKind kind, const std::string &parameter, int64_t begin, int64_t count, float *to) const;

private:
  struct Piece {
    int64_t begin = 0, count = 0; ///< Elements of the parameter.
    size_t file = 0;              ///< Index in the manifest's list.
    int64_t offset = 0;           ///< Bytes in the file's data.
  };
  Status readManifest();
  Status readHeaders();
  Status findPieces();
  Status checkSizes() const;
  std::string pathOf(size_t file) const { return folder + "/" + description.files[file].name; }

  std::string folder;
  Manifest description;
  bool manifestIntact = false;
  std::vector<SafetensorsHeader> headers; ///< By file; the model's first.
  std::map<std::pair<StateKind, std::string>, std::vector<Piece>> pieces;
};

} // namespace tilewright::dist
