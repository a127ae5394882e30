// The state that an epoch begins with, and its checkpoints.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/digest.h"
#include "core/base/path.h"
#include "core/base/status.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/job/failure.h"
#include "core/plan/memory_fit.h"
#include "core/plan/ruler_map.h"
#include "core/plan/safe_again.h"
#include "core/posix/activity.h"
#include "core/posix/held_folder.h"
#include "spdlog/spdlog.h"
#include "worker/checkpoint/loader.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/heap.h"
#include "worker/train/holdings_exchange.h"
#include "worker/train/training_state.h"
#include "worker/train/transfers.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kApplyTimeout = absl::Minutes(1);
// From which step an epoch goes on: a coordinator may restart meanwhile.
constexpr absl::Duration kBeginTimeout = absl::Minutes(10);

}  // namespace

absl::Status EpochRun::AwaitBegin() {
  const comm::Deadline deadline = comm::DeadlineIn(kBeginTimeout);
  const Waiting to_be_told;
  const MutexLock lock(&mu_);
  while (!told_.has_value() && stopped_.ok()) {
    if (given_changed_.WaitUntil(&mu_, deadline) && !told_.has_value()) {
      // Not this rank's fault: its process stays, and keeps its state.
      return job::WithKind(job::FailureKind::kPeerLost,
                           absl::DeadlineExceededError(absl::StrCat(
                               "nobody has said within ", absl::FormatDuration(kBeginTimeout),
                               " from which step epoch ", epoch(), " goes on")));
    }
  }
  RETURN_IF_ERROR(stopped_);
  ASSIGN_OR_RETURN(start_, StartOf(told_->begins()));
  ends_at_start_ = told_->ends();
  return absl::OkStatus();
}

train::BufferOptions EpochRun::Buffers() const {
  train::BufferOptions buffers{.compute = train::ComputeType(plan_.spec.compute),
                               .init_threads = std::max(1, order_.threads())};
  if (order_.device_kind() == "gpu")
    buffers.device = at::Device(at::kCUDA, static_cast<int8_t>(order_.device_index()));
  return buffers;
}

absl::Status EpochRun::BorrowState(const train::BufferOptions& buffers) {
  const train::StateIdentity identity{
      .store = store_, .job = order_.assign().job(), .rank = order_.rank()};
  const bool held = kept_.training != nullptr && kept_.identity == identity;
  if (goes_on()) {
    if (from_copies()) {
      GiveMemoryBack();
      RETURN_IF_ERROR(TakeCopies(buffers));
      kept_.identity = identity;
    } else if (!held || !kept_.training->MayGoOn(start_)) {
      if (held) {
        spdlog::warn("job={} epoch={} rank={} keeps state of step {}, and brings none to step {}",
                     order_.assign().job(), epoch(), order_.rank(), kept_.training->decided().step,
                     start_.decision.step);
      }
      GiveMemoryBack();
      kept_.training = train::TrainingState::CreateNowhere(Rank{order_.rank()}, buffers);
      kept_.training->Adopt(start_);
      kept_.identity = identity;
      kept_.plan = nullptr;
    }
    kept_.epoch = epoch();
    {
      MutexLock lock(&mu_);
      RETURN_IF_ERROR(stopped_);
      kept_.training->TakeBackRequests();  // those of the epoch before
      training_ = kept_.training.get();
    }
    return ChangeLayout();
  }
  GiveMemoryBack();
  kept_.training = nullptr;  // two of them may not fit
  if (order_.device_kind() == "gpu") WarmForLosses();
  const Rank rank{order_.rank()};
  if (!manifest_.has_value()) {
    ASSIGN_OR_RETURN(kept_.training, train::TrainingState::Create(plan_, rank, buffers));
  } else {
    ASSIGN_OR_RETURN(auto empty, train::TrainingState::CreateEmpty(plan_, rank, buffers));
    RETURN_IF_ERROR(OfCheckpoint(checkpoint::Load(order_.assign().checkpoint().path(), *manifest_,
                                                  plan_, *empty, buffers.init_threads,
                                                  stopping_.get_token(), ReadFolders())));
    kept_.training = std::move(empty);
  }
  // Where steps run on a device, the host never again needs what drawing weights took.
  if (order_.device_kind() == "gpu") GiveFreedMemoryBack();
  kept_.epoch = epoch();
  kept_.identity = identity;
  kept_.plan = std::make_unique<plan::Plan>(plan_);
  return absl::OkStatus();
}

absl::Status EpochRun::ChangeLayout() {
  const Working watched;  // it waits for others where messages do
  train::TrainingState& training = *kept_.training;
  GiveMemoryBack();
  training.set_copied(nullptr);
  train::OwnHoldings own;
  // Else it was on its way to the layout of an epoch that did not come to train.
  if (!training.layout().empty()) {
    RETURN_IF_ERROR(training.GoOn(*kept_.plan, start_));
    // What it applies now is to be in place before it is looked at.
    if (order_.device_kind() == "gpu") RETURN_IF_ERROR(device::AwaitDevice(kApplyTimeout));
    LogPhase(absl::StrCat("has applied what is decided", SegmentsText()));
    const bool whole = !training.Lacks();
    RETURN_IF_ERROR(training.Leave(*kept_.plan));
    if (whole && plan::SameRulers(*kept_.plan, plan_)) own.whole = kept_.plan.get();
  }
  training.NameAs(plan_);
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
  const absl::StatusOr<train::Transfers> transfers =
      train::TransfersInto(plan_, holdings, plan::kMirrorsAtOnceMax);
  if (absl::IsFailedPrecondition(transfers.status()))
    return job::WithKind(job::FailureKind::kStateLost, transfers.status());
  RETURN_IF_ERROR(transfers.status());
  RETURN_IF_ERROR(faults_.points.Reach(job::FaultPhase::kRecovery, start_.decision.step));
  LogPhase("knows what moves");
  ASSIGN_OR_RETURN(const train::Moved moved, training.Enter(plan_, *transfers, group));
  kept_.plan = std::make_unique<plan::Plan>(plan_);  // also where mirrors do not get theirs
  if (!transfers->mirrors.empty()) {
    fill_ = std::make_unique<train::MirrorFill>(plan_, Rank{order_.rank()}, training,
                                                transfers->mirrors, group,
                                                [&training] { return training.stop_requested(); });
  }
  LogPhase(absl::StrCat("lies in its layout; has sent ", plan::FormatBytes(moved.sent_bytes),
                        " and been given ", plan::FormatBytes(moved.received_bytes), " within ",
                        absl::FormatDuration(moved.messages), SegmentsText()));
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
  const std::vector<std::string> folders = ReadFolders();
  const absl::Status led = HeldFolder::Open(source.path(), folders).status();
  if (absl::IsInvalidArgument(led)) {
    const std::optional<job::Checkpoint>& wanted = plan_.spec.checkpoint;
    const bool named =
        wanted.has_value() && wanted->resume_from.has_value() &&
        ResolvePath(order_.assign().document().directory(), *wanted->resume_from) == source.path();
    return LeadsOut(job::FailureKind::kCheckpointUnavailable,
                    named ? "spec.checkpoint.resume_from" : "spec.checkpoint.directory",
                    source.path(), led);
  }
  absl::StatusOr<checkpoint::CheckpointLock> lock =
      checkpoint::CheckpointLock::ToRead(source.path(), folders);
  if (!lock.ok()) return OfCheckpoint(lock.status());
  absl::StatusOr<checkpoint::Manifest> manifest =
      checkpoint::ReadManifestOf(source.path(), folders);
  if (!manifest.ok()) return OfCheckpoint(manifest.status());
  const std::string& chosen = source.manifest_digest();
  if (!chosen.empty() && Digest(checkpoint::WriteManifest(*manifest)) != chosen) {
    return OfCheckpoint(absl::UnavailableError(
        "its manifest is another one than that which was chosen: nodes see different folders"));
  }
  first_step_ = manifest->step + 1;
  Log(absl::StrCat("begins with the checkpoint of step ", manifest->step, ": ", source.path()));
  manifest_ = *std::move(manifest);
  checkpoint_lock_ = *std::move(lock);
  return absl::OkStatus();
}

void EpochRun::TellNoCheckpoint(absl::string_view of, const absl::Status& why) {
  v1::RankReport report;
  report.mutable_event()->set_type("CheckpointFailed");
  report.mutable_event()->set_message(absl::StrCat(of, ": ", why.message()));
  report_status_.Update(Report(std::move(report)));
}

void EpochRun::WriteLastCheckpoint() {
  if (const absl::Status made = MakeCheckpoints(/*now=*/true); !made.ok()) {
    if (stop_requested()) return;
    return TellNoCheckpoint(absl::StrCat("step ", trainer_->last_step()), made);
  }
  if (checkpoints_ != nullptr && AwaitLastPart().ok()) checkpoints_->WriteLast();
}

void EpochRun::Publish(const v1::PublishCheckpoint& order) {
  const MutexLock lock(&mu_);
  if (checkpoints_ != nullptr && order.epoch() == epoch()) checkpoints_->Publish(order);
}

void EpochRun::Deliver(const v1::BeginEpoch& message) {
  const MutexLock lock(&mu_);
  if (!told_.has_value()) told_ = message;
  given_changed_.SignalAll();
}

}  // namespace phalanx::rank
