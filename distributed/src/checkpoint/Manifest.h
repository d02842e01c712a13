// checkpoint.json: what a checkpoint is, and what its files must be.
#pragma once

#include "CheckedFile.h"
#include "tilewright/distributed/checkpoint/Checkpoint.h"

namespace tilewright::dist {

inline constexpr const char *kManifestName = "checkpoint.json";
inline constexpr const char *kModelName = "model.safetensors";
std::string optimizerFileName(int rank, int worldSize); ///< "optimizer-0-of-2.safetensors"

struct Manifest {
  std::string id; ///< Random; every file of the checkpoint carries it.
  int64_t step = 0;
  int worldSize = 1;
  std::string strategy;
  ElementType parameterType = ElementType::F32;
  std::string version;
  CheckpointNotes notes;
  std::vector<FileRecord> files;

  /// JSON that ends with a hash over all the rest.
  std::string text() const;
  /// `path` is for errors, which name the field. `intact` tells whether the hash is right: it is the reader's to
  /// complain, after what says more.
  static Expected<Manifest> parse(const std::string &text, const std::string &path, bool &intact);
};

} // namespace tilewright::dist
