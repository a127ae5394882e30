#include "worker/rank/channel_rendezvous.h"

#include "absl/strings/str_cat.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kSendTimeout = absl::Seconds(10);

}  // namespace

absl::Status ChannelRendezvous::Put(const std::string& key, const std::string& value) {
  {
    absl::MutexLock lock(&mu_);
    entries_[key] = value;
  }
  v1::ToDaemon message;
  v1::RankReport& report = *message.mutable_report();
  report.set_job(job_);
  report.set_epoch(epoch_);
  report.set_rank(rank_);
  report.mutable_rendezvous()->set_key(key);
  report.mutable_rendezvous()->set_value(value);
  return channel_.Send(message, kSendTimeout);
}

absl::StatusOr<std::string> ChannelRendezvous::Get(const std::string& key, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  auto ready = [this, &key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !aborted_.ok() || entries_.count(key) > 0;
  };
  if (!mu_.AwaitWithDeadline(absl::Condition(&ready), deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("no rank of the epoch has announced ", key));
  }
  if (!aborted_.ok()) return aborted_;
  return entries_[key];
}

void ChannelRendezvous::Deliver(const v1::Rendezvous& message) {
  if (message.job() != job_ || message.epoch() != epoch_) return;
  absl::MutexLock lock(&mu_);
  for (const auto& [key, value] : message.entries()) entries_[key] = value;
}

void ChannelRendezvous::Abort(absl::Status reason) {
  absl::MutexLock lock(&mu_);
  if (aborted_.ok()) aborted_ = std::move(reason);
}

}  // namespace phalanx::rank
