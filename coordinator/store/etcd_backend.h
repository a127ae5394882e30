// coordinator/store/etcd_backend.h: the store on etcd, of the coordinator that leads.
//
// *Fencing.* Every transaction is one of a chain (etcd_chain.h), whose head is the state, one key
// with marks, counts, and a number that is drawn for each transaction.
//
// *Batches.* One that fits into a transaction is one. Another is cut into several, each of which is
// first laid down as a value; the transaction that lays down the last one also says so in the
// state, and from that moment the batch is committed. Then they are carried out, each in the
// transaction that removes it, before Commit returns; whoever opens the store next carries out what
// is left, or removes parts of a batch that was never complete.
//
// Writes go nowhere once etcd has let the lease go, whatever clocks say.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/election.h"
#include "coordinator/store/backend.h"
#include "coordinator/store/etcd_chain.h"
#include "coordinator/store/etcd_changes.h"
#include "coordinator/store/etcd_ended_jobs.h"
#include "coordinator/store/etcd_keys.h"
#include "phalanx/v1/etcd_store.pb.h"

namespace phalanx::coordinator {

class EtcdBackend final : public Backend {
 public:
  // Makes the store where there is none. `prefix`: "/PREFIX/". Errors: Aborted if somebody else
  // leads; FailedPrecondition if a newer version wrote it; DataLoss if it is damaged; Unavailable.
  static absl::StatusOr<std::unique_ptr<EtcdBackend>> Open(std::shared_ptr<EtcdClient> client,
                                                           const std::string& prefix,
                                                           std::shared_ptr<Leadership> leadership);

  // For a copy of the store of that identity, where there is nothing but what such a copy has left
  // that was cut, which goes. Errors: also FailedPrecondition if there is anything else.
  static absl::StatusOr<std::unique_ptr<EtcdBackend>> BeginCopy(
      std::shared_ptr<EtcdClient> client, const std::string& prefix,
      std::shared_ptr<Leadership> leadership, uint64_t identity);
  // From then on it is a store.
  absl::Status EndCopy(const StoreMarks& marks);

  absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)> visit) override;
  absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId job) override;
  // Errors: also Aborted if this coordinator leads no more.
  absl::Status Commit(const Batch& batch) override;
  absl::Status CheckPlace() override { return leadership_->Held(); }
  absl::StatusOr<uint64_t> Reopen() override;
  // Also has etcd forget what it remembers of the store as it was minutes ago.
  absl::StatusOr<bool> Prune(const Retention& retention, Instant now) override;
  std::shared_ptr<EndedJobs> ended_jobs() override { return ended_jobs_; }
  absl::Status ForEachRequest(absl::FunctionRef<absl::Status(StoredRequest)> visit) override;
  absl::Status Import(const StoreContents& contents) override;
  int64_t bytes() const override { return bytes_; }
  uint64_t identity() const override { return state_.identity(); }

 private:
  // Entries by the jobs that were asked for; nothing: there is none.
  using Entries = std::map<JobId, std::optional<v1::EtcdEntry>>;
  struct Expiring {
    JobId job;
    v1::EtcdEntry entry;
  };

  EtcdBackend(std::shared_ptr<EtcdClient> client, const std::string& prefix,
              std::shared_ptr<Leadership> leadership);

  absl::Status ReadState();
  // Errors: FailedPrecondition if there is more than the leader's key.
  absl::Status CheckEmpty();
  // All keys that begin with `prefix`, not at once. Errors: as Step.
  absl::Status RemoveAll(const std::string& prefix);
  // A transaction of the chain; then the state is `next`. Errors: Aborted, Unavailable.
  absl::Status Step(etcdserverpb::TxnRequest request, v1::EtcdState next);
  // All of it or nothing.
  absl::Status Write(EtcdChanges changes, v1::EtcdState next);
  absl::Status CarryOut(int64_t part, etcdserverpb::TxnRequest request);
  // What the last leader, or a commit that failed, has left half done.
  absl::Status Finish();
  absl::Status LoadRequests();

  absl::StatusOr<Entries> EntriesOf(const Batch& batch);
  void WriteRecord(const StoredRecord& record, EtcdChanges& changes) const;
  void WriteRequest(const StoredRequest& request, EtcdChanges& changes) const;
  void WriteEnded(const EndedJob& ended, std::optional<v1::EtcdEntry>& entry, v1::EtcdState& next,
                  EtcdChanges& changes) const;
  void DeleteEnded(JobId job, const v1::EtcdEntry& entry, v1::EtcdState& next,
                   EtcdChanges& changes) const;
  absl::StatusOr<std::vector<Expiring>> Expired(const Retention& retention, Instant now);
  void Compact(Instant now);

  const std::shared_ptr<EtcdClient> client_;
  const EtcdKeys keys_;
  const std::shared_ptr<Leadership> leadership_;
  const std::shared_ptr<EtcdEndedJobs> ended_jobs_;
  EtcdChain chain_;
  v1::EtcdState state_;
  Instant compact_at_ = absl::InfinitePast();
  int64_t compact_to_ = 0;  // the revision of some minutes ago; 0: not known
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace phalanx::coordinator
