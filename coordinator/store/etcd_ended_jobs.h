// coordinator/store/etcd_ended_jobs.h: the jobs that have ended, read from etcd; and the request
// ids of the last day, which are held in memory, for every submit asks for one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "coordinator/etcd/client.h"
#include "coordinator/store/backend.h"
#include "coordinator/store/etcd_keys.h"
#include "core/base/mutex.h"
#include "phalanx/v1/etcd_store.pb.h"

namespace phalanx::coordinator {

// Keys of one page: of entries, and of values in parts, whose parts may be large.
inline constexpr int64_t kEntriesPage = 500, kPartsPage = 256;

// One page of the keys from `first` on, before `behind`; `revision` 0: the newest. `count`: of
// keys.
absl::StatusOr<etcdserverpb::RangeResponse> EtcdPage(EtcdClient& client, std::string first,
                                                     std::string behind, int64_t count,
                                                     int64_t revision = 0);
// Visits all keys that begin with `prefix`, in order, `page` of them at a time, as they were at
// `revision`; 0: as they are when the first of them is read. Errors: also OutOfRange if etcd was
// told meanwhile to forget that revision.
absl::Status ForEachEtcdKey(EtcdClient& client, const std::string& prefix, int64_t page,
                            int64_t revision,
                            absl::FunctionRef<absl::Status(etcdserverpb::KeyValue& pair)> visit);

// Without summary and details where they lie apart.
EndedJob EndedJobOf(JobId job, const v1::EtcdEntry& entry);
v1::EtcdEntry EtcdEntryOf(const EndedJob& ended);

// Thread-safe.
class EtcdEndedJobs final : public EndedJobs {
 public:
  EtcdEndedJobs(std::shared_ptr<EtcdClient> client, EtcdKeys keys)
      : client_(std::move(client)), keys_(std::move(keys)) {}

  absl::StatusOr<EndedJob> Find(JobId job) override;
  absl::StatusOr<EndedJob> FindNamed(const std::string& name) override;
  absl::StatusOr<std::string> Details(JobId job) override;
  absl::StatusOr<std::vector<EndedJob>> List(JobId before, size_t count) override;
  absl::StatusOr<StoredRequest> Request(const std::string& id, Instant now) override;
  std::map<job::JobPhase, int64_t> Count() const override;

  // Of the backend alone. What it has read or committed.
  void SetCounts(std::map<job::JobPhase, int64_t> counts) ABSL_LOCKS_EXCLUDED(mu_);
  void SetRequests(std::vector<StoredRequest> requests) ABSL_LOCKS_EXCLUDED(mu_);
  void AddRequest(StoredRequest request) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetRequests(const std::vector<std::string>& ids) ABSL_LOCKS_EXCLUDED(mu_);
  // At most `count` that have expired.
  std::vector<std::string> ExpiredRequests(Instant now, size_t count) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The value in its parts. NotFound: there is none.
  absl::StatusOr<std::string> Parts(const std::string& prefix);
  absl::StatusOr<EndedJob> Whole(const etcdserverpb::KeyValue& pair);

  const std::shared_ptr<EtcdClient> client_;
  const EtcdKeys keys_;
  mutable Mutex mu_;
  std::map<job::JobPhase, int64_t> counts_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, StoredRequest> requests_ ABSL_GUARDED_BY(mu_);
  std::multimap<Instant, std::string> expiring_ ABSL_GUARDED_BY(mu_);  // ids of requests_
};

}  // namespace phalanx::coordinator
