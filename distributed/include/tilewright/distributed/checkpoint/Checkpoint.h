// Checkpoints of a training: everything that the next step depends on, readable at any world size and by any strategy.
//
// A folder DIRECTORY/step-00000010 holds
//   model.safetensors               every parameter whole, in its shape and in the training's type
//   optimizer-R-of-N.safetensors    rank R's ranges of the state: "m/NAME[BEGIN:END]", "v/...", and "master/...", the
//                                   fp32 weights, where parameters have 16 bits; flat elements of parameter NAME
//   checkpoint.json                 step, strategy, the caller's notes, and size and SHA-256 of every file and its own
// All ranks need the same file system. The folder is written under another name, synced, and renamed when it is whole:
// whatever ends the job when, there is the new checkpoint or the one before. What a dead job left half-written goes
// with the next save.
#pragma once

#include "tilewright/distributed/engine/Engine.h"
#include <map>

namespace tilewright::dist {

/// What the caller wants to find again, or to compare: data position, seed, learning rate ... Rank 0's are kept.
using CheckpointNotes = std::map<std::string, std::string>;

struct CheckpointSummary {
  std::string path; ///< The step's folder.
  int64_t step = 0; ///< Updates made: Engine::updates().
  int worldSize = 1;
  std::string strategy;
  ElementType parameterType = ElementType::F32;
  std::string version; ///< Of the program that wrote it.
  CheckpointNotes notes;
  ParameterList parameters; ///< By name; without weight decay, which is the job's and no state.
};

struct SaveOptions {
  std::string directory; ///< Created if missing.
  CheckpointNotes notes;
  int keep = 2; ///< Newest checkpoints that stay; older ones are deleted after the new one is whole. 0: all.
};

/// Called by all ranks between steps; waits for the last step's communication. Returns the folder's path. Errors, the
/// same on every rank, name the file and the reason (a full disk, a missing right, another job that is saving here);
/// the directory then holds what it held before, and the engine can go on.
Expected<std::string> saveCheckpoint(Engine &engine, const SaveOptions &options);

/// Called by all ranks, instead of Engine::start or between steps. `path` is a step's folder or a directory of them, of
/// which the newest is taken. Every file is verified before anything is loaded. The engine continues with the very bits
/// of the engine that saved it, if world size and options are the same; otherwise with the same state. Types may
/// differ: bf16 parameters are rounded from fp32 weights, and fp32 parameters take over the master weights. Errors, the
/// same on every rank, name file and field; the engine is then as it was.
Expected<CheckpointSummary> loadCheckpoint(Engine &engine, const std::string &path);

/// What a checkpoint holds, by one process and without an engine. Headers, sizes and coverage are checked; the data
/// only with `verifyData`.
Expected<CheckpointSummary> inspectCheckpoint(const std::string &path, bool verifyData = false);

/// The newest whole checkpoint's folder; empty if there is none, or no directory.
Expected<std::string> newestCheckpoint(const std::string &directory);

} // namespace tilewright::dist
