#include "tests/support/checkpoints.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/prng.h"
#include "core/checkpoint/local_entries.h"
#include "core/checkpoint/names.h"
#include "core/plan/reduction.h"
#include "tests/support/files.h"

namespace phalanx::support {
namespace {

using checkpoint::Entry;
using checkpoint::Kind;

template <typename Word>
std::string Memory(Word word) {
  std::string bytes(sizeof word, '\0');
  std::memcpy(bytes.data(), &word, sizeof word);
  return bytes;
}

// Entries of all kinds of a part, and their data behind what is there.
void AppendPart(const plan::Plan& plan, const plan::Place& place, int32_t chunk, MadePart* part) {
  const plan::StageParameters parameters = plan::ParametersOf(plan, place, chunk);
  const OwnedRuns runs = RunsOwnedBy(plan, place, chunk, parameters);
  for (const Kind kind : {Kind::kMaster, Kind::kFirstMoment, Kind::kSecondMoment, Kind::kWeight}) {
    for (const checkpoint::LocalEntry& local : checkpoint::EntriesOf(
             parameters, plan.module_spec(place.module).name,
             kind == Kind::kWeight ? runs.weights : runs.state, checkpoint::Copies::kLed)) {
      Entry entry = local.entry;
      entry.kind = kind;
      entry.dtype = checkpoint::DTypeOf(kind, plan.spec.compute);
      std::string data;
      const CheckpointValues values(entry.module, entry.tensor, kind);
      for (int64_t line = 0; line < entry.lines(); ++line) {
        for (int64_t i = 0; i < entry.line(); ++i) {
          const int64_t row = entry.where.row + (entry.transposed ? i : line);
          const int64_t col = entry.where.col + (entry.transposed ? line : i);
          data += BytesOf(values(row, col), entry.dtype);
        }
      }
      entry.digest = Digest64(data);
      part->data += data;
      part->header.entries.push_back(std::move(entry));
    }
  }
}

}  // namespace

CheckpointValues::CheckpointValues(absl::string_view module, absl::string_view tensor, Kind kind)
    : stream_(StreamOf(absl::StrCat(module, "/", tensor, "#", ToString(kind)))) {}

double CheckpointValues::operator()(int64_t row, int64_t col) const {
  const uint64_t hash = Hash64(stream_, static_cast<uint64_t>(row), static_cast<uint64_t>(col));
  return static_cast<double>(hash >> 43);
}

std::string BytesOf(double value, checkpoint::DType dtype) {
  if (dtype == checkpoint::DType::kF64) return Memory(value);
  const std::string single = Memory(static_cast<float>(value));
  return dtype == checkpoint::DType::kF32 ? single : single.substr(2);
}

OwnedRuns RunsOwnedBy(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
                      const plan::StageParameters& parameters) {
  OwnedRuns owned;
  const plan::ReplicaTable& table = plan.replicas(place.module);
  const bool first = place.dp == table.FirstPresent() && place.cp == 0;
  if (first && parameters.elements > parameters.trained_extent) {
    owned.weights.push_back(
        {parameters.trained_extent, parameters.elements - parameters.trained_extent});
  }
  for (const plan::ReducedBucket& bucket :
       plan::ReductionOf(plan, place, chunk, parameters).buckets) {
    owned.state.insert(owned.state.end(), bucket.own.begin(), bucket.own.end());
  }
  return owned;
}

std::vector<MadePart> MakeParts(const plan::Plan& plan) {
  std::vector<MadePart> parts;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    MadePart part;
    part.header.info = {
        .store = "00c0ffee00c0ffee", .job = 7, .epoch = 3, .step = 50, .rank = rank};
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
      for (int32_t chunk = 0; chunk < chunks; ++chunk) AppendPart(plan, place, chunk, &part);
    }
    checkpoint::PlaceEntries(absl::MakeSpan(part.header.entries));
    if (!part.header.entries.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

checkpoint::Manifest ManifestOf(const plan::Plan& plan, const std::vector<MadePart>& parts) {
  checkpoint::Manifest manifest{.job = "demo",
                                .store = "00c0ffee00c0ffee",
                                .number = 7,
                                .epoch = 3,
                                .step = 50,
                                .seed = plan.spec.seed,
                                .data_digest = Digest("data"),
                                .decision = {.loss = 2.125,
                                             .gradient_norm = 0.8,
                                             .gradient_scale = 0.0021,
                                             .counted_tokens = 476,
                                             .tokens = 900,
                                             .images = 31},
                                .updates = 49,
                                .model = checkpoint::ModelOf(plan.spec)};
  for (const MadePart& part : parts) {
    const std::string header = checkpoint::WriteHeader(part.header);
    manifest.parts.push_back({.file = checkpoint::PartFileName(part.header.info.rank),
                              .bytes = static_cast<int64_t>(header.size() + part.data.size()),
                              .header_bytes = static_cast<int64_t>(header.size()),
                              .entries = static_cast<int64_t>(part.header.entries.size()),
                              .digest = Digest(header)});
  }
  return manifest;
}

std::string WriteCheckpoint(const plan::Plan& plan, const std::string& folder, int64_t step) {
  std::vector<MadePart> parts = MakeParts(plan);
  for (MadePart& part : parts) part.header.info.step = step;
  checkpoint::Manifest manifest = ManifestOf(plan, parts);
  manifest.step = step;
  manifest.updates = step;
  const std::string path =
      absl::StrCat(folder, "/", checkpoint::ToString({.step = step, .epoch = manifest.epoch}));
  std::filesystem::create_directories(path);
  for (const MadePart& part : parts) {
    WriteFile(absl::StrCat(path, "/", checkpoint::PartFileName(part.header.info.rank)),
              checkpoint::WriteHeader(part.header) + part.data);
  }
  WriteFile(absl::StrCat(path, "/", checkpoint::kManifestFile),
            checkpoint::WriteManifest(manifest));
  return path;
}

}  // namespace phalanx::support
