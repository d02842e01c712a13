#include "CheckpointFolder.h"
#include "Manifest.h"
#include "StateRanges.h"
#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/distributed/checkpoint/Safetensors.h"
#include "tilewright/distributed/transport/RankAgreement.h"
#include "transport/TokenProof.h"
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sstream>

namespace tilewright::dist {
namespace {

constexpr int64_t kStagingBytes = int64_t{4} << 20;

/// One rank's part in saving one checkpoint.
class Saver {
public:
  Saver(Engine &engine, const SaveOptions &options)
      : engine(engine), options(options), plan(engine.plan()), rank(engine.network().rank()) {}

  Expected<std::string> run() {
    Transport &network = engine.network();
    if (Status s = engine.synchronize(); !s) return propagate(s);
    if (Status s = agree(network, rank == 0 ? openFolder() : Status()); !s) return propagate(s);
    // Where rank 0 writes, and under which id.
    Expected<std::vector<std::string>> begun = network.exchange(rank == 0 ? id + folder.path() : "");
    if (!begun) return propagate(begun);
    id = begun->front().substr(0, kIdDigits);
    path = begun->front().substr(kIdDigits);

    if (Status s = agree(network, writeFiles()); !s) return propagate(s);
    Expected<std::vector<std::string>> records = network.exchange(recordText());
    if (!records) return propagate(records);
    std::string published;
    if (Status s = agree(network, rank == 0 ? finish(*records, published) : Status()); !s) return propagate(s);
    Expected<std::vector<std::string>> where = network.exchange(published);
    if (!where) return propagate(where);
    return where->front();
  }

private:
  static constexpr size_t kIdDigits = 32;

  Status openFolder() {
    Expected<std::string> random = randomBytes(kIdDigits / 2);
    if (!random) return propagate(random);
    id = fmt::format("{:02x}", fmt::join(std::vector<unsigned char>(random->begin(), random->end()), ""));
    Expected<SavingFolder> opened = SavingFolder::open(options.directory);
    if (!opened) return propagate(opened);
    folder = std::move(*opened);
    return {};
  }

  Status writeFiles() {
    if (rank == 0) {
      SafetensorsHeader header = newHeader();
      std::vector<Operand> sources;
      for (int p = 0; p < engine.parameters(); ++p) {
        const PlanParameter &parameter = plan.parameters[static_cast<size_t>(p)];
        sources.push_back(engine.parameter(p));
        header.tensors.push_back({parameter.name, sources.back().type, parameter.shape});
      }
      if (Status s = writeFile(kModelName, header, sources); !s) return s;
    }
    SafetensorsHeader header = newHeader();
    std::vector<Operand> sources;
    const std::vector<StateRange> ranges = savedRanges(plan, rank);
    for (StateKind kind : kStateKinds)
      for (const StateRange &range : ranges) {
        const std::optional<Span> &at = range.at[static_cast<size_t>(kind)];
        if (!at) continue;
        const std::string &parameter = plan.parameters[static_cast<size_t>(range.parameter)].name;
        sources.push_back(engine.steps().operand(*at));
        header.tensors.push_back(
            {stateTensorName(kind, parameter, range.begin, range.count), ElementType::F32, {range.count}});
      }
    return writeFile(optimizerFileName(rank, plan.worldSize), header, sources);
  }

  SafetensorsHeader newHeader() const {
    SafetensorsHeader header;
    header.metadata = {{"step", std::to_string(engine.updates())}, {"checkpoint", id}};
    return header;
  }

  Status writeFile(const std::string &name, SafetensorsHeader &header, const std::vector<Operand> &sources) {
    const std::string head = header.layOut();
    Expected<CheckedFile> file = CheckedFile::create(path, name, header.dataBegin + header.dataBytes);
    if (!file) return propagate(file);
    if (Status s = file->write(head); !s) return s;
    std::vector<char> staging(static_cast<size_t>(std::min(kStagingBytes, header.dataBytes)));
    for (const Operand &source : sources) {
      const int64_t bytes = source.elements * sizeInBytes(source.type);
      for (int64_t at = 0; at < bytes; at += kStagingBytes) {
        const int64_t count = std::min(kStagingBytes, bytes - at);
        if (Status s = engine.compute().toHost(staging.data(), static_cast<const char *>(source.data) + at, count); !s)
          return s;
        if (Status s = file->write({staging.data(), static_cast<size_t>(count)}); !s) return s;
      }
    }
    Expected<FileRecord> record = file->finish();
    if (!record) return propagate(record);
    records.push_back(std::move(*record));
    return {};
  }

  std::string recordText() const {
    std::string text;
    for (const FileRecord &record : records)
      text += fmt::format("{} {} {}\n", record.name, record.bytes, record.sha256);
    return text;
  }

  Status finish(const std::vector<std::string> &recordTexts, std::string &published) {
    Manifest manifest;
    manifest.id = id;
    manifest.step = engine.updates();
    manifest.worldSize = plan.worldSize;
    manifest.strategy = plan.strategy;
    manifest.parameterType = plan.buffers[static_cast<size_t>(plan.bufferNamed("parameters"))].type;
    manifest.version = TILEWRIGHT_VERSION;
    manifest.notes = options.notes;
    for (const std::string &text : recordTexts) {
      std::istringstream lines(text);
      for (FileRecord record; lines >> record.name >> record.bytes >> record.sha256;)
        manifest.files.push_back(record);
    }
    for (const FileRecord &record : manifest.files)
      if (Expected<SafetensorsHeader> seen = SafetensorsHeader::read(path + "/" + record.name); !seen)
        return fail(Stage::Output, seen.error().message, "all ranks need one file system that shows the same files");
    const std::string text = manifest.text();
    Expected<CheckedFile> file = CheckedFile::create(path, kManifestName, static_cast<int64_t>(text.size()));
    if (!file) return propagate(file);
    if (Status s = file->write(text); !s) return s;
    if (Expected<FileRecord> done = file->finish(); !done) return propagate(done);
    Expected<std::string> result = folder.publish(manifest.step, options.keep);
    if (!result) return propagate(result);
    published = std::move(*result);
    return {};
  }

  Engine &engine;
  const SaveOptions &options;
  const StepPlan &plan;
  const int rank;
  SavingFolder folder; ///< Rank 0's.
  std::string id, path;
  std::vector<FileRecord> records;
};

} // namespace

Expected<std::string> saveCheckpoint(Engine &engine, const SaveOptions &options) {
  return Saver(engine, options).run();
}

} // namespace tilewright::dist
