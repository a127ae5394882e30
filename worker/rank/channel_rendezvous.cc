#include "worker/rank/channel_rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kSendTimeout = absl::Seconds(10);

}  // namespace

absl::Status ChannelRendezvous::Put(const std::string& key, const std::string& value) {
  {
    const std::scoped_lock lock(mu_);
    entries_[key] = value;
  }
  changed_.notify_all();
  v1::ToDaemon message;
  v1::RankReport& report = *message.mutable_report();
  report.set_job(job_);
  report.set_epoch(epoch_);
  report.set_rank(rank_);
  report.mutable_rendezvous()->set_key(key);
  report.mutable_rendezvous()->set_value(value);
  return channel_.Send(message, kSendTimeout);
}

absl::StatusOr<std::string> ChannelRendezvous::Get(const std::string& key,
                                                   comm::Deadline deadline) {
  std::unique_lock lock(mu_);
  const auto ready = [this, &key] { return !aborted_.ok() || entries_.contains(key); };
  if (!changed_.wait_until(lock, deadline, ready)) {
    return absl::DeadlineExceededError(absl::StrCat("no rank of the epoch has announced ", key));
  }
  if (!aborted_.ok()) return aborted_;
  return entries_[key];
}

void ChannelRendezvous::Deliver(const v1::Rendezvous& message) {
  if (message.job() != job_ || message.epoch() != epoch_) return;
  const std::scoped_lock lock(mu_);
  for (const auto& [key, value] : message.entries()) entries_[key] = value;
  changed_.notify_all();
}

void ChannelRendezvous::Abort(absl::Status reason) {
  const std::scoped_lock lock(mu_);
  if (aborted_.ok()) aborted_ = std::move(reason);
  changed_.notify_all();
}

}  // namespace phalanx::rank
