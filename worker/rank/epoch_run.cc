#include "worker/rank/epoch_run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"
#include "spdlog/spdlog.h"
#include "worker/data/job_data.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/trace_file.h"
#include "worker/train/module_state.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kSendTimeout = absl::Seconds(30);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);
constexpr int32_t kCaptions = 8;

// CPU slots share few cores; beside a GPU there are some to spare.
int32_t DecodeThreads(const v1::RunEpoch& order) { return order.device_kind() == "gpu" ? 4 : 1; }

// What this rank's modules read of a sample.
data::LoaderOptions OptionsOfLoader(const plan::Plan& plan, const v1::RunEpoch& order) {
  data::LoaderOptions options = data::LoaderOptionsOf(plan.spec);
  options.threads = DecodeThreads(order);
  for (const plan::Place& place : plan.PlacesOf(Rank{order.rank()})) {
    const job::Family family = plan.module_spec(place.module).architecture.family;
    options.images |= place.pp == 0 && family == job::Family::kClipVision;
    options.sounds |= place.pp == 0 && family == job::Family::kWhisper;
    options.targets |= family == job::Family::kRegressor && plan.HasLoss(place.module);
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
  ASSIGN_OR_RETURN(job::ReadJob read,
                   wire::ReadJobFile(assign.document().text(), job::Purpose::kSubmit));
  ASSIGN_OR_RETURN(plan::Layout layout, wire::FromProto(assign.layout()));
  ASSIGN_OR_RETURN(plan_, plan::Expand(read.spec, std::move(layout)));
  if (plan_.digest != assign.plan_digest()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this rank's plan has digest ", plan_.digest, ", the coordinator's ",
                     assign.plan_digest(), ": worker and coordinator are of different versions"));
  }
  reporter_ = plan_.Reporter().value == order_.rank();
  return absl::OkStatus();
}

absl::Status EpochRun::OpenData() {
  const std::string& directory = order_.assign().document().directory();
  ASSIGN_OR_RETURN(source_,
                   train::ShardSource::Open(order_.data_index(),
                                            data::DataSetSpecOf(plan_.spec, directory, false),
                                            OptionsOfLoader(plan_, order_)));
  std::string validation;
  if (!order_.validation_index().empty()) {
    ASSIGN_OR_RETURN(const data::Index index,
                     data::Index::Load(order_.validation_index(),
                                       data::DataSetSpecOf(plan_.spec, directory, true)));
    validation = index.digest();
  }
  const std::string digest = data::DigestOfSets(source_->digest(), validation);
  if (digest != plan_.layout.data_digest) {
    return absl::FailedPreconditionError(absl::StrCat("this node's data index has digest ", digest,
                                                      ", the plan's ", plan_.layout.data_digest,
                                                      ": the shards differ between nodes"));
  }
  output_ = plan_.spec.output;
  if (output_.empty() || output_[0] != '/') output_ = absl::StrCat(directory, "/", output_);
  if (!reporter_) return absl::OkStatus();
  ASSIGN_OR_RETURN(metrics_, MetricsWriter::Open(output_, 1));
  return absl::OkStatus();
}

absl::Status EpochRun::Connect() {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
  comm::WorldOptions options;
  options.stop = connecting_.get_token();
  if (!order_.address().empty()) options.interface_address = order_.address();
  absl::StatusOr<comm::Communicators> connected =
      absl::UnimplementedError("no GPU support in this build");
  if (order_.device_kind() == "gpu") {
#ifdef PHALANX_WITH_CUDA
    options.current_stream = device::CurrentStream;
    connected = comm::ConnectNccl(specs, Rank{order_.rank()}, plan_.world, rendezvous_, options);
#endif
  } else {
    connected = comm::ConnectGloo(specs, Rank{order_.rank()}, plan_.world, rendezvous_, options);
  }
  absl::MutexLock lock(&mu_);
  // A rank that was told to stop reports that, not the connection that it broke off.
  RETURN_IF_ERROR(stopped_);
  RETURN_IF_ERROR(connected.status());
  communicators_ = *std::move(connected);
  connected_ = true;
  return absl::OkStatus();
}

void EpochRun::OnStep(const train::StepSummary& step) {
  figures_.Add(step, *program_);
  const absl::Time now = absl::Now();
  if (now - progress_sent_ >= kProgressInterval || step.step == plan_.spec.steps) {
    progress_sent_ = now;
    v1::ToDaemon message;
    message.mutable_progress()->set_epoch(epoch());
    message.mutable_progress()->set_step(step.step);
    report_status_.Update(channel_.Send(message, kSendTimeout));
  }
  if (!reporter_) return;
  report_status_.Update(metrics_->Write(step, epoch()));
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

absl::Status EpochRun::Train() {
  train::TrainerOptions options;
  options.executor.compute = train::ComputeType(plan_.spec.compute);
  options.executor.init_threads = std::max(1, order_.threads());
#ifdef PHALANX_WITH_CUDA
  if (order_.device_kind() == "gpu") {
    options.executor.device = at::Device(at::kCUDA, static_cast<int8_t>(order_.device_index()));
    options.executor.length_multiple = 8;
  }
#endif
  options.trace_step = TraceStep(plan_.spec);
  train::TrainerCallbacks callbacks;
  callbacks.on_trace = [this](const std::vector<schedule::TimedInstruction>& timeline) {
    OnTrace(timeline);
  };
  callbacks.on_step = [this](const train::StepSummary& step) { OnStep(step); };
  callbacks.on_corrupt_sample = [this](const train::Batches::CorruptSample& sample) {
    v1::RankReport report;
    report.mutable_event()->set_type("CorruptSample");
    report.mutable_event()->set_epoch(epoch());
    report.mutable_event()->set_message(sample.reason);  // it names shard and sample
    report_status_.Update(Report(std::move(report)));
  };
  ASSIGN_OR_RETURN(std::unique_ptr<train::Trainer> trainer,
                   train::Trainer::Create(plan_, Rank{order_.rank()}, communicators_, *source_,
                                          options, std::move(callbacks)));
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(stopped_);
    training_ = trainer.get();
  }
  program_ = &trainer->executor().program();
  // Stop() may not reach the trainer once this function has left.
  const std::unique_ptr<EpochRun, void (*)(EpochRun*)> forget(this, [](EpochRun* run) {
    absl::MutexLock lock(&run->mu_);
    run->training_ = nullptr;
  });
  v1::RankReport ready;
  ready.mutable_ready();
  RETURN_IF_ERROR(Report(std::move(ready)));
  RETURN_IF_ERROR(trainer->Run());
  RETURN_IF_ERROR(report_status_);
  // The output folder need not be reachable from every node; only the reporter depends on it.
  const absl::Status written =
      figures_.Write(output_, plan_, Rank{order_.rank()},
                     order_.device_kind() == "gpu" ? device::MemoryInUse() : ResidentBytesMax());
  if (!written.ok()) spdlog::warn("{}", written.ToString());
  if (order_.validation_index().empty()) return absl::OkStatus();

  const data::DataSetSpec spec =
      data::DataSetSpecOf(plan_.spec, order_.assign().document().directory(), true);
  ASSIGN_OR_RETURN(
      std::unique_ptr<train::SampleSource> validation,
      train::ShardSource::Open(order_.validation_index(), spec, OptionsOfLoader(plan_, order_)));
  ASSIGN_OR_RETURN(std::unique_ptr<data::Tokenizer> tokenizer,
                   data::Tokenizer::Load(spec.tokenizer));
  ASSIGN_OR_RETURN(const train::EvaluationSummary summary,
                   trainer->Evaluate(*validation, kCaptions, reporter_ ? tokenizer.get() : nullptr,
                                     tokenizer->end_token()));
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

absl::Status EpochRun::Run() {
  at::set_num_threads(std::max(1, order_.threads()));
  if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::UseCudaDevice(order_.device_index()));
  RETURN_IF_ERROR(MakePlanOfOrder());
  RETURN_IF_ERROR(OpenData());
  RETURN_IF_ERROR(Connect());
  const absl::Status trained = Train();
  absl::Status stopped;
  {
    absl::MutexLock lock(&mu_);
    stopped = stopped_;
  }
  // A rank that was told to stop reports that, not the aborted wait that it caused.
  RETURN_IF_ERROR(stopped);
  RETURN_IF_ERROR(trained);
  v1::RankReport report;
  report.mutable_succeeded()->set_step(plan_.spec.steps);
  return Report(std::move(report));
}

void EpochRun::Release() {
  absl::MutexLock lock(&mu_);
  connected_ = false;
  communicators_.clear();
}

void EpochRun::Stop(absl::Status reason) {
  absl::MutexLock lock(&mu_);
  if (!stopped_.ok()) return;
  stopped_ = reason;
  rendezvous_.Abort(reason);
  connecting_.request_stop();
  if (training_ != nullptr) training_->RequestStop();
  if (!connected_) return;
  for (const auto& communicator : communicators_) {
    if (communicator != nullptr) communicator->Abort(reason);
  }
}

}  // namespace phalanx::rank
