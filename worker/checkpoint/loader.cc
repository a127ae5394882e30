#include "worker/checkpoint/loader.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/checkpoint/entry_index.h"
#include "core/checkpoint/local_entries.h"
#include "core/checkpoint/model_tensors.h"
#include "core/checkpoint_io/part_reader.h"
#include "worker/checkpoint/sections.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::checkpoint {
namespace {

constexpr std::pair<Decision::Verdict, train::Verdict> kVerdicts[] = {
    {Decision::Verdict::kCommitted, train::Verdict::kCommitted},
    {Decision::Verdict::kSkipped, train::Verdict::kSkipped},
    {Decision::Verdict::kEmpty, train::Verdict::kEmpty},
};

// What a section takes from one entry of a file.
struct Taken {
  const LocalEntry* local = nullptr;
  Rectangle part;
};
struct WantedEntry {
  int32_t file = 0, entry = 0;
  std::vector<Taken> taken;
};

// Copies element after element; `to` and `from` begin at the first element of their memory.
void CopyPart(const Entry& entry, const std::string& bytes, const Taken& taken, std::byte* to) {
  const auto size = static_cast<size_t>(BytesOf(entry.dtype));
  const Steps source = StepsIn(entry, taken.part), target = StepsIn(*taken.local, taken.part);
  // The inner loop goes along lines as the entry has them.
  const bool by_row = source.col == 1;
  const int64_t lines = by_row ? taken.part.rows : taken.part.cols;
  const int64_t line = by_row ? taken.part.cols : taken.part.rows;
  const int64_t from_line = by_row ? source.row : source.col;
  const int64_t to_line = by_row ? target.row : target.col;
  const int64_t to_step = by_row ? target.col : target.row;
  const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
  for (int64_t i = 0; i < lines; ++i) {
    const std::byte* in = from + static_cast<size_t>(source.first + i * from_line) * size;
    std::byte* out = to + static_cast<size_t>(target.first + i * to_line) * size;
    if (to_step == 1) {
      std::memcpy(out, in, static_cast<size_t>(line) * size);
      continue;
    }
    for (int64_t k = 0; k < line; ++k) {
      std::memcpy(out + static_cast<size_t>(k * to_step) * size, in + static_cast<size_t>(k) * size,
                  size);
    }
  }
}

class Loading {
 public:
  Loading(const std::string& checkpoint, const Manifest& manifest, int32_t threads,
          const std::stop_token& stop, const std::vector<std::string>& below)
      : checkpoint_(checkpoint),
        manifest_(manifest),
        threads_(std::max(threads, 1)),
        stop_(stop),
        below_(below) {}

  // `tensors`: of the job's model.
  absl::Status Run(absl::Span<const ModelTensor> tensors, std::vector<Section> sections) {
    RETURN_IF_ERROR(ReadHeaders());
    const absl::StatusOr<EntryIndex> index = EntryIndex::Create(headers_);
    if (!index.ok()) return absl::DataLossError(index.status().message());
    if (const absl::Status whole = index->CheckWhole(tensors); !whole.ok())
      return absl::DataLossError(whole.message());
    std::vector<std::vector<WantedEntry>> wanted;
    for (const Section& section : sections) {
      ASSIGN_OR_RETURN(wanted.emplace_back(), WantedOf(section, *index));
    }
    for (size_t i = 0; i < sections.size(); ++i) RETURN_IF_ERROR(Fill(sections[i], wanted[i]));
    return absl::OkStatus();
  }

 private:
  absl::Status CheckStop() const {
    return stop_.stop_requested() ? absl::CancelledError("asked to stop while loading")
                                  : absl::OkStatus();
  }

  // Not all files are kept open: a process may have fewer files than a job has ranks.
  absl::Status ReadHeaders() {
    for (const PartFile& part : manifest_.parts) {
      RETURN_IF_ERROR(CheckStop());
      ASSIGN_OR_RETURN(const PartReader reader,
                       PartReader::Open(checkpoint_, manifest_, part, below_));
      headers_.push_back(reader.header());
    }
    return absl::OkStatus();
  }

  // By file.
  static absl::StatusOr<std::vector<WantedEntry>> WantedOf(const Section& section,
                                                           const EntryIndex& index) {
    std::map<std::pair<int32_t, int32_t>, WantedEntry> wanted;
    for (const LocalEntry& local : section.entries) {
      absl::StatusOr<std::vector<FoundEntry>> found =
          index.Find(local.entry.module, local.entry.tensor, section.kind, local.entry.where);
      if (!found.ok()) return absl::DataLossError(found.status().message());
      for (const FoundEntry& one : *found) {
        WantedEntry& entry = wanted[{one.file, one.entry}];
        entry.file = one.file;
        entry.entry = one.entry;
        entry.taken.push_back({&local, one.part});
      }
    }
    std::vector<WantedEntry> entries;
    for (auto& [key, entry] : wanted) entries.push_back(std::move(entry));
    return entries;
  }

  // Elements of what is padding stay 0.
  absl::Status Fill(const Section& section, const std::vector<WantedEntry>& wanted) {
    at::Tensor array = at::zeros({section.elements}, ScalarTypeOf(section.dtype));
    auto* memory = static_cast<std::byte*>(array.mutable_data_ptr());
    const size_t share =
        (wanted.size() + static_cast<size_t>(threads_) - 1) / static_cast<size_t>(threads_);
    std::vector<absl::Status> results(static_cast<size_t>(threads_));
    {
      std::vector<std::jthread> readers;
      for (size_t i = 0; i < results.size(); ++i) {
        const size_t first = std::min(i * share, wanted.size());
        const size_t end = std::min(first + share, wanted.size());
        if (first == end) break;
        readers.emplace_back([&, i, first, end] {
          results[i] = ReadEntries(absl::MakeSpan(wanted).subspan(first, end - first), memory);
        });
      }
    }
    for (const absl::Status& result : results) RETURN_IF_ERROR(result);
    CopyIn(section, array);
    return absl::OkStatus();
  }

  absl::Status ReadEntries(absl::Span<const WantedEntry> wanted, std::byte* memory) const {
    std::string bytes;
    for (size_t i = 0; i < wanted.size();) {
      const int32_t file = wanted[i].file;
      ASSIGN_OR_RETURN(const PartReader reader,
                       PartReader::Open(checkpoint_, manifest_,
                                        manifest_.parts[static_cast<size_t>(file)], below_));
      for (; i < wanted.size() && wanted[i].file == file; ++i) {
        RETURN_IF_ERROR(CheckStop());
        const auto entry = static_cast<size_t>(wanted[i].entry);
        RETURN_IF_ERROR(reader.Read(entry, bytes));
        for (const Taken& taken : wanted[i].taken) {
          CopyPart(reader.header().entries[entry], bytes, taken, memory);
        }
      }
    }
    return absl::OkStatus();
  }

  const std::string& checkpoint_;
  const Manifest& manifest_;
  const int32_t threads_;
  const std::stop_token stop_;
  const std::vector<std::string>& below_;
  std::vector<PartHeader> headers_;
};

}  // namespace

train::Start StartOf(const Manifest& manifest) {
  const Decision& from = manifest.decision;
  train::Start start{
      .decision = {.step = manifest.step,
                   .loss = from.loss,
                   .gradient_norm = from.gradient_norm,
                   .gradient_scale = from.gradient_scale,
                   .counted_tokens = from.counted_tokens,
                   .corrupt_samples = from.corrupt_samples,
                   .volume = {.tokens = from.tokens, .images = from.images, .sounds = from.sounds}},
      .counts = {.updates = manifest.updates, .skipped_in_a_row = manifest.skipped_in_a_row}};
  for (const auto& [written, verdict] : kVerdicts) {
    if (written == from.verdict) start.decision.verdict = verdict;
  }
  return start;
}

Manifest ManifestOf(const plan::Plan& plan, const std::string& store, int64_t number,
                    const train::Decision& decision, const train::Counts& counts) {
  Manifest manifest{.job = plan.spec.name,
                    .store = store,
                    .number = number,
                    .epoch = plan.epoch().value,
                    .step = decision.step,
                    .seed = plan.spec.seed,
                    .data_digest = plan.layout.data_digest,
                    .decision = {.loss = decision.loss,
                                 .gradient_norm = decision.gradient_norm,
                                 .gradient_scale = decision.gradient_scale,
                                 .counted_tokens = decision.counted_tokens,
                                 .corrupt_samples = decision.corrupt_samples,
                                 .tokens = decision.volume.tokens,
                                 .images = decision.volume.images,
                                 .sounds = decision.volume.sounds},
                    .updates = counts.updates,
                    .skipped_in_a_row = counts.skipped_in_a_row,
                    .model = ModelOf(plan.spec)};
  for (const auto& [written, verdict] : kVerdicts) {
    if (verdict == decision.verdict) manifest.decision.verdict = written;
  }
  return manifest;
}

absl::Status Load(const std::string& checkpoint, const Manifest& manifest, const plan::Plan& plan,
                  train::TrainingState& state, int32_t threads, const std::stop_token& stop,
                  const std::vector<std::string>& below) {
  const std::vector<Violation> violations = Incompatible(plan.spec, checkpoint, manifest);
  if (!violations.empty()) {
    return absl::FailedPreconditionError(
        absl::StrJoin(violations, "; ", [](std::string* out, const Violation& violation) {
          absl::StrAppend(out, violation.rule);
        }));
  }
  RETURN_IF_ERROR(model::CallTorch("loading a checkpoint", [&] {
    return Loading(checkpoint, manifest, threads, stop, below)
        .Run(TensorsOf(plan.spec), SectionsToRead(plan, state));
  }));
  state.Adopt(StartOf(manifest));
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint
