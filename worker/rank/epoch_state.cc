// The state that an epoch begins with, its copies in host memory, and its checkpoints.
#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/path.h"
#include "core/base/status.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/job/failure.h"
#include "spdlog/spdlog.h"
#include "worker/checkpoint/loader.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/epoch_run.h"
#include "worker/train/holdings_exchange.h"
#include "worker/train/training_state.h"
#include "worker/train/transfers.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kHostMemoryTimeout = absl::Seconds(30);

}  // namespace

absl::Status EpochRun::BorrowState(const train::BufferOptions& buffers) {
  const train::StateIdentity identity{
      .store = store_, .job = order_.assign().job(), .rank = order_.rank()};
  const bool held = kept_.training != nullptr && kept_.identity == identity;
  if (goes_on()) {
    if (!held) {
      kept_.snapshot = nullptr;
      kept_.host_copy = nullptr;
      kept_.training = train::TrainingState::CreateNowhere(Rank{order_.rank()}, buffers);
      kept_.training->Adopt(start_);
      kept_.identity = identity;
      kept_.plan = nullptr;
    }
    {
      MutexLock lock(&mu_);
      RETURN_IF_ERROR(stopped_);
      kept_.training->TakeBackRequests();  // those of the epoch before
      training_ = kept_.training.get();
    }
    return ChangeLayout();
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
  kept_.plan = std::make_unique<plan::Plan>(plan_);
  return absl::OkStatus();
}

absl::Status EpochRun::ChangeLayout() {
  train::TrainingState& training = *kept_.training;
  kept_.snapshot = nullptr;
  kept_.host_copy = nullptr;
  training.set_copied(nullptr);
  train::OwnHoldings own;
  // Else it was on its way to the layout of an epoch that did not come to train.
  if (!training.layout().empty()) {
    RETURN_IF_ERROR(training.GoOn(*kept_.plan, start_));
    RETURN_IF_ERROR(training.Leave(*kept_.plan));
    own.whole = kept_.plan.get();
  }
  own.holdings = training.HoldingsNow();
  train::BulkGroup group;
  for (Rank rank{0}; rank.value < plan_.world; ++rank.value) {
    if (!plan_.PlacesOf(rank).empty()) group.ranks.push_back(rank);
  }
  const int32_t control = plan::FindCommunicator(
      plan::Communicators(plan_), plan::CommunicatorSpec::Use::kControl, group.ranks);
  if (control >= 0) group.communicator = communicators_[static_cast<size_t>(control)].get();
  ASSIGN_OR_RETURN(const auto holdings, train::ExchangeHoldings(own, group, Rank{order_.rank()},
                                                                training.options().device, [&] {
                                                                  return training.stop_requested();
                                                                }));
  if (holdings.empty()) {
    return job::WithKind(job::FailureKind::kStateLost,
                         absl::FailedPreconditionError(absl::StrCat(
                             "no process of the job holds state of step ", start_.decision.step,
                             " that epoch ", epoch(), " could go on from")));
  }
  const absl::StatusOr<train::Transfers> transfers = train::TransfersInto(plan_, holdings);
  if (absl::IsFailedPrecondition(transfers.status()))
    return job::WithKind(job::FailureKind::kStateLost, transfers.status());
  RETURN_IF_ERROR(transfers.status());
  RETURN_IF_ERROR(faults_.points.Reach(job::FaultPhase::kRecovery, start_.decision.step));
  RETURN_IF_ERROR(training.Enter(plan_, *transfers, group));
  kept_.plan = std::make_unique<plan::Plan>(plan_);
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
  first_step_ = start_.decision.step + 1;
  if (!order_.assign().has_checkpoint()) return absl::OkStatus();
  const v1::CheckpointSource& source = order_.assign().checkpoint();
  if (goes_on()) return absl::OkStatus();  // processes keep a later state
  absl::StatusOr<checkpoint::CheckpointLock> lock =
      checkpoint::CheckpointLock::ToRead(source.path());
  if (!lock.ok()) return OfCheckpoint(lock.status());
  absl::StatusOr<checkpoint::Manifest> manifest = checkpoint::ReadManifestOf(source.path());
  if (!manifest.ok()) return OfCheckpoint(manifest.status());
  const std::string& chosen = source.manifest_digest();
  if (!chosen.empty() && Digest(checkpoint::WriteManifest(*manifest)) != chosen) {
    return OfCheckpoint(absl::UnavailableError(
        "its manifest is another one than that which was chosen: nodes see different folders"));
  }
  first_step_ = manifest->step + 1;
  manifest_ = *std::move(manifest);
  checkpoint_lock_ = *std::move(lock);
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
          .directory = ResolvePath(order_.assign().document().directory(), wanted->directory),
          .store = store_,
          .job = order_.assign().job(),
          .rank = Rank{order_.rank()},
          .in_use = order_.assign().checkpoint().path(),
          .reporter = reporter_,
          .faults = &faults_.points},
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

void EpochRun::Deliver(const v1::BeginEpoch& message) {
  const MutexLock lock(&mu_);
  if (!told_.has_value()) told_ = message.begins();
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
  if (goes_on()) {
    kept_.training->set_copied([] { return int64_t{0}; });  // until it is there
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<checkpoint::HostCopy>> made = MakeHostCopy(bytes);
  if (!made.ok()) return DoWithoutHostCopy(made.status());
  kept_.host_copy = *std::move(made);
  kept_.host_copy->Use();
  return absl::OkStatus();
}

absl::Status EpochRun::DoWithoutHostCopy(const absl::Status& kept) {
  if (!absl::IsResourceExhausted(kept)) return kept;
  if (plan_.spec.recovery.state_home != job::StateHome::kAuto)
    return job::WithKind(job::FailureKind::kOutOfMemory, kept);
  // The job did not ask for it: it trains without a second home.
  kept_.training->set_copied([] { return int64_t{0}; });
  TellSafe(std::string(kept.message()));
  v1::RankReport report;
  report.mutable_event()->set_type("NoSecondHome");
  report.mutable_event()->set_message(absl::StrCat(
      kept.message(),
      ": losing the only home of any state costs the steps since the last checkpoint"));
  return Report(std::move(report));
}

void EpochRun::TellSafe(const std::string& why_not) {
  if (std::exchange(safe_told_, true) || epoch() == 1) return;
  v1::RankReport report;
  report.mutable_safe()->set_why_not(why_not);
  report_status_.Update(Report(std::move(report)));
}

absl::StatusOr<std::unique_ptr<checkpoint::HostCopy>> EpochRun::MakeHostCopy(int64_t bytes) {
  ASSIGN_OR_RETURN(auto buffers, AskHostMemory(bytes));
  return checkpoint::HostCopy::Create(
      plan_, *kept_.training,
      {.store = order_.store(), .job = order_.assign().job(), .rank = Rank{order_.rank()}},
      std::move(buffers));
}

void EpochRun::BeginHostCopy() {
  const int64_t bytes = checkpoint::HostCopy::BytesNeeded(plan_, *kept_.training);
  if (bytes == 0 || kept_.host_copy != nullptr) return;
  second_home_ = std::async(std::launch::async, [this, bytes] {
    if (order_.device_kind() == "gpu")
      device::UseCudaDevice(order_.device_index()).IgnoreError();  // of this thread
    return MakeHostCopy(bytes);
  });
}

absl::Status EpochRun::TakeHostCopy() {
  if (!second_home_.valid()) return absl::OkStatus();
  if (second_home_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<checkpoint::HostCopy>> made = second_home_.get();
  if (!made.ok()) return DoWithoutHostCopy(made.status());
  kept_.host_copy = *std::move(made);
  kept_.host_copy->Use();
  return absl::OkStatus();
}

// GEMMs on a GPU like lengths of whole eights.
}  // namespace phalanx::rank
