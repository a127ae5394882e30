#include "worker/agent/data_check.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/wire/job_yaml.h"
#include "spdlog/spdlog.h"
#include "worker/agent/machine/machine.h"
#include "worker/data/data_set.h"
#include "worker/data/job_data.h"
#include "worker/data/sequence.h"

namespace phalanx::agent {
namespace {

constexpr size_t kCorruptNamedMax = 100;
constexpr int32_t kVerifyThreads = 4;
// An index is written at once: a file that is this old has no writer any more.
constexpr std::chrono::hours kLeftAfter{1};

// Fills `path` where the index is kept.
absl::StatusOr<data::Index> LoadOrBuild(const data::DataSetSpec& spec,
                                        const std::optional<std::string>& folder,
                                        data::ReadProgress* progress, std::string* path) {
  if (!folder.has_value()) return data::Index::Build(spec);
  *path = absl::StrCat(*folder, "/", data::DigestOf(spec), ".index");
  if (absl::StatusOr<data::Index> known = data::Index::Load(*path, spec); known.ok()) return known;
  ASSIGN_OR_RETURN(data::Index index, data::Index::Build(spec, progress));
  std::error_code error;
  std::filesystem::create_directories(*folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make ", *folder, ": ", error.message()));
  }
  RETURN_IF_ERROR(index.Save(*path));
  return index;
}

void AddCorrupt(const data::Index& index, DataOutcome& outcome) {
  outcome.corrupt_samples += static_cast<int64_t>(index.corrupt_samples().size());
  for (const data::Index::Corrupt& corrupt : index.corrupt_samples()) {
    if (outcome.corrupt_messages.size() == kCorruptNamedMax) return;
    outcome.corrupt_messages.push_back(
        absl::StrCat(corrupt.shard, ": ", corrupt.key, ": ", corrupt.reason));
  }
}

job::DataShape ShapeOf(const data::Index& index) {
  double samples = 0, images = 0, sounds = 0, positions = 0, counted = 0;
  for (int64_t i = 0; i < index.size(); ++i) {
    const data::SampleShape& shape = index.shape(i);
    if (shape.corrupt) continue;
    samples += 1;
    images += shape.images;
    sounds += shape.sounds;
    positions += shape.positions;
    counted += shape.counted;
  }
  if (samples == 0 || positions == 0) return {};
  return {.items = std::max(images, sounds) / samples, .labelled_share = counted / positions};
}

// What the job is to go on from, or what is wrong with that.
void AddCheckpoint(const job::JobSpec& spec, const std::string& directory,
                   data::ReadProgress* progress, const std::vector<std::string>& folders,
                   DataOutcome& outcome) {
  if (!spec.checkpoint.has_value() || !spec.checkpoint->resume_from.has_value()) return;
  int64_t last = 0;  // of the checkpoint being read
  checkpoint::VerifyOptions options{.threads = kVerifyThreads, .folders = folders};
  options.on_bytes = [&last, progress](int64_t bytes) {
    const int64_t more = bytes < last ? bytes : bytes - last;
    last = bytes;
    return progress == nullptr ? absl::OkStatus() : progress->Add(more);
  };
  absl::StatusOr<checkpoint::Choice> choice = checkpoint::ChooseToResume(spec, directory, options);
  if (!choice.ok()) {
    for (Violation& violation : ViolationsOf(choice.status()))
      outcome.violations.push_back(std::move(violation));
    if (outcome.status.ok()) {
      outcome.status = choice.status();
    } else if (!outcome.violations.empty()) {
      outcome.status = ViolationsStatus(outcome.violations);
    }
    return;
  }
  CheckpointChoice& chosen = outcome.checkpoint.emplace();
  chosen.passed_over = std::move(choice->passed_over);
  if (!choice->checkpoint.has_value()) return;
  chosen.path = choice->checkpoint->path;
  chosen.manifest_digest = Digest(checkpoint::WriteManifest(choice->checkpoint->manifest));
  chosen.step = choice->checkpoint->manifest.step;
}

DataOutcome Check(const Document& document, bool choose_checkpoint,
                  const std::optional<std::string>& folder, data::ReadProgress* progress,
                  const std::vector<std::string>& folders) {
  DataOutcome outcome;
  absl::StatusOr<job::ReadJob> job = wire::ReadJobFile(document.text, job::Purpose::kAccepted);
  if (!job.ok()) {
    outcome.status = job.status();
    outcome.violations = ViolationsOf(job.status());
    return outcome;
  }
  if (!job->spec.data.has_value()) return outcome;
  std::string digests[2];  // of the training and the validation index
  for (const bool validation : {false, true}) {
    if (validation && job->spec.data->validation.empty()) continue;
    data::DataSetSpec spec = data::DataSetSpecOf(job->spec, document.directory, validation);
    spec.folders = folders;
    std::string path;
    const absl::StatusOr<data::Index> index = LoadOrBuild(spec, folder, progress, &path);
    if (absl::IsCancelled(index.status())) return {.status = index.status()};
    if (!index.ok()) {
      if (outcome.status.ok()) outcome.status = index.status();
      for (Violation& violation : ViolationsOf(index.status())) {
        // A tokenizer that fits neither set is one mistake.
        if (std::find(outcome.violations.begin(), outcome.violations.end(), violation) ==
            outcome.violations.end()) {
          outcome.violations.push_back(std::move(violation));
        }
      }
      continue;
    }
    AddCorrupt(*index, outcome);
    if (!validation) outcome.shape = ShapeOf(*index);
    (validation ? outcome.validation_index_path : outcome.index_path) = path;
    digests[validation ? 1 : 0] = index->digest();
  }
  // Everything that is wrong with both sets, at once.
  if (!outcome.violations.empty()) outcome.status = ViolationsStatus(outcome.violations);
  if (outcome.status.ok()) {
    outcome.digest = data::DigestOfSets(digests[0], digests[1]);
    outcome.corrupt_max = job->spec.data->corrupt_max;
  }
  if (choose_checkpoint) AddCheckpoint(job->spec, document.directory, progress, folders, outcome);
  return outcome;
}

}  // namespace

DataOutcome CheckData(const Document& document, bool choose_checkpoint,
                      const std::string& indexes_folder, data::ReadProgress& progress,
                      const std::vector<std::string>& folders) {
  DataOutcome outcome = Check(document, choose_checkpoint, indexes_folder, &progress, folders);
  RemoveOldIndexes(indexes_folder);
  return outcome;
}

void RemoveOldIndexes(const std::string& folder, size_t keep) {
  namespace fs = std::filesystem;
  std::vector<std::pair<fs::file_time_type, fs::path>> indexes;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const fs::file_time_type used = entry->last_write_time(gone);
    if (gone) continue;
    if (entry->path().extension() == ".index") indexes.emplace_back(used, entry->path());
    if (entry->path().extension() == ".tmp" && fs::file_time_type::clock::now() - used > kLeftAfter)
      fs::remove(entry->path(), gone);
  }
  if (indexes.size() <= keep) return;
  std::sort(indexes.rbegin(), indexes.rend());
  for (size_t i = keep; i < indexes.size(); ++i) fs::remove(indexes[i].second, error);
}

DataOutcome CheckData(const Document& document) {
  DataOutcome outcome = Check(document, /*choose_checkpoint=*/true, std::nullopt, nullptr, {});
  if (outcome.status.ok() && outcome.corrupt_samples > outcome.corrupt_max) {
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat(outcome.corrupt_samples, " corrupt samples; spec.data.corrupt_max allows ",
                     outcome.corrupt_max));
  }
  return outcome;
}

DataPreparer::DataPreparer(DataPreparer::Check check, Inbox& inbox)
    : check_(std::move(check)), inbox_(inbox) {}

DataPreparer::~DataPreparer() {
  std::vector<std::jthread> threads;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (const auto& work : works_) work->progress.called_off = true;
    changed_.SignalAll();
    threads.swap(threads_);
  }
}

void DataPreparer::Carry(const PrepareData& order) {
  MutexLock lock(&mutex_);
  if (works_.size() == kQueueMax) {
    return inbox_.Post(DataPrepared{
        order.request,
        {.status = absl::ResourceExhaustedError("too many data sets wait to be checked")}});
  }
  works_.push_back(std::make_shared<Work>(order));
  if (threads_.size() < std::min(kThreadsMax, works_.size())) {
    threads_.emplace_back([this] { Serve(); });
  }
  changed_.SignalAll();
}

void DataPreparer::Carry(const CancelData& order) {
  MutexLock lock(&mutex_);
  const auto found = std::find_if(
      works_.begin(), works_.end(),
      [&order](const std::shared_ptr<Work>& work) { return work->order.request == order.request; });
  if (found == works_.end()) return;
  (*found)->progress.called_off = true;
  if (!(*found)->begun) works_.erase(found);
}

bool DataPreparer::busy() const {
  MutexLock lock(&mutex_);
  return std::any_of(works_.begin(), works_.end(),
                     [](const std::shared_ptr<Work>& work) { return work->begun; });
}

std::vector<Preparing> DataPreparer::UnderWay() const {
  MutexLock lock(&mutex_);
  int64_t bytes_read = 0;
  JobId first;
  for (const auto& work : works_) {
    if (!work->begun) continue;
    bytes_read += work->progress.bytes;
    if (first == JobId{}) first = work->order.job;
  }
  std::vector<Preparing> list;
  for (const auto& work : works_) {
    if (work->progress.called_off) continue;
    list.push_back(work->begun ? Preparing{work->order.job, work->progress.bytes, JobId{}}
                               : Preparing{work->order.job, bytes_read, first});
  }
  return list;
}

std::shared_ptr<DataPreparer::Work> DataPreparer::Next() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    for (const auto& work : works_) {
      if (work->begun) continue;
      work->begun = true;
      return work;
    }
    changed_.Wait(&mutex_);
  }
  return nullptr;
}

void DataPreparer::Serve() {
  while (const std::shared_ptr<Work> work = Next()) {
    DataOutcome outcome = check_(work->order, work->progress);
    spdlog::info("{} data digest={} corrupt_samples={} {}", ToString(work->order.job),
                 outcome.digest, outcome.corrupt_samples, OneLine(outcome.status));
    {
      MutexLock lock(&mutex_);
      works_.remove(work);
    }
    if (!work->progress.called_off) {
      inbox_.Post(DataPrepared{work->order.request, std::move(outcome)});
    }
  }
}

}  // namespace phalanx::agent
