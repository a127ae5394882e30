#include "core/job/job_reader.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/job/module_reader.h"
#include "core/job/not_yet.h"
#include "core/job/record.h"
#include "core/job/report.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

constexpr size_t kNameMax = 63;

bool IsJobName(absl::string_view name) {
  const auto legal = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-';
  };
  return !name.empty() && name.size() <= kNameMax &&
         absl::ascii_islower(static_cast<unsigned char>(name.front())) && name.back() != '-' &&
         std::all_of(name.begin(), name.end(), legal);
}

// Reads one document; the members are what its parts share.
class Reader {
 public:
  Reader(const Tree& document, Purpose purpose) : purpose_(purpose), report_(document) {}

  absl::StatusOr<ReadJob> Read();

 private:
  void ReadMetadata();
  void ReadSpec();
  void ReadData(const Record& spec);
  void ReadOptimizer();
  void ReadCheckpoint(const Record& spec);
  void ReadRecovery();
  void ReadResources();

  Record At(const std::string& path, absl::string_view schema) {
    return Record(report_, path, schema, purpose_);
  }
  Record At(const std::string& path) { return At(path, path); }

  const Purpose purpose_;
  Report report_;
  JobSpec spec_;
};

void Reader::ReadMetadata() {
  const Record metadata = At("metadata");
  metadata.Get("name", &spec_.name);
  metadata.Get("labels", &spec_.labels);
  if (!metadata.Has("name") || !report_.Sound("metadata.name")) return;
  int64_t number = 0;
  if (!IsJobName(spec_.name)) {
    report_.Add("metadata.name",
                "must be lower-case letters, digits and '-', at most 63, starting with a letter "
                "and not ending with '-'");
  } else if (absl::StartsWith(spec_.name, "job-") &&
             absl::SimpleAtoi(absl::string_view(spec_.name).substr(4), &number)) {
    report_.Add("metadata.name", "may not be job-N, which is how jobs are numbered");
  }
}

void Reader::ReadData(const Record& spec) {
  if (!spec.Has("data")) return;
  const Record record = At("spec.data");
  Data& data = spec_.data.emplace();
  record.GetChoice("format");
  record.GetPatterns("shards", &data.shards);
  record.GetPatterns("validation", &data.validation);
  record.Get("tokenizer", &data.tokenizer);
  record.Get("items_max", &data.items_max);
  record.Get("corrupt_max", &data.corrupt_max);
}

void Reader::ReadOptimizer() {
  const Record record = At("spec.optimizer");
  Optimizer& optimizer = spec_.optimizer;
  record.GetChoice("name");
  record.Get("learning_rate", &optimizer.learning_rate);
  record.Get("minimum_learning_rate", &optimizer.minimum_learning_rate);
  record.Get("warmup_steps", &optimizer.warmup_steps);
  record.GetEnum("decay", &optimizer.decay);
  record.Get("weight_decay", &optimizer.weight_decay);
  record.Get("epsilon", &optimizer.epsilon);
  record.Get("clip_norm", &optimizer.clip_norm);
  if (!record.Has("betas")) return;
  std::vector<double> betas;
  record.Get("betas", &betas);
  if (!report_.Sound("spec.optimizer.betas")) return;
  if (betas.size() != 2 || betas[0] >= 1 || betas[1] >= 1) {
    report_.Add("spec.optimizer.betas", "must be two numbers from 0 to below 1");
    return;
  }
  optimizer.betas = {betas[0], betas[1]};
}

void Reader::ReadCheckpoint(const Record& spec) {
  if (!spec.Has("checkpoint")) return;
  const Record record = At("spec.checkpoint");
  Checkpoint& checkpoint = spec_.checkpoint.emplace();
  checkpoint.directory = "checkpoints";
  record.Get("directory", &checkpoint.directory);
  record.Get("every", &checkpoint.every);
  record.Get("keep", &checkpoint.keep);
  record.Get("resume_from", &checkpoint.resume_from);
}

void Reader::ReadRecovery() {
  const Record record = At("spec.recovery");
  Recovery& recovery = spec_.recovery;
  if (const std::optional<std::vector<size_t>> ladder = record.GetChoices("ladder")) {
    recovery.ladder.clear();
    for (const size_t rung : *ladder) recovery.ladder.push_back(static_cast<Rung>(rung));
  }
  record.GetEnum("widths", &recovery.widths);
  record.GetEnum("state_home", &recovery.state_home);
  record.Get("state_copies", &recovery.state_copies);
  record.Get("state_every", &recovery.state_every);
  const Record budget = At("spec.recovery.budget");
  budget.Get("total", &recovery.budget.total);
  budget.Get("without_progress", &recovery.budget.without_progress);
  budget.Get("window", &recovery.budget.window);
}

void Reader::ReadResources() {
  const Record record = At("spec.resources");
  record.GetEnum("device", &spec_.resources.device);
  record.Get("devices", &spec_.resources.devices);
  record.Get("spares", &spec_.resources.spares);
  record.Get("node_selector", &spec_.resources.node_selector);
  if (!record.Has("devices")) spec_.resources.devices = std::max(1, spec_.World());
}

void Reader::ReadSpec() {
  const Record spec = At("spec");
  spec.Get("seed", &spec_.seed);
  spec.Get("steps", &spec_.steps);
  spec.Get("priority", &spec_.priority);
  spec.Get("preemptible", &spec_.preemptible);
  if (spec.Has("time_limit")) {
    absl::Duration limit;
    spec.Get("time_limit", &limit);
    spec_.time_limit = limit;
  }
  ReadModuleGraph(spec, purpose_, report_, spec_);
  const Record batch = At("spec.batch");
  batch.Get("global", &spec_.batch.global);
  batch.Get("micro", &spec_.batch.micro);
  const Record schedule = At("spec.schedule");
  schedule.GetEnum("name", &spec_.schedule.name);
  schedule.Get("chunks", &spec_.schedule.chunks);
  schedule.Get("encoder_chunks", &spec_.schedule.encoder_chunks);
  ReadData(spec);
  ReadOptimizer();
  ReadCheckpoint(spec);
  ReadRecovery();
  ReadResources();
  const Record precision = At("spec.precision");
  spec_.compute = spec_.resources.device == DeviceKind::kGpu ? Precision::kBf16 : Precision::kFp32;
  precision.GetEnum("compute", &spec_.compute);
  spec_.output = absl::StrCat("runs/", spec_.name);
  spec.Get("output", &spec_.output);
  spec.Get("trace", &spec_.trace);
}

absl::StatusOr<ReadJob> Reader::Read() {
  const Record document = At("");
  document.GetChoice("apiVersion");
  document.GetChoice("kind");
  if (document.Has("metadata")) ReadMetadata();
  if (document.Has("spec")) ReadSpec();
  if (report_.Sound("spec.modules") || !spec_.modules.empty()) {
    CheckModules(spec_, report_);
    CheckGraph(spec_, report_);
    CheckSchedule(spec_, report_);
  }
  CheckRun(spec_, report_);
  if (purpose_ == Purpose::kSubmit) RefuseNotYet(spec_, report_);
  if (!report_.empty()) return ViolationsStatus(report_.Sorted());
  ReadJob job;
  job.warnings = WarnNotYet(report_);
  job.spec = std::move(spec_);
  return job;
}

}  // namespace

absl::StatusOr<ReadJob> ReadJobSpec(const Tree& document, Purpose purpose) {
  return Reader(document, purpose).Read();
}

}  // namespace phalanx::job
