#include "worker/rank/rank_process.h"

#include <unistd.h>

#include <utility>

#include "spdlog/spdlog.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kSendTimeout = absl::Seconds(10);

// A rank whose peers went away, or that was told to stop, is not where the trouble began.
bool IsCollateral(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kAborted ||
         status.code() == absl::StatusCode::kCancelled;
}

std::string CauseOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return "NonFinite";
    case absl::StatusCode::kInvalidArgument:
      return "DataInvalid";
    case absl::StatusCode::kResourceExhausted:
      return "OutOfMemory";
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return "PeerLost";
    default:
      return "RankError";
  }
}

}  // namespace

void RankProcess::Handle(const v1::ToRank& order) {
  std::shared_ptr<EpochRun> runs[2];
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (order.has_run()) next_ = std::make_shared<EpochRun>(channel_, order.run());
    if (order.has_quit()) quit_ = true;
    runs[0] = current_;
    runs[1] = next_;
  }
  changed_.notify_all();
  if (order.has_stop() && runs[0] == nullptr && runs[1] == nullptr)
    TellStopped(order.stop().epoch());
  for (const std::shared_ptr<EpochRun>& run : runs) {
    if (run == nullptr) continue;
    if (order.has_rendezvous()) run->Deliver(order.rendezvous());
    if (order.has_quit()) run->Stop(absl::CancelledError(order.quit().reason()));
    if (order.has_stop() && order.stop().epoch() >= run->epoch()) {
      run->Stop(absl::CancelledError("the epoch is stopped"));
    }
    if (order.has_run() && order.run().assign().epoch() > run->epoch()) {
      run->Stop(absl::CancelledError("a newer epoch replaces this one"));
    }
  }
}

void RankProcess::ReadOrders() {
  while (true) {
    v1::ToRank order;
    const absl::Status received = channel_.Receive(&order, absl::InfiniteDuration());
    if (!received.ok()) {
      std::shared_ptr<EpochRun> current;
      {
        const std::lock_guard<std::mutex> lock(mu_);
        daemon_gone_ = true;
        current = current_;
      }
      changed_.notify_all();
      if (current != nullptr) current->Stop(absl::CancelledError("the node's daemon is gone"));
      return;
    }
    Handle(order);
  }
}

void RankProcess::TellStopped(int64_t epoch) {
  v1::ToDaemon stopped;
  stopped.mutable_stopped()->set_epoch(epoch);
  channel_.Send(stopped, kSendTimeout).IgnoreError();
}

void RankProcess::TellError(const absl::Status& status, int64_t job, int64_t epoch, int32_t rank) {
  v1::ToDaemon message;
  v1::RankReport& report = *message.mutable_report();
  report.set_job(job);
  report.set_epoch(epoch);
  report.set_rank(rank);
  report.mutable_error()->set_code(static_cast<int32_t>(status.code()));
  report.mutable_error()->set_message(std::string(status.message()));
  report.mutable_error()->set_cause(CauseOf(status));
  report.mutable_error()->set_collateral(IsCollateral(status));
  const absl::Status sent = channel_.Send(message, kSendTimeout);
  if (!sent.ok()) spdlog::error("could not tell the daemon: {}", sent.ToString());
}

int RankProcess::Run() {
  v1::ToDaemon hello;
  hello.mutable_hello()->set_pid(getpid());
  hello.mutable_hello()->set_version(PHALANX_VERSION);
  if (!channel_.Send(hello, kSendTimeout).ok()) return 2;
  std::thread reader([this] { ReadOrders(); });
  int exit_code = 0;
  while (true) {
    std::shared_ptr<EpochRun> run;
    {
      std::unique_lock<std::mutex> lock(mu_);
      changed_.wait(lock, [this] { return quit_ || daemon_gone_ || next_ != nullptr; });
      if (quit_ || daemon_gone_) {
        exit_code = daemon_gone_ && !quit_ ? 2 : 0;
        break;
      }
      run = current_ = std::exchange(next_, nullptr);
    }
    const v1::RunEpoch& order = run->order();
    const v1::Assign& assign = order.assign();
    spdlog::info("job={} epoch={} rank={} begins", assign.job(), assign.epoch(), order.rank());
    const absl::Status status = model::CallTorch("training", [&run] { return run->Run(); });
    run->Release();
    {
      const std::lock_guard<std::mutex> lock(mu_);
      current_ = nullptr;
    }
    spdlog::info("job={} epoch={} rank={} ends: {}", assign.job(), assign.epoch(), order.rank(),
                 status.ToString());
    if (status.code() == absl::StatusCode::kCancelled) {
      TellStopped(assign.epoch());
      continue;
    }
    if (!status.ok()) {
      TellError(status, assign.job(), assign.epoch(), order.rank());
      exit_code = 1;
      break;
    }
  }
  channel_.Shutdown();
  reader.join();
  return exit_code;
}

}  // namespace phalanx::rank
