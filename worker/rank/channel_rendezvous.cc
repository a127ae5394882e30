#include "worker/rank/channel_rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kPutTimeout = absl::Seconds(10);

}  // namespace

absl::Status ChannelRendezvous::Put(const std::string& key, const std::string& value) {
  {
    const MutexLock lock(&mu_);
    entries_[key] = value;
  }
  changed_.SignalAll();
  v1::ToDaemon message;
  v1::RankReport& report = *message.mutable_report();
  report.set_job(job_);
  report.set_epoch(epoch_);
  report.set_rank(rank_);
  report.mutable_rendezvous()->set_key(key);
  report.mutable_rendezvous()->set_value(value);
  return channel_.Send(message, kPutTimeout);
}

absl::StatusOr<std::string> ChannelRendezvous::Get(const std::string& key,
                                                   comm::Deadline deadline) {
  const MutexLock lock(&mu_);
  for (bool expired = false;; expired = changed_.WaitUntil(&mu_, deadline)) {
    if (!aborted_.ok()) return aborted_;
    if (const auto found = entries_.find(key); found != entries_.end()) return found->second;
    if (expired)
      return absl::DeadlineExceededError(absl::StrCat("no rank of the epoch has announced ", key));
  }
}

void ChannelRendezvous::Deliver(const v1::Rendezvous& message) {
  if (message.job() != job_ || message.epoch() != epoch_) return;
  const MutexLock lock(&mu_);
  for (const auto& [key, value] : message.entries()) entries_[key] = value;
  changed_.SignalAll();
}

void ChannelRendezvous::Abort(absl::Status reason) {
  const MutexLock lock(&mu_);
  if (aborted_.ok()) aborted_ = std::move(reason);
  changed_.SignalAll();
}

}  // namespace phalanx::rank
