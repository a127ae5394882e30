// How ranks of an epoch connect: before it is known from where it goes on, and, where nobody is
// lost, while they train in the epoch before.
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/plan/preparation.h"
#include "worker/comm/releases.h"
#include "worker/device/cuda_device.h"
#include "worker/model/torch_boundary.h"
#include "worker/rank/connect.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {
namespace {

// Of all ranks, once one is connected.
constexpr absl::Duration kConnectTimeout = absl::Minutes(1);
constexpr absl::Duration kFreeTimeout = absl::Seconds(10);

}  // namespace

absl::Status EpochRun::Connect() {
  absl::StatusOr<comm::Communicators> connected = [this]() -> absl::StatusOr<comm::Communicators> {
    if (!order_.assign().standby().empty()) return standby_.Take(order_.assign());
    // NCCL makes none while others of the same device are about to be aborted.
    if (order_.device_kind() == "gpu") {
      RETURN_IF_ERROR(standby_.AwaitIdle(stopping_.get_token()));
      // Those of before wait until steps are done again, unless they are in the way.
      if (!beside() && device::MemoryFree() < plan::kPreparedRoom)
        comm::Releases::OfProcess().FreeAll(comm::DeadlineIn(kFreeTimeout));
    }
    comm::WorldOptions options;
    options.stop = stopping_.get_token();
    options.strangers = [this](int64_t refused, const std::string& last) {
      TellStrangers(
          channel_,
          {.job = order_.assign().job(), .epoch = order_.assign().epoch(), .rank = order_.rank()},
          refused, last);
    };
    return ConnectRanks(plan_, order_, faults_, rendezvous_, std::move(options));
  }();
  MutexLock lock(&mu_);
  // A rank that was told to stop reports that, not the connection that it broke off.
  RETURN_IF_ERROR(stopped_);
  RETURN_IF_ERROR(connected.status());
  communicators_ = *std::move(connected);
  connected_ = true;
  return absl::OkStatus();
}

absl::Status EpochRun::AwaitAllConnected() {
  const comm::Deadline deadline = comm::DeadlineIn(kConnectTimeout);
  const auto key = [](Rank rank) { return absl::StrCat("connected/", rank.value); };
  RETURN_IF_ERROR(rendezvous_.Put(key(Rank{order_.rank()}), "yes"));
  for (Rank rank{0}; rank.value < plan_.world; ++rank.value) {
    if (plan_.PlacesOf(rank).empty()) continue;
    const absl::Status heard = rendezvous_.Get(key(rank), deadline).status();
    // Not this rank's fault: its process stays, and keeps its state.
    if (absl::IsDeadlineExceeded(heard)) return job::WithKind(job::FailureKind::kPeerLost, heard);
    RETURN_IF_ERROR(heard);
  }
  return absl::OkStatus();
}

void EpochRun::ConnectBeside(std::function<void(bool)> ended) {
  connector_ = std::jthread([this, ended = std::move(ended)] {
    connected_beside_ = AsCollateral(model::CallTorch("connecting", [this]() -> absl::Status {
      if (order_.device_kind() == "gpu")
        RETURN_IF_ERROR(device::UseCudaDevice(order_.device_index()));
      RETURN_IF_ERROR(MakePlanOfOrder());
      RETURN_IF_ERROR(Connect());
      return AwaitAllConnected();
    }));
    if (connected_beside_.ok()) connected_after_ = LogPhase("is connected");
    ended(connected_beside_.ok());
  });
}

}  // namespace phalanx::rank
