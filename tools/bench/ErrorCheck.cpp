#include "ErrorCheck.h"
#include "TemporaryFolder.h"
#include "tilewright/reference/Compare.h"
#include "tilewright/tensor/Npy.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::bench {
namespace {

constexpr int64_t kRows = 64, kHeads = 4;
constexpr uint64_t kSeed = 1;

Expected<ErrorSample> sampleOf(std::string_view data, const Tensor &o, const AttentionResult &reference, DType dtype) {
  CompareOptions options;
  options.dtype = dtype;
  options.rows = reference.rows;
  // Only the error itself is of interest, not the yardstick: the reference stands for the naive computation.
  Expected<ErrorFigures> figures = compare(o.view(), reference.o.view(), reference.o.view(), options);
  if (!figures) return propagate(figures);
  return ErrorSample{std::string(data), figures->maxAbs, figures->rms, figures->nonFiniteMismatches == 0};
}

Expected<Tensor> cudnnResult(Peers &peers, const BenchCase &benchCase, const RandomTensors &tensors) {
  Expected<TemporaryFolder> folder = TemporaryFolder::make("errors"); // for the tensors that both sides read
  if (!folder) return propagate(folder);
  const auto file = [&](const char *name) { return folder->path() / name; };
  const NpyFile files[] = {npyFile(file("q.npy"), tensors.q), npyFile(file("k.npy"), tensors.k),
                           npyFile(file("v.npy"), tensors.v)};
  if (Status status = writeNpy(files); !status) return propagate(status);
  if (Status status = peers.cudnnOutput(benchCase, file("q.npy"), file("k.npy"), file("v.npy"), file("o.npy")); !status)
    return propagate(status);
  return readTensor(file("o.npy"), {Layout::BSHD, benchCase.problem.dtype == DType::BF16});
}

} // namespace

Problem errorProblem(const Problem &problem) {
  Problem p = problem;
  const int64_t group = p.groupSize();
  p.batch = 1;
  p.headsKV = std::clamp<int64_t>(kHeads / group, 1, p.headsKV);
  p.headsQ = p.headsKV * group;
  p.direction = Direction::Forward;
  return p;
}

Status checkErrors(CellResult &cell, Peers &peers, const OwnForward &own) {
  BenchCase small = cell.benchCase;
  small.problem = errorProblem(cell.benchCase.problem);
  const Problem &p = small.problem;
  Contestant *cudnn = nullptr;
  for (Contestant &peer : cell.peers)
    if (peer.name == "cudnn") cudnn = &peer;
  for (DataPattern pattern : {DataPattern::Normal, DataPattern::OutlierChannels, DataPattern::StrongFirstToken}) {
    Expected<RandomTensors> tensors = randomTensors(p, kSeed, pattern);
    if (!tensors) return propagate(tensors);
    AttentionInputs inputs{tensors->q.view(), tensors->k.view(), tensors->v.view(), {}, {}};
    AttentionOptions options;
    options.rows = sampleRows(p.seqQ, kRows, kSeed);
    Expected<AttentionResult> reference = referenceAttention(p, inputs, options);
    if (!reference) return propagate(reference);
    Expected<Tensor> o = own(p, *tensors);
    if (!o) return propagate(o);
    Expected<ErrorSample> ours = sampleOf(toString(pattern), *o, *reference, p.dtype);
    if (!ours) return propagate(ours);
    cell.own.errors.push_back(*ours);
    if (!cudnn) continue;
    Expected<Tensor> theirs = cudnnResult(peers, small, *tensors);
    Expected<ErrorSample> sample =
        theirs ? sampleOf(toString(pattern), *theirs, *reference, p.dtype) : Expected<ErrorSample>(propagate(theirs));
    if (sample)
      cudnn->errors.push_back(*sample);
    else if (cudnn->why.empty())
      cudnn->why = "errors: " + sample.error().message;
  }
  return {};
}

} // namespace tilewright::bench
