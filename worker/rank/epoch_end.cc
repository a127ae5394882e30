// How an epoch ends before its last step: by an order, for a newer one, or by a failure.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/plan/derivation.h"
#include "spdlog/spdlog.h"
#include "worker/device/cuda_device.h"
#include "worker/model/torch_boundary.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {

absl::Status Replaced() { return absl::CancelledError("a newer epoch replaces this one"); }

namespace {

// For work that was enqueued when the epoch ended: then its communicators are aborted.
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
constexpr absl::Duration kLeaveWorkTimeout = absl::Seconds(2);
// To leave peers that answer takes milliseconds: one that does not holds up the next epoch.
constexpr absl::Duration kLongFarewell = absl::Milliseconds(500);

}  // namespace

void EpochRun::Leave() {
  {
    const MutexLock lock(&mu_);
    if (training_ != nullptr && plan_.layout.derivation >= plan::kDerivationOfLeavingAtAStep) {
      leave_wished_ = true;
      return training_->WishLeave();
    }
  }
  Stop(Replaced());
}

void EpochRun::WishEnd() {
  MutexLock lock(&mu_);
  end_wished_ = true;
  if (training_ != nullptr) training_->WishEnd();
}

absl::Status EpochRun::EndForNext() {
  // Others may need this rank's communicators until they have done the step, too. Whose are cut
  // off before that goes without its gathers, which the next epoch makes up for.
  const auto broken_off = [this] {
    return std::any_of(communicators_.begin(), communicators_.end(),
                       [](const auto& one) { return one != nullptr && !one->Check().ok(); });
  };
  if (order_.device_kind() == "gpu")
    device::AwaitDevice(kLeaveWorkTimeout, broken_off).IgnoreError();
  const MutexLock lock(&mu_);
  stopped_.Update(Replaced());
  return stopped_;
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

void EpochRun::AbortCommunicators(const absl::Status& reason) {
  if (!connected_) return;
  for (const auto& communicator : communicators_) {
    if (communicator != nullptr) communicator->Abort(reason);
  }
}

absl::Status EpochRun::Quiesce(const absl::Status& ended) {
  standby_.Close(epoch());
  HoldMemory();
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
  metrics_ = nullptr;  // another rank may write them from now on
  const absl::Status sent = Report(QuietNow(drained.ok()));
  if (!sent.ok()) spdlog::error("could not tell the daemon: {}", sent.ToString());
  return drained.ok() ? ended : drained;
}

v1::RankReport EpochRun::QuietNow(bool context_ok) const {
  v1::RankReport report;
  *report.mutable_quiet() =
      QuietReport(kept_.training == nullptr ? train::Standing{} : kept_.training->StandingNow(),
                  kept_.epoch, context_ok);
  return report;
}

void EpochRun::Release() {
  profiler_.reset();  // it belongs to this thread
  trainer_ = nullptr;
  if (kept_.training != nullptr) kept_.training->set_writing(nullptr);
  comm::Communicators leaving;
  {
    MutexLock lock(&mu_);
    training_ = nullptr;
    connected_ = false;
    leaving = std::exchange(communicators_, {});
  }
  // Orders are read meanwhile.
  const auto begin = std::chrono::steady_clock::now();
  leaving.clear();
  peer_kernels_.reset();
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  if (took >= kLongFarewell) {
    Log(absl::StrCat("has left its communicators, which took ", absl::FormatDuration(took)));
  }
}

}  // namespace phalanx::rank
