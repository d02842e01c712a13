// Which problems `tilewright tune` is to tune: one stated by options, or a file of them.
#pragma once

#include "../tune/Tuner.h"
#include "ProblemOptions.h"

namespace tilewright::tool {

/// The problem that the options state, with its tables.
Expected<std::vector<tune::TuneProblem>> statedProblem(const ProblemOptions &options);

/// A file with a problem a line: JSON as TILEWRIGHT_RECORD writes it, or options as on the command line ("--seq 1000
/// --causal"). Empty lines and what follows a # at the beginning are skipped. Each problem comes once, and a forward
/// one not at all where the file has its gradients, too. `tables` are the command line's, for lines of JSON that read
/// some. Errors name file and line.
Expected<std::vector<tune::TuneProblem>> problemsOfFile(const std::string &path,
                                                        const std::vector<std::string> &tables);

} // namespace tilewright::tool
