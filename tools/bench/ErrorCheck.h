// How far results are from double precision, Tilewright's and cuDNN's on the same inputs: ordinary ones and two kinds
// that make attention kernels lose accuracy.
#pragma once

#include "BenchResult.h"
#include "Peers.h"
#include "tilewright/tensor/Random.h"
#include <functional>

namespace tilewright::bench {

/// The problem whose results are checked in place of a case: one batch entry and at most four query heads (one group
/// where groups are larger), the same lengths, dims, mask and dtype.
Problem errorProblem(const Problem &problem);

/// Computes O of a problem from host tensors.
using OwnForward = std::function<Expected<Tensor>(const Problem &problem, RandomTensors &tensors)>;

/// Adds errors of O (maximum and rms over 64 sampled rows of every head) to `cell`, for inputs that are normal, have
/// every 16th channel 50 times larger ("outliers"), and have a first key that dominates ("sink"). What cannot be
/// checked is noted in the contestant's `why`. An Error is one of Tilewright's own side.
Status checkErrors(CellResult &cell, Peers &peers, const OwnForward &own);

} // namespace tilewright::bench
