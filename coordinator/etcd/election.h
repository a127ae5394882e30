// coordinator/etcd/election.h: which one of several coordinators leads.
//
// Whoever makes the key PREFIX/leader leads. The key hangs on a lease that its maker renews, so it
// goes when its maker is gone, and somebody else can make it. The revision that made it tells one
// leader from all others, ever: what compares it in the transaction that writes is safe whatever
// anybody's clock says.
//
// Clocks decide only how soon a leader stops by itself: it counts the lease from before its last
// renewal was sent, on its own steady clock, and so stops no later than etcd lets the lease go, if
// the two clocks run equally fast. Between the two there may be answers of a leader that is none
// any more to those who only read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/etcd/client.h"
#include "core/base/mutex.h"
#include "core/posix/unique_fd.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

// The lease asked for; etcd grants as much or more, by its own election timeout.
inline constexpr absl::Duration kLease = absl::Seconds(2);

// What one leader holds. Thread-safe.
class Leadership {
 public:
  struct Lease {
    int64_t id = 0;
    absl::Duration length;
    SteadyTime valid_until;
  };
  Leadership(std::shared_ptr<EtcdClient> client, std::string key, int64_t revision, Lease lease);
  // Gives it back, so that somebody else leads at once.
  ~Leadership();

  const std::string& key() const { return key_; }
  // That made the key.
  int64_t revision() const { return revision_; }
  // OK: held, as far as anybody here knows. Aborted: lost, for good.
  absl::Status Held() ABSL_LOCKS_EXCLUDED(mu_);
  // Somebody has seen that it is lost.
  void Lose(absl::string_view reason) ABSL_LOCKS_EXCLUDED(mu_);
  // Readable once it is lost.
  int lost_descriptor() const { return lost_.get(); }

 private:
  void Renew() ABSL_LOCKS_EXCLUDED(mu_);
  // Until the next one; nothing: there is nothing left to renew.
  std::optional<absl::Duration> RenewOnce() ABSL_LOCKS_EXCLUDED(mu_);
  void LoseLocked(absl::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<EtcdClient> client_;
  const std::string key_;
  const int64_t revision_, lease_;
  const absl::Duration length_;
  const UniqueFd lost_;  // an eventfd
  Waker waker_;          // of thread_
  Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  SteadyTime valid_until_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last member: joins before anything it reads is destroyed
};

// Not thread-safe.
class Election {
 public:
  // `address`: under which others reach this coordinator, told to those who ask another one.
  Election(std::shared_ptr<EtcdClient> client, const std::string& prefix, std::string address);

  // Tries to lead, once. Null: somebody else leads. What was led by before and could not be given
  // back, for etcd did not answer, is given back first: else nobody leads until etcd lets it go.
  // Errors: Unavailable if etcd does not answer.
  absl::StatusOr<std::shared_ptr<Leadership>> Try();
  // The address of whoever led at the last Try; empty: nobody did.
  const std::string& leader() const { return leader_; }

 private:
  const std::shared_ptr<EtcdClient> client_;
  const std::string key_, address_;
  std::string leader_;
  int64_t lease_ = 0;               // that was granted last; 0: none was
  std::weak_ptr<Leadership> last_;  // that came of it
};

}  // namespace phalanx::coordinator
