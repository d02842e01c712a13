// The options that state an attention problem, shared by `run` and `compile`.
#pragma once

#include "tilewright/plan/KernelPlan.h"
#include "tilewright/tensor/Random.h"
#include "tilewright/tensor/Table.h"
#include <CLI/CLI.hpp>

namespace tilewright::tool {

/// As the user gave them, unparsed where the meaning depends on other options or files.
struct ProblemOptions {
  int64_t batch = 1;
  std::string heads = "1", seq = "1024", dim = "64", dtype = "bf16", layout = "bshd";
  bool causal = false, backward = false;
  std::string window, mask, score;
  double softcap = 0;
  std::optional<double> scale;
  std::vector<std::string> tables; ///< NAME=FILE
  std::string target = "auto", schedule;
  std::string q, k, v, dO; ///< .npy files; all of q, k, v or none
  uint64_t seed = 0;
  std::string data = "normal";
  std::vector<const CLI::Option *> given; ///< Options of the shape, to tell a stated value from a default.

  void addTo(CLI::App &command, bool withTensors);
};

/// A problem with its data. Tensors are absent for `compile`.
struct ProblemInputs {
  Problem problem;
  RandomTensors tensors;
  std::vector<Table> tables; ///< In the order of Problem::tables.
  bool fromFiles = false;

  std::vector<expr::TableData> tableData() const;
};

/// States the problem and loads (or draws) its tensors. Without `withTensors` table files are optional: their element
/// type is taken to be int32 where there is none.
Expected<ProblemInputs> makeInputs(const ProblemOptions &options, bool withTensors);

/// "--target auto" is the first GPU, else the CPU.
Expected<Target> chooseTarget(const std::string &name);

/// The expression language, for --help.
extern const char *const kExpressionHelp;

} // namespace tilewright::tool
