#include "coordinator/etcd/election.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr int kRenewalsEach = 4;  // in each lease
// Behind one that failed: the next member may do better, and a cluster that elects a leader of its
// own takes most of a lease for it.
constexpr absl::Duration kRenewalPause = absl::Milliseconds(50);

}  // namespace

Leadership::Leadership(std::shared_ptr<EtcdClient> client, std::string key, int64_t revision,
                       Lease lease)
    : client_(std::move(client)),
      key_(std::move(key)),
      revision_(revision),
      lease_(lease.id),
      length_(lease.length),
      lost_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      valid_until_(lease.valid_until),
      thread_([this] { Renew(); }) {}

Leadership::~Leadership() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    waker_.Wake();
  }
  thread_.join();
  static_cast<void>(client_->Revoke(lease_));
}

absl::Status Leadership::Held() {
  MutexLock lock(&mu_);
  if (status_.ok() && SteadyNow() >= valid_until_) {
    LoseLocked("its lease was not renewed in time");
  }
  return status_;
}

void Leadership::Lose(absl::string_view reason) {
  MutexLock lock(&mu_);
  LoseLocked(reason);
}

void Leadership::LoseLocked(absl::string_view reason) {
  if (!status_.ok()) return;
  status_ = absl::AbortedError(absl::StrCat("this coordinator leads no more: ", reason));
  const uint64_t one = 1;
  static_cast<void>(!write(lost_.get(), &one, sizeof(one)));
}

void Leadership::Renew() {
  pthread_setname_np(pthread_self(), "lease");
  std::optional<absl::Duration> pause = length_ / kRenewalsEach;
  while (pause.has_value()) {
    waker_.Wait(*pause);
    pause = RenewOnce();
  }
}

std::optional<absl::Duration> Leadership::RenewOnce() {
  {
    MutexLock lock(&mu_);
    if (stopping_) return std::nullopt;
  }
  if (!Held().ok()) return std::nullopt;
  const SteadyTime sent = SteadyNow();
  const absl::StatusOr<int64_t> seconds = client_->KeepAlive(lease_, length_ / kRenewalsEach);
  MutexLock lock(&mu_);
  if (stopping_) return std::nullopt;
  if (!seconds.ok()) return kRenewalPause;  // until the lease is over by our own clock
  if (*seconds > 0) {
    valid_until_ = sent + absl::ToChronoNanoseconds(absl::Seconds(*seconds));
  } else {
    LoseLocked("etcd has let its lease go");
  }
  return length_ / kRenewalsEach;
}

Election::Election(std::shared_ptr<EtcdClient> client, const std::string& prefix,
                   std::string address)
    : client_(std::move(client)),
      key_(absl::StrCat(prefix, "leader")),
      address_(std::move(address)) {}

absl::StatusOr<std::shared_ptr<Leadership>> Election::Try() {
  etcdserverpb::RangeRequest look;
  look.set_key(key_);
  ASSIGN_OR_RETURN(etcdserverpb::RangeResponse found, client_->Range(look));
  if (!found.kvs().empty() && lease_ != 0 && found.kvs(0).lease() == lease_ && last_.expired()) {
    RETURN_IF_ERROR(client_->Revoke(lease_));
    ASSIGN_OR_RETURN(found, client_->Range(look));
  }
  leader_ = found.kvs().empty() ? "" : found.kvs(0).value();
  if (!found.kvs().empty()) return nullptr;

  const SteadyTime sent = SteadyNow();
  ASSIGN_OR_RETURN(const etcdserverpb::LeaseGrantResponse lease,
                   client_->Grant(absl::ToInt64Seconds(kLease)));
  lease_ = lease.id();
  last_.reset();
  etcdserverpb::TxnRequest make;
  etcdserverpb::Compare& absent = *make.add_compare();
  absent.set_key(key_);
  absent.set_target(etcdserverpb::Compare::CREATE);
  absent.set_create_revision(0);
  etcdserverpb::PutRequest& put = *make.add_success()->mutable_request_put();
  put.set_key(key_);
  put.set_value(address_);
  put.set_lease(lease.id());
  const absl::StatusOr<etcdserverpb::TxnResponse> made = client_->Write(make);
  if (!made.ok() || !made->succeeded()) {
    // With the lease the key goes too, where it was made after all.
    static_cast<void>(client_->Revoke(lease.id()));
    if (!made.ok()) return made.status();
    return nullptr;
  }
  leader_ = address_;
  const absl::Duration length = absl::Seconds(lease.ttl());
  auto leadership = std::make_shared<Leadership>(
      client_, key_, made->header().revision(),
      Leadership::Lease{.id = lease.id(),
                        .length = length,
                        .valid_until = sent + absl::ToChronoNanoseconds(length)});
  last_ = leadership;
  return leadership;
}

}  // namespace phalanx::coordinator
