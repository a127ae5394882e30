#include "worker/rank/epoch_run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/job/failure.h"
#include "core/plan/derivation.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"
#include "spdlog/spdlog.h"
#include "worker/checkpoint/loader.h"
#include "worker/data/job_data.h"
#include "worker/device/cuda_device.h"
#include "worker/model/torch_boundary.h"
#include "worker/rank/rank_reports.h"
#include "worker/rank/trace_file.h"
#include "worker/train/evaluator.h"
#include "worker/train/message_peers.h"
#include "worker/train/training_state.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kSendTimeout = absl::Seconds(30);
constexpr std::chrono::milliseconds kProgressInterval{100};
constexpr int32_t kCaptions = 8;
constexpr absl::Duration kHostMemoryTimeout = absl::Seconds(30);
// For work that was enqueued when an epoch ended, early or not: then its communicators are aborted
// or it waits for nobody.
constexpr std::chrono::minutes kLastPart{2};  // each to be written behind the last step
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
constexpr absl::Duration kLastWorkTimeout = absl::Minutes(5);

// CPU slots share few cores; beside a GPU there are some to spare.
int32_t DecodeThreads(const v1::RunEpoch& order) { return order.device_kind() == "gpu" ? 4 : 1; }

// The value, or its error as one of this kind.
template <typename T>
absl::StatusOr<T> OrFailure(job::FailureKind kind, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return job::WithKind(kind, value.status());
}

// What was indexed or checked a moment ago, and cannot be used now.
template <typename T>
absl::StatusOr<T> StillThere(absl::StatusOr<T> value) {
  return OrFailure(job::FailureKind::kDataUnavailable, std::move(value));
}

// What the coordinator sends, it has checked: who cannot read it is of another version.
template <typename T>
absl::StatusOr<T> OfOurVersion(absl::StatusOr<T> value) {
  return OrFailure(job::FailureKind::kVersionMismatch, std::move(value));
}

// Paths of a job file start from its folder.
std::string AbsolutePath(const std::string& directory, const std::string& path) {
  return path.starts_with('/') ? path : absl::StrCat(directory, "/", path);
}

// What this rank's modules read of a sample.
data::LoaderOptions OptionsOfLoader(const plan::Plan& plan, const v1::RunEpoch& order) {
  data::LoaderOptions options;
  options.threads = DecodeThreads(order);
  for (const plan::Place& place : plan.PlacesOf(Rank{order.rank()})) {
    const job::FamilyTraits& family = job::TraitsOf(plan.module_spec(place.module).architecture);
    if (family.encoder() && place.pp == 0) options.modules.push_back(place.module);
    options.targets |= family.predicts() && plan.HasLoss(place.module);
  }
  return options;
}

}  // namespace

absl::Status EpochRun::Report(v1::RankReport report) {
  report.set_job(order_.assign().job());
  report.set_epoch(order_.assign().epoch());
  report.set_rank(order_.rank());
  v1::ToDaemon message;
  *message.mutable_report() = std::move(report);
  return channel_.Send(message, kSendTimeout);
}

absl::Status EpochRun::MakePlanOfOrder() {
  const v1::Assign& assign = order_.assign();
  ASSIGN_OR_RETURN(job::ReadJob read, OfOurVersion(wire::ReadJobFile(assign.document().text(),
                                                                     job::Purpose::kSubmit)));
  ASSIGN_OR_RETURN(plan::Layout layout, OfOurVersion(wire::FromProto(assign.layout())));
  if (layout.derivation != plan::kDerivation) {
    return job::WithKind(
        job::FailureKind::kVersionMismatch,
        absl::FailedPreconditionError(absl::StrCat(
            "the layout is of derivation ", layout.derivation, ", this rank's program of ",
            plan::kDerivation, ": worker and coordinator are of different versions")));
  }
  ASSIGN_OR_RETURN(plan_, OfOurVersion(plan::Expand(read.spec, std::move(layout))));
  if (plan_.digest != assign.plan_digest()) {
    return job::WithKind(
        job::FailureKind::kVersionMismatch,
        absl::FailedPreconditionError(absl::StrCat(
            "this rank's plan has digest ", plan_.digest, ", the coordinator's ",
            assign.plan_digest(), ": worker and coordinator are of different versions")));
  }
  reporter_ = plan_.Reporter().value == order_.rank();
  store_ = absl::StrCat(absl::Hex(order_.store()));
  return absl::OkStatus();
}

absl::Status EpochRun::OpenData() {
  const std::string& directory = order_.assign().document().directory();
  const data::LoaderOptions options = OptionsOfLoader(plan_, order_);
  const std::string samples_of = absl::StrCat(
      order_.assign().job(), " ", absl::StrJoin(options.modules, ","), " ", options.targets, " ",
      plan_.layout.data_digest, " ", order_.data_index(), "\n", order_.validation_index(), "\n",
      directory, "\n", order_.assign().document().text());
  if (kept_.source == nullptr || kept_.samples_of != samples_of) {
    kept_.source = nullptr;  // what it has decoded goes before other samples come
    kept_.validation = nullptr;
    kept_.tokenizer = nullptr;
    ASSIGN_OR_RETURN(
        std::unique_ptr<train::SampleSource> source,
        StillThere(train::ShardSource::Open(
            order_.data_index(), data::DataSetSpecOf(plan_.spec, directory, false), options)));
    if (!order_.validation_index().empty()) {
      // Opened with the rest: what is missing of it is better known before the first step.
      const data::DataSetSpec spec = data::DataSetSpecOf(plan_.spec, directory, true);
      data::LoaderOptions at_the_end = options;
      at_the_end.open_at_once = true;
      ASSIGN_OR_RETURN(kept_.validation, StillThere(train::ShardSource::Open(
                                             order_.validation_index(), spec, at_the_end)));
      ASSIGN_OR_RETURN(kept_.tokenizer, StillThere(data::Tokenizer::Load(spec.tokenizer)));
    }
    kept_.source = std::move(source);
    kept_.samples_of = samples_of;
  }
  kept_.source->set_stop(stopping_.get_token());
  if (kept_.validation != nullptr) kept_.validation->set_stop(stopping_.get_token());
  const std::string digest = data::DigestOfSets(
      kept_.source->digest(), kept_.validation == nullptr ? "" : kept_.validation->digest());
  if (digest != plan_.layout.data_digest) {
    return job::WithKind(job::FailureKind::kDataInvalid,
                         absl::FailedPreconditionError(absl::StrCat(
                             "this node's data index has digest ", digest, ", the plan's ",
                             plan_.layout.data_digest, ": the shards differ between nodes")));
  }
  output_ = AbsolutePath(directory, plan_.spec.output);
  if (!reporter_) return absl::OkStatus();
  return OpenMetrics();
}

absl::Status EpochRun::OpenMetrics() {
  MetricsOptions options;
  options.owner = absl::StrCat(store_, "/", ToString(JobId{order_.assign().job()}));
  if (manifest_.has_value()) {
    options.predecessor = absl::StrCat(manifest_->store, "/", ToString(JobId{manifest_->number}));
  }
  options.first_step = first_step_;
  options.stop = stopping_.get_token();
  options.on_wait = [this, patience = options.patience](const absl::Status& status) {
    v1::RankReport report;
    report.mutable_event()->set_type("OutputWaiting");
    report.mutable_event()->set_message(
        absl::StrCat(status.message(), "; training waits up to ", absl::FormatDuration(patience)));
    report_status_.Update(Report(std::move(report)));
  };
  ASSIGN_OR_RETURN(metrics_, MetricsWriter::Open(output_, std::move(options)));
  return RankFigures::MakeFolder(output_);
}

absl::Status EpochRun::Connect() {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
  comm::WorldOptions options;
  options.stop = stopping_.get_token();
  if (!order_.address().empty()) options.interface_address = order_.address();
  absl::StatusOr<comm::Communicators> connected =
      absl::UnimplementedError("no GPU support in this build");
  if (order_.device_kind() == "gpu") {
#ifdef PHALANX_WITH_CUDA
    options.current_stream = device::CurrentStream;
    options.peers = train::MessagePeers(plan_, Rank{order_.rank()}, specs);
    connected = comm::ConnectNccl(specs, Rank{order_.rank()}, plan_.world, rendezvous_, options);
#endif
  } else {
    connected = comm::ConnectGloo(specs, Rank{order_.rank()}, plan_.world, rendezvous_, options);
  }
  MutexLock lock(&mu_);
  // A rank that was told to stop reports that, not the connection that it broke off.
  RETURN_IF_ERROR(stopped_);
  RETURN_IF_ERROR(connected.status());
  communicators_ = *std::move(connected);
  connected_ = true;
  return absl::OkStatus();
}

void EpochRun::OnStep(const train::StepSummary& step) {
  figures_.Add(step, *program_);
  const auto now = std::chrono::steady_clock::now();
  const bool due = !progress_sent_.has_value() || now - *progress_sent_ >= kProgressInterval;
  if (due || step.step == trainer_->last_step()) {
    progress_sent_ = now;
    v1::ToDaemon message;
    message.mutable_progress()->set_epoch(epoch());
    message.mutable_progress()->set_step(step.step);
    report_status_.Update(channel_.Send(message, kSendTimeout));
  }
  if (!reporter_) return;
  if (const absl::Status written = metrics_->Write(step, epoch()); !written.ok()) {
    report_status_.Update(written);
    MutexLock lock(&mu_);
    if (training_ != nullptr) training_->RequestStop();
  }
  v1::RankReport report;
  v1::StepReport& out = *report.mutable_step();
  out.set_step(step.step);
  out.set_loss(step.loss);
  out.set_gradient_norm(step.gradient_norm);
  out.set_learning_rate(step.learning_rate);
  out.set_tokens(step.tokens);
  out.set_counted_tokens(step.counted_tokens);
  out.set_seconds(step.seconds);
  out.set_epoch(epoch());
  out.set_skipped(step.skipped);
  out.set_corrupt_samples(step.corrupt_samples);
  report_status_.Update(Report(std::move(report)));
}

void EpochRun::OnTrace(const std::vector<schedule::TimedInstruction>& timeline) {
  if (!reporter_) return;
  const absl::StatusOr<std::string> path = WriteTrace(output_, plan_, timeline);
  // What was trained is worth more than its picture.
  if (!path.ok()) {
    spdlog::warn("job={} epoch={} no trace: {}", order_.assign().job(), epoch(),
                 path.status().ToString());
    return;
  }
  spdlog::info("job={} epoch={} trace of step {} is in {}", order_.assign().job(), epoch(),
               TraceStep(plan_.spec), *path);
}

absl::Status EpochRun::BorrowState(const train::BufferOptions& buffers) {
  const train::StateIdentity identity{
      .store = store_, .job = order_.assign().job(), .plan = plan_.digest, .rank = order_.rank()};
  const bool held = kept_.training != nullptr && kept_.identity == identity;
  if (order_.has_begins() && held) return absl::OkStatus();
  if (first_step_ > 1 && !manifest_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("this process holds no state of step ",
                                                      first_step_ - 1, " in layout ", identity.plan,
                                                      " that the epoch could go on from"));
  }
  kept_.snapshot = nullptr;
  kept_.host_copy = nullptr;
  kept_.training = nullptr;  // two of them may not fit
  const Rank rank{order_.rank()};
  if (!manifest_.has_value()) {
    ASSIGN_OR_RETURN(kept_.training, train::TrainingState::Create(plan_, rank, buffers));
  } else {
    ASSIGN_OR_RETURN(auto empty, train::TrainingState::CreateEmpty(plan_, rank, buffers));
    RETURN_IF_ERROR(OfCheckpoint(checkpoint::Load(order_.assign().checkpoint().path(), *manifest_,
                                                  plan_, *empty, buffers.init_threads)));
    kept_.training = std::move(empty);
  }
  kept_.identity = identity;
  return absl::OkStatus();
}

absl::Status EpochRun::OfCheckpoint(absl::Status status) const {
  if (status.ok() || job::KindIn(status).has_value()) return status;
  status = Annotate(status, order_.assign().checkpoint().path());
  if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status))
    return job::WithKind(job::FailureKind::kCheckpointInvalid, std::move(status));
  if (absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status))
    return job::WithKind(job::FailureKind::kCheckpointUnavailable, std::move(status));
  return status;
}

absl::Status EpochRun::FindCheckpoint() {
  first_step_ = order_.begins().decision().step() + 1;
  if (!order_.assign().has_checkpoint()) return absl::OkStatus();
  const v1::CheckpointSource& source = order_.assign().checkpoint();
  absl::StatusOr<checkpoint::Manifest> manifest = checkpoint::ReadManifestOf(source.path());
  if (!manifest.ok()) return OfCheckpoint(manifest.status());
  if (Digest(checkpoint::WriteManifest(*manifest)) != source.manifest_digest()) {
    return OfCheckpoint(absl::UnavailableError(
        "its manifest is another one than that which was chosen: nodes see different folders"));
  }
  if (!order_.has_begins()) {
    first_step_ = manifest->step + 1;
  } else if (manifest->step + 1 != first_step_) {
    return absl::OkStatus();  // the job has gone on since, and its processes keep a later state
  }
  manifest_ = *std::move(manifest);
  return absl::OkStatus();
}

absl::Status EpochRun::MakeCheckpoints() {
  const std::optional<job::Checkpoint>& wanted = plan_.spec.checkpoint;
  if (!wanted.has_value() || checkpoints_ != nullptr) return absl::OkStatus();
  if (kept_.snapshot == nullptr) {
    ASSIGN_OR_RETURN(kept_.snapshot, checkpoint::Snapshot::Create(plan_, *kept_.training));
  }
  auto checkpoints = std::make_unique<CheckpointRun>(
      plan_, *kept_.training, *kept_.snapshot,
      CheckpointOptions{
          .directory = AbsolutePath(order_.assign().document().directory(), wanted->directory),
          .store = store_,
          .job = order_.assign().job(),
          .rank = Rank{order_.rank()},
          .in_use = order_.assign().checkpoint().path(),
          .reporter = reporter_},
      [this](v1::RankReport report) {
        const absl::Status sent = Report(std::move(report));
        if (!sent.ok()) spdlog::warn("could not tell the daemon: {}", sent.ToString());
      });
  kept_.training->set_writing([run = checkpoints.get()] { return run->writing(); });
  const MutexLock lock(&mu_);
  checkpoints_ = std::move(checkpoints);
  return absl::OkStatus();
}

void EpochRun::TellNoCheckpoint(absl::string_view of, const absl::Status& why) {
  v1::RankReport report;
  report.mutable_event()->set_type("CheckpointFailed");
  report.mutable_event()->set_message(absl::StrCat(of, ": ", why.message()));
  report_status_.Update(Report(std::move(report)));
}

void EpochRun::WriteLastCheckpoint() {
  if (const absl::Status made = MakeCheckpoints(); !made.ok()) {
    return TellNoCheckpoint(absl::StrCat("step ", trainer_->last_step()), made);
  }
  if (checkpoints_ != nullptr) checkpoints_->WriteLast();
}

void EpochRun::Publish(const v1::PublishCheckpoint& order) {
  const MutexLock lock(&mu_);
  if (checkpoints_ != nullptr && order.epoch() == epoch()) checkpoints_->Publish(order);
}

void EpochRun::Deliver(const v1::HostMemory& message, std::vector<UniqueFd> buffers) {
  const MutexLock lock(&mu_);
  if (!message.error().empty()) {
    given_ = absl::ResourceExhaustedError(message.error());
  } else {
    given_ = std::move(buffers);
  }
  given_changed_.SignalAll();
}

absl::StatusOr<std::array<UniqueFd, 2>> EpochRun::AskHostMemory(int64_t bytes) {
  v1::ToDaemon message;
  message.mutable_ask_host_memory()->set_epoch(epoch());
  message.mutable_ask_host_memory()->set_bytes(bytes);
  RETURN_IF_ERROR(channel_.Send(message, kSendTimeout));
  const comm::Deadline deadline = comm::DeadlineIn(kHostMemoryTimeout);
  const MutexLock lock(&mu_);
  while (!given_.has_value() && stopped_.ok()) {
    if (given_changed_.WaitUntil(&mu_, deadline) && !given_.has_value())
      return absl::DeadlineExceededError("the daemon gives no host memory");
  }
  RETURN_IF_ERROR(stopped_);
  RETURN_IF_ERROR(given_->status());
  std::vector<UniqueFd>& given = **given_;
  if (given.size() != 2)
    return absl::InternalError(absl::StrCat("the daemon gave ", given.size(), " buffers, not 2"));
  return std::array<UniqueFd, 2>{std::move(given[0]), std::move(given[1])};
}

absl::Status EpochRun::KeepHostCopy() {
  if (kept_.host_copy != nullptr) return absl::OkStatus();
  const int64_t bytes = checkpoint::HostCopy::BytesNeeded(plan_, *kept_.training);
  if (bytes == 0) return absl::OkStatus();
  const absl::Status kept = MakeHostCopy(bytes);
  if (!absl::IsResourceExhausted(kept)) return kept;
  if (plan_.spec.recovery.state_home != job::StateHome::kAuto)
    return job::WithKind(job::FailureKind::kOutOfMemory, kept);
  // The job did not ask for it: it trains without a second home.
  kept_.training->set_copied([] { return int64_t{0}; });
  v1::RankReport report;
  report.mutable_event()->set_type("NoSecondHome");
  report.mutable_event()->set_message(absl::StrCat(kept.message(), ": losing the device of rank ",
                                                   order_.rank(),
                                                   " costs the steps since the last checkpoint"));
  return Report(std::move(report));
}

absl::Status EpochRun::MakeHostCopy(int64_t bytes) {
  ASSIGN_OR_RETURN(auto buffers, AskHostMemory(bytes));
  ASSIGN_OR_RETURN(kept_.host_copy, checkpoint::HostCopy::Create(plan_, *kept_.training,
                                                                 {.store = order_.store(),
                                                                  .job = order_.assign().job(),
                                                                  .rank = Rank{order_.rank()}},
                                                                 std::move(buffers)));
  return absl::OkStatus();
}

// GEMMs on a GPU like lengths of whole eights.
int64_t EpochRun::LengthMultiple() const { return order_.device_kind() == "gpu" ? 8 : 1; }

absl::StatusOr<train::TrainerOptions> EpochRun::MakeTrainerOptions() const {
  train::TrainerOptions options;
  options.length_multiple = LengthMultiple();
  options.trace_step = TraceStep(plan_.spec);
  if (order_.has_begins()) {
    ASSIGN_OR_RETURN(options.start, StartOf(order_.begins()));
  } else if (manifest_.has_value()) {
    options.start = checkpoint::StartOf(*manifest_);
  }
  return options;
}

absl::Status EpochRun::MakeTrainer() {
  train::BufferOptions buffers{.compute = train::ComputeType(plan_.spec.compute),
                               .init_threads = std::max(1, order_.threads())};
  if (order_.device_kind() == "gpu")
    buffers.device = at::Device(at::kCUDA, static_cast<int8_t>(order_.device_index()));
  RETURN_IF_ERROR(BorrowState(buffers));
  const std::optional<job::Checkpoint>& wanted = plan_.spec.checkpoint;
  if (wanted.has_value() && wanted->every > 0) {
    const absl::Status made = MakeCheckpoints();
    if (!made.ok()) TellNoCheckpoint("any step of this rank", made);
  }
  RETURN_IF_ERROR(KeepHostCopy());
  ASSIGN_OR_RETURN(const train::TrainerOptions options, MakeTrainerOptions());
  train::TrainerCallbacks callbacks;
  callbacks.on_trace = [this](const std::vector<schedule::TimedInstruction>& timeline) {
    OnTrace(timeline);
  };
  callbacks.on_step = [this](const train::StepSummary& step) { OnStep(step); };
  callbacks.on_settled = [this, checkpoints = checkpoints_.get()] {
    if (kept_.host_copy != nullptr)
      report_status_.Update(kept_.host_copy->AfterStep(Epoch{epoch()}));
    // At an early end that of its last step takes the place of others.
    if (checkpoints != nullptr && !trainer_->ends_early()) checkpoints->OnSettled();
  };
  callbacks.on_corrupt_sample = [this](const train::Batches::CorruptSample& sample) {
    v1::RankReport report;
    report.mutable_event()->set_type("CorruptSample");
    report.mutable_event()->set_message(sample.reason);  // it names shard and sample
    report_status_.Update(Report(std::move(report)));
  };
  ASSIGN_OR_RETURN(trainer_,
                   train::Trainer::Create(plan_, Rank{order_.rank()}, communicators_, *kept_.source,
                                          *kept_.training, options, std::move(callbacks)));
  program_ = &trainer_->executor().program();
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(stopped_);
  training_ = kept_.training.get();
  if (end_wished_) training_->WishEnd();
  return absl::OkStatus();
}

absl::Status EpochRun::Train() {
  RETURN_IF_ERROR(MakeTrainer());
  RETURN_IF_ERROR(trainer_->Prepare());
  v1::RankReport ready;
  ready.mutable_ready();
  RETURN_IF_ERROR(Report(std::move(ready)));
  const absl::Status ran = trainer_->Run();
  // What stopped the training stands before its having been stopped.
  RETURN_IF_ERROR(report_status_);
  RETURN_IF_ERROR(ran);
  // The output folder need not be reachable from every node; only the reporter depends on it.
  const absl::Status written =
      figures_.Write(output_, plan_, Rank{order_.rank()},
                     order_.device_kind() == "gpu" ? device::MemoryInUse() : ResidentBytesMax());
  if (!written.ok()) spdlog::warn("{}", written.ToString());
  if (trainer_->ends_early()) {
    // Nothing comes behind the last update that its copy could keep waiting.
    if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::AwaitDevice(kLastWorkTimeout));
    WriteLastCheckpoint();
    return report_status_;
  }
  return order_.validation_index().empty() ? absl::OkStatus() : Evaluate();
}

absl::Status EpochRun::Evaluate() {
  const data::Tokenizer& tokenizer = *kept_.tokenizer;
  train::Evaluator evaluator(plan_, trainer_->executor(), *kept_.validation, LengthMultiple());
  ASSIGN_OR_RETURN(
      const train::EvaluationSummary summary,
      evaluator.Run(kCaptions, reporter_ ? &tokenizer : nullptr, tokenizer.end_token()));
  if (!reporter_) return absl::OkStatus();
  v1::RankReport report;
  v1::EvaluationReport& out = *report.mutable_evaluation();
  out.set_loss(summary.loss);
  out.set_uniform_loss(summary.uniform_loss);
  out.set_counted_tokens(summary.counted_tokens);
  for (const train::Caption& caption : summary.captions) {
    auto* item = out.add_captions();
    item->set_sample(caption.sample);
    item->set_truth(caption.truth);
    item->set_decoded(caption.decoded);
  }
  return Report(std::move(report));
}

absl::Status EpochRun::RunToEnd() {
  at::set_num_threads(std::max(1, order_.threads()));
  if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::UseCudaDevice(order_.device_index()));
  RETURN_IF_ERROR(MakePlanOfOrder());
  RETURN_IF_ERROR(FindCheckpoint());
  RETURN_IF_ERROR(OpenData());
  RETURN_IF_ERROR(Connect());
  RETURN_IF_ERROR(Train());
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(stopped_);
  }
  if (checkpoints_ != nullptr &&
      !checkpoints_->AwaitWritten(std::chrono::steady_clock::now() + kLastPart)) {
    spdlog::warn("job={} epoch={} rank={} the last checkpoint is given up: it takes too long",
                 order_.assign().job(), epoch(), order_.rank());
  }
  // The last step's gathers may still be under way, and use the epoch's memory.
  if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::AwaitDevice(kLastWorkTimeout));
  v1::RankReport report;
  report.mutable_succeeded()->set_step(trainer_->last_step());
  report.mutable_succeeded()->set_early(trainer_->ends_early());
  return Report(std::move(report));
}

absl::Status EpochRun::Run() {
  absl::Status ended = model::CallTorch("training", [this] { return RunToEnd(); });
  if (kept_.training != nullptr) ended = kept_.training->Attributed(std::move(ended));
  if (!ended.ok()) {
    {
      // A rank that was told to stop reports that, not the aborted wait that it caused.
      MutexLock lock(&mu_);
      if (!stopped_.ok()) ended = stopped_;
    }
    ended = Quiesce(ended);
    // What it writes nobody would publish.
    std::unique_ptr<CheckpointRun> given_up;
    MutexLock lock(&mu_);
    given_up = std::move(checkpoints_);
  }
  Release();
  return ended;
}

absl::Status EpochRun::Quiesce(const absl::Status& ended) {
  if (!absl::IsCancelled(ended)) {
    // First of all: others may be about to blame somebody else.
    v1::RankReport report;
    *report.mutable_error() = ErrorReport(ended);
    const absl::Status sent = Report(std::move(report));
    if (!sent.ok()) spdlog::error("could not tell the daemon: {}", sent.ToString());
  }
  {
    MutexLock lock(&mu_);
    // Before anything is aborted: what an aborted reduction leaves must not get a valid record.
    if (training_ != nullptr) training_->RequestStop();
    AbortCommunicators(ended);
  }
  absl::Status drained;
  if (order_.device_kind() == "gpu") drained = device::AwaitDevice(kDrainTimeout);
  if (drained.ok() && trainer_ != nullptr) {
    drained = model::CallTorch("the last decision", [this] { trainer_->AccountForLast(); });
  }
  v1::RankReport report;
  *report.mutable_quiet() = QuietReport(
      kept_.training == nullptr ? train::Standing{} : kept_.training->StandingNow(), drained.ok());
  const absl::Status sent = Report(std::move(report));
  if (!sent.ok()) spdlog::error("could not tell the daemon: {}", sent.ToString());
  return drained.ok() ? ended : drained;
}

void EpochRun::WishEnd() {
  MutexLock lock(&mu_);
  end_wished_ = true;
  if (training_ != nullptr) training_->WishEnd();
}

void EpochRun::Release() {
  trainer_ = nullptr;
  if (kept_.training != nullptr) kept_.training->set_writing(nullptr);
  MutexLock lock(&mu_);
  training_ = nullptr;
  connected_ = false;
  communicators_.clear();
}

void EpochRun::AbortCommunicators(const absl::Status& reason) {
  if (!connected_) return;
  for (const auto& communicator : communicators_) {
    if (communicator != nullptr) communicator->Abort(reason);
  }
}

void EpochRun::Stop(absl::Status reason) {
  MutexLock lock(&mu_);
  if (!stopped_.ok()) return;
  stopped_ = reason;
  given_changed_.SignalAll();
  rendezvous_.Abort(reason);
  stopping_.request_stop();
  if (training_ != nullptr) training_->RequestStop();
  AbortCommunicators(reason);
}

bool EpochRun::stop_requested() const {
  MutexLock lock(&mu_);
  return !stopped_.ok();
}

}  // namespace phalanx::rank
