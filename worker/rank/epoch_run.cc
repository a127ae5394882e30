#include "worker/rank/epoch_run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/accused.h"
#include "core/base/path.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/plan/derivation.h"
#include "core/plan/equal_work.h"
#include "core/posix/activity.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"
#include "spdlog/spdlog.h"
#include "worker/checkpoint/loader.h"
#include "worker/data/job_data.h"
#include "worker/device/cuda_device.h"
#include "worker/model/products.h"
#include "worker/model/torch_boundary.h"
#include "worker/rank/product_tables.h"
#include "worker/rank/rank_reports.h"
#include "worker/rank/trace_file.h"
#include "worker/train/items_ahead.h"
#include "worker/train/training_state.h"

namespace phalanx::rank {

namespace {

// For work that was enqueued when an epoch ended: it waits for nobody.
constexpr absl::Duration kLastWorkTimeout = absl::Minutes(5);
constexpr absl::Duration kFreeingMax = absl::Milliseconds(200);  // at the end of a step

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

// What this rank's modules read of a sample.
data::LoaderOptions OptionsOfLoader(const plan::Plan& plan, const v1::RunEpoch& order) {
  data::LoaderOptions options;
  options.threads = DecodeThreads(order);
  if (order.device_kind() == "gpu")
    options.memory = train::PinnedItemMemory(train::ComputeType(plan.spec.compute));
  for (const plan::Place& place : plan.PlacesOf(Rank{order.rank()})) {
    const job::FamilyTraits& family = job::TraitsOf(plan.module_spec(place.module).architecture);
    if (family.encoder() && place.pp == 0) options.modules.push_back(place.module);
    options.targets |= family.predicts() && plan.HasLoss(place.module);
  }
  return options;
}

}  // namespace

absl::Status EpochRun::Report(v1::RankReport report) {
  return SendReport(channel_, whose(), std::move(report));
}

absl::Status EpochRun::MakePlanOfOrder() {
  const v1::Assign& assign = order_.assign();
  ASSIGN_OR_RETURN(job::ReadJob read, OfOurVersion(wire::ReadJobFile(assign.document().text(),
                                                                     job::Purpose::kAccepted)));
  ASSIGN_OR_RETURN(plan::Layout layout, OfOurVersion(wire::FromProto(assign.layout())));
  if (layout.derivation < plan::kOldestDerivation || layout.derivation > plan::kDerivation) {
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
  ASSIGN_OR_RETURN(products_, ProductsOfPlan(plan_.layout.products, model::ProductLibrary()));
  reporter_ = plan_.Reporter().value == order_.rank();
  equal_work_ = plan::EqualWork(plan_, Rank{order_.rank()});
  like_work_ = plan::LikeWork(plan_, Rank{order_.rank()});
  store_ = absl::StrCat(absl::Hex(order_.store()));
  LogLayout();
  return absl::OkStatus();
}

data::DataSetSpec EpochRun::SetOf(bool validation) const {
  data::DataSetSpec spec =
      data::DataSetSpecOf(plan_.spec, order_.assign().document().directory(), validation);
  spec.folders = ReadFolders();
  return spec;
}

absl::StatusOr<std::unique_ptr<train::SampleSource>> EpochRun::SourceBeside(
    const plan::Plan& plan) const {
  const data::LoaderOptions now = OptionsOfLoader(plan_, order_);
  data::LoaderOptions then = OptionsOfLoader(plan, order_);
  if (then.modules == now.modules && then.targets == now.targets) return nullptr;
  then.memory = nullptr;
  ASSIGN_OR_RETURN(
      std::unique_ptr<train::SampleSource> source,
      train::ShardSource::Open(order_.data_index(), SetOf(false), then, stopping_.get_token()));
  source->set_stop(stopping_.get_token());
  return source;
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
    for (const std::string& index : {order_.data_index(), order_.validation_index()}) {
      if (!index.empty() && access(index.c_str(), F_OK) != 0)
        Log(absl::StrCat(index, " is gone: the shards are read again"));
    }
    ASSIGN_OR_RETURN(std::unique_ptr<train::SampleSource> source,
                     StillThere(train::ShardSource::Open(order_.data_index(), SetOf(false), options,
                                                         stopping_.get_token())));
    if (!order_.validation_index().empty()) {
      // Opened with the rest: what is missing of it is better known before the first step.
      const data::DataSetSpec spec = SetOf(true);
      data::LoaderOptions at_the_end = options;
      at_the_end.open_at_once = true;
      ASSIGN_OR_RETURN(kept_.validation,
                       StillThere(train::ShardSource::Open(order_.validation_index(), spec,
                                                           at_the_end, stopping_.get_token())));
      ASSIGN_OR_RETURN(kept_.tokenizer,
                       StillThere(data::Tokenizer::Load(spec.tokenizer, spec.folders)));
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
  output_ = ResolvePath(order_.assign().document().directory(), plan_.spec.output);
  LogData();
  return absl::OkStatus();
}

int64_t EpochRun::LengthMultiple() const { return order_.device_kind() == "gpu" ? 8 : 1; }

absl::StatusOr<train::TrainerOptions> EpochRun::MakeTrainerOptions() const {
  train::TrainerOptions options;
  options.length_multiple = LengthMultiple();
  options.trace_step = TraceStep(plan_.spec);
  options.mirrors_are_whole = fill_ == nullptr;
  if (order_.device_kind() == "gpu") options.warm = &kept_.warm;
  if (goes_on()) {
    options.start = start_;
    if (ends_at_start_) options.last_step = start_.decision.step;
  } else if (manifest_.has_value()) {
    options.start = checkpoint::StartOf(*manifest_);
  }
  return options;
}

absl::Status EpochRun::FillMirrors() {
  if (fill_buckets_ == 0) {
    // The first step is behind it.
    const auto step = absl::FromChrono(std::chrono::steady_clock::now() - steps_begun_);
    ASSIGN_OR_RETURN(fill_buckets_, fill_->AgreeOnShare(step));
  }
  RETURN_IF_ERROR(fill_->Run(fill_buckets_));
  if (!fill_->done()) return absl::OkStatus();
  LogPhase("has what it mirrors");
  const std::string damaged = fill_->damaged();
  if (fill_->whole()) RETURN_IF_ERROR(trainer_->executor().UpdateEverywhere());
  fill_ = nullptr;
  filled_behind_ = kept_.training->decided().step;
  const bool keeps_copies = checkpoint::HostCopy::BytesNeeded(plan_, *kept_.training) > 0;
  if (!damaged.empty()) {
    // All ranks read it from the next record on, and let no copies of epochs before go; where they
    // keep copies of this one, these have what is lacking.
    if (!keeps_copies) kept_.training->set_copied([] { return train::kCopiesNotYet; });
    return TellNoSecondHome(damaged);
  }
  if (!keeps_copies) TellSafe();
  return absl::OkStatus();
}

absl::Status EpochRun::FreeCommunicators() {
  // The last step's gathers may still be under way.
  RETURN_IF_ERROR(device::AwaitDevice(kLastWorkTimeout));
  peer_kernels_->Free(kFreeingMax);
  return absl::OkStatus();
}

absl::Status EpochRun::MakeTrainer() {
  model::UseProductTable(products_);
  const train::BufferOptions buffers = Buffers();
  if (kept_.pinning == nullptr) {
    kept_.pinning =
        std::make_unique<checkpoint::PinningThread>(checkpoint::PinningOf(buffers.device));
  }
  if (goes_on()) HoldMemory();
  RETURN_IF_ERROR(BorrowState(buffers));
  kept_.training->set_faults(&faults_.points);
  const std::optional<job::Checkpoint>& wanted = plan_.spec.checkpoint;
  if (wanted.has_value() && wanted->every > 0) {
    const absl::Status made = MakeCheckpoints(/*now=*/false);
    if (!made.ok()) TellNoCheckpoint("any step of this rank", made);
  }
  RETURN_IF_ERROR(KeepHostCopy());
  ASSIGN_OR_RETURN(const train::TrainerOptions options, MakeTrainerOptions());
  train::TrainerCallbacks callbacks;
  callbacks.on_trace = [this](const std::vector<schedule::TimedInstruction>& timeline,
                              const std::vector<schedule::TimedOperation>& operations) {
    OnTrace(timeline, operations);
  };
  callbacks.on_step = [this](const train::StepSummary& step) { OnStep(step); };
  const auto may_free = [this] { return peer_kernels_.has_value() && peer_kernels_->MayFree(); };
  callbacks.wants_boundary = [this, may_free] { return fill_ != nullptr || may_free(); };
  callbacks.on_boundary = [this, may_free]() -> absl::Status {
    if (fill_ != nullptr) RETURN_IF_ERROR(FillMirrors());
    return may_free() ? FreeCommunicators() : absl::OkStatus();
  };
  callbacks.on_settled = [this, may_free]() -> absl::Status {
    // What begins in an epoch that leaves would be given up at once, or keep its last step waiting.
    if (trainer_->leaves()) return absl::OkStatus();
    // A job that asked for copies is not to train to its end without them.
    RETURN_IF_ERROR(TendMemory());
    if (kept_.host_copy != nullptr) {
      RETURN_IF_ERROR(kept_.host_copy->AfterStep(Epoch{epoch()}));
      if (!safe_told_ && fill_ == nullptr && kept_.host_copy->copied() > 0) TellSafe();
    }
    // What it lets go takes the driver as what is freed of communicators does.
    if (!may_free()) TellCopiesWhole();
    RETURN_IF_ERROR(TendOthers());
    // At an early end that of its last step takes the place of others.
    if (checkpoints_ != nullptr && !trainer_->ends_early()) checkpoints_->OnSettled();
    return absl::OkStatus();
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
  if (ProfiledStep(plan_.spec) > 0)
    profiler_.emplace(ProfiledStep(plan_.spec), order_.device_kind() == "gpu");
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(stopped_);
  training_ = kept_.training.get();
  if (end_wished_) training_->WishEnd();
  if (leave_wished_) training_->WishLeave();
  return absl::OkStatus();
}

absl::Status EpochRun::Train() {
  if (order_.device_kind() == "gpu") peer_kernels_.emplace();
  RETURN_IF_ERROR(MakeTrainer());
  state_after_ = LogPhase(absl::StrCat("has its state", SegmentsText()));
  const int64_t tried_before = kept_.warm.microbatches();
  RETURN_IF_ERROR(trainer_->Prepare());
  const int64_t tried = kept_.warm.microbatches() - tried_before;
  const double ready_after = LogPhase(
      absl::StrCat("is ready", SegmentsText(),
                   tried == 0 ? "" : absl::StrCat(" has tried ", tried, " microbatches alone,")));
  // Whoever wrote metrics before may have died before it wrote the last one.
  if (goes_on() && metrics_ != nullptr && metrics_->last_step() < start_.decision.step)
    RETURN_IF_ERROR(WriteLine(trainer_->SummaryOf(start_.decision)));
  v1::RankReport ready;
  ready.mutable_ready()->set_connected(connected_after_);
  ready.mutable_ready()->set_state(state_after_);
  ready.mutable_ready()->set_ready(ready_after);
  RETURN_IF_ERROR(Report(std::move(ready)));
  if (fill_ == nullptr && checkpoint::HostCopy::BytesNeeded(plan_, *kept_.training) == 0)
    TellSafe();
  steps_begun_ = std::chrono::steady_clock::now();
  const absl::Status ran = trainer_->Run();
  standby_.Close(epoch());  // before the device is waited for
  if (ran.ok()) {
    LogPhase(absl::StrCat("has done its last step, ", trainer_->last_step()));
    if (!trainer_->leaves()) LogMemory();  // else others wait
  }
  // What stopped the training stands before its having been stopped.
  RETURN_IF_ERROR(report_status_);
  // Who leaves first may break off what the others still do of the step, and says that it leaves:
  // nobody is accused.
  const bool cut_off =
      !ran.ok() && job::KindOf(ran) == job::FailureKind::kPeerLost && !AccusedIn(ran).has_value();
  if (trainer_->leaves() && (ran.ok() || cut_off)) return EndForNext();
  RETURN_IF_ERROR(ran);
  // The output folder need not be reachable from every node; only the reporter depends on it.
  const absl::Status written =
      figures_.Write(output_, plan_, Rank{order_.rank()},
                     order_.device_kind() == "gpu" ? device::MemoryInUse() : ResidentBytesMax(),
                     profiler_.has_value() ? profiler_->profile() : std::nullopt, WriteFolders());
  if (!written.ok()) spdlog::warn("{}", written.ToString());
  // The epoch before may have ended with its last step decided and that checkpoint not written, or
  // this one is to save what is left of the job's state and does no step.
  const bool nothing_left = goes_on() && start_.decision.step == trainer_->last_step();
  if (trainer_->ends_early() || trainer_->last_step() >= first_step_ || nothing_left) {
    // Nothing comes behind the last update that its copy could keep waiting.
    if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::AwaitDevice(kLastWorkTimeout));
    WriteLastCheckpoint();
  }
  if (trainer_->ends_early()) return report_status_;
  if (order_.validation_index().empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Evaluate());
  LogPhase("has validated");
  return absl::OkStatus();
}

absl::Status EpochRun::RunToEnd() {
  faults_.lost.Forget();  // what the epoch before had nobody to give to
  standby_.KeepOnly(order_.assign().standby());
  at::set_num_threads(std::max(1, order_.threads()));
  if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::UseCudaDevice(order_.device_index()));
  if (connector_.joinable()) {
    connector_.join();
    RETURN_IF_ERROR(connected_beside_);
  } else {
    RETURN_IF_ERROR(MakePlanOfOrder());
  }
  if (goes_on()) {
    // All that can be made before it is known from where.
    if (from_copies()) RETURN_IF_ERROR(FindCopies());
    RETURN_IF_ERROR(OpenData());
    if (!beside()) {
      RETURN_IF_ERROR(Connect());
      if (order_.assign().beside()) RETURN_IF_ERROR(AwaitAllConnected());
      connected_after_ = LogPhase("is connected");
    }
    {
      const Working watched;  // others wait for it
      RETURN_IF_ERROR(faults_.points.Reach(job::FaultPhase::kRecovery, 0));
      RETURN_IF_ERROR(AwaitBegin());
    }
    LogPhase(absl::StrCat("knows that it goes on behind step ", start_.decision.step));
    RETURN_IF_ERROR(FindCheckpoint());
    RETURN_IF_ERROR(OpenMetrics());
  } else {
    RETURN_IF_ERROR(FindCheckpoint());
    RETURN_IF_ERROR(OpenData());
    LogPhase("has its data");
    RETURN_IF_ERROR(OpenMetrics());
    RETURN_IF_ERROR(Connect());
    connected_after_ = LogPhase("is connected");
  }
  RETURN_IF_ERROR(Train());
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(stopped_);
  }
  ASSIGN_OR_RETURN(const bool written, AwaitLastPart());
  if (!written) {
    spdlog::warn("job={} epoch={} rank={} the last checkpoint is given up: it takes too long",
                 order_.assign().job(), epoch(), order_.rank());
  }
  // The last step's gathers may still be under way, and use the epoch's memory.
  if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::AwaitDevice(kLastWorkTimeout));
  v1::RankReport report;
  report.mutable_succeeded()->set_step(trainer_->last_step());
  report.mutable_succeeded()->set_early(trainer_->ends_early());
  RETURN_IF_ERROR(Report(std::move(report)));
  // Should others be lost that have not come so far, it is known where this rank stands.
  return Report(QuietNow(/*context_ok=*/true));
}

absl::Status EpochRun::Run() {
  if (order_.keeps()) {
    const absl::Status kept = model::CallTorch("giving copies", [this] { return KeepCopies(); });
    const MutexLock lock(&mu_);
    return stopped_.ok() ? kept : stopped_;
  }
  absl::Status ended = model::CallTorch("training", [this] { return RunToEnd(); });
  if (kept_.training != nullptr) ended = kept_.training->Attributed(std::move(ended));
  if (!ended.ok()) {
    {
      // A rank that was told to stop reports that, not the aborted wait that it caused.
      MutexLock lock(&mu_);
      if (!stopped_.ok()) ended = stopped_;
    }
    ended = Quiesce(ended);
    WindDown();
  }
  Release();
  return ended;
}

}  // namespace phalanx::rank
