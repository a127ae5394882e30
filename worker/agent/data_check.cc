#include "worker/agent/data_check.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/wire/job_yaml.h"
#include "spdlog/spdlog.h"
#include "worker/agent/machine/machine.h"
#include "worker/data/data_set.h"
#include "worker/data/job_data.h"
#include "worker/data/sequence.h"

namespace phalanx::agent {
namespace {

constexpr size_t kCorruptNamedMax = 100;

std::string KeyOf(const data::DataSetSpec& spec) {
  std::string text =
      absl::StrCat(spec.tokenizer, "\n", spec.items_max, "\n", data::TextOf(spec.encoders), "\n",
                   spec.target_hidden, "\n", spec.context, "\n", spec.vocabulary);
  for (const std::string& shard : spec.shards) absl::StrAppend(&text, "\n", shard);
  return Digest(text);
}

// Fills `path` where the index is kept.
absl::StatusOr<data::Index> LoadOrBuild(const data::DataSetSpec& spec,
                                        const std::optional<std::string>& folder,
                                        std::atomic<int64_t>* bytes_read, std::string* path) {
  if (!folder.has_value()) return data::Index::Build(spec);
  *path = absl::StrCat(*folder, "/", KeyOf(spec), ".index");
  if (absl::StatusOr<data::Index> known = data::Index::Load(*path, spec); known.ok()) return known;
  ASSIGN_OR_RETURN(data::Index index, data::Index::Build(spec, bytes_read));
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

DataOutcome Check(const Document& document, const std::optional<std::string>& folder,
                  std::atomic<int64_t>* bytes_read) {
  DataOutcome outcome;
  absl::StatusOr<job::ReadJob> job = wire::ReadJobFile(document.text, job::Purpose::kSubmit);
  if (!job.ok()) {
    outcome.status = job.status();
    outcome.violations = ViolationsOf(job.status());
    return outcome;
  }
  if (!job->spec.data.has_value()) return outcome;
  std::string digests[2];  // of the training and the validation index
  for (const bool validation : {false, true}) {
    if (validation && job->spec.data->validation.empty()) continue;
    const data::DataSetSpec spec = data::DataSetSpecOf(job->spec, document.directory, validation);
    std::string path;
    const absl::StatusOr<data::Index> index = LoadOrBuild(spec, folder, bytes_read, &path);
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
    (validation ? outcome.validation_index_path : outcome.index_path) = path;
    digests[validation ? 1 : 0] = index->digest();
  }
  // Everything that is wrong with both sets, at once.
  if (!outcome.violations.empty()) outcome.status = ViolationsStatus(outcome.violations);
  if (outcome.status.ok()) {
    outcome.digest = data::DigestOfSets(digests[0], digests[1]);
    outcome.corrupt_max = job->spec.data->corrupt_max;
  }
  return outcome;
}

}  // namespace

DataOutcome CheckData(const Document& document, const std::string& indexes_folder,
                      std::atomic<int64_t>& bytes_read) {
  return Check(document, indexes_folder, &bytes_read);
}

DataOutcome CheckData(const Document& document) {
  DataOutcome outcome = Check(document, std::nullopt, nullptr);
  if (outcome.status.ok() && outcome.corrupt_samples > outcome.corrupt_max) {
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat(outcome.corrupt_samples, " corrupt samples; spec.data.corrupt_max allows ",
                     outcome.corrupt_max));
  }
  return outcome;
}

DataPreparer::DataPreparer(DataPreparer::Check check, Inbox& inbox)
    : check_(std::move(check)), inbox_(inbox), thread_([this] { Work(); }) {}

DataPreparer::~DataPreparer() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  changed_.SignalAll();
}

void DataPreparer::Carry(const PrepareData& order) {
  MutexLock lock(&mutex_);
  if (orders_.size() < kQueueMax) {
    orders_.push_back(order);
    return changed_.SignalAll();
  }
  inbox_.Post(DataPrepared{
      order.request,
      {.status = absl::ResourceExhaustedError("too many data sets wait to be checked")}});
}

bool DataPreparer::busy() const {
  MutexLock lock(&mutex_);
  return !orders_.empty();
}

void DataPreparer::Work() {
  while (true) {
    PrepareData order;
    {
      MutexLock lock(&mutex_);
      while (orders_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      order = orders_.front();
    }
    DataOutcome outcome = check_(order.document, prepared_bytes_);
    spdlog::info("{} data digest={} corrupt_samples={} {}", ToString(order.job), outcome.digest,
                 outcome.corrupt_samples, OneLine(outcome.status));
    {
      MutexLock lock(&mutex_);
      orders_.pop_front();
    }
    inbox_.Post(DataPrepared{order.request, std::move(outcome)});
  }
}

}  // namespace phalanx::agent
