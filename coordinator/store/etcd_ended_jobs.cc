#include "coordinator/store/etcd_ended_jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/common_codec.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

// A summary of more bytes lies apart, so that a page of entries is of a few megabytes at most.
constexpr size_t kSummaryBytesMax = 16 << 10;

}  // namespace

absl::StatusOr<etcdserverpb::RangeResponse> EtcdPage(EtcdClient& client, std::string first,
                                                     std::string behind, int64_t count,
                                                     int64_t revision) {
  etcdserverpb::RangeRequest request;
  request.set_key(std::move(first));
  request.set_range_end(std::move(behind));
  request.set_limit(count);
  request.set_revision(revision);
  return client.Range(request);
}

absl::Status ForEachEtcdKey(EtcdClient& client, const std::string& prefix, int64_t page,
                            int64_t revision,
                            absl::FunctionRef<absl::Status(etcdserverpb::KeyValue& pair)> visit) {
  const std::string behind = EtcdKeys::Behind(prefix);
  for (std::string first = prefix;;) {
    ASSIGN_OR_RETURN(etcdserverpb::RangeResponse answer,
                     EtcdPage(client, first, behind, page, revision));
    // The pages behind are of the same moment.
    if (revision == 0) revision = answer.header().revision();
    if (!answer.kvs().empty())
      first = absl::StrCat(answer.kvs().rbegin()->key(), absl::string_view("\0", 1));
    for (etcdserverpb::KeyValue& pair : *answer.mutable_kvs()) RETURN_IF_ERROR(visit(pair));
    if (!answer.more()) return absl::OkStatus();
  }
}

EndedJob EndedJobOf(JobId job, const v1::EtcdEntry& entry) {
  return {.job = job,
          .name = entry.name(),
          .phase = FromProto(entry.phase()),
          .ended = absl::FromUnixMicros(entry.ended_microseconds()),
          .summary = entry.summary()};
}

v1::EtcdEntry EtcdEntryOf(const EndedJob& ended) {
  v1::EtcdEntry entry;
  entry.set_name(ended.name);
  entry.set_phase(ToProto(ended.phase));
  entry.set_ended_microseconds(absl::ToUnixMicros(ended.ended));
  entry.set_summary_apart(ended.summary.size() > kSummaryBytesMax);
  if (!entry.summary_apart()) entry.set_summary(ended.summary);
  return entry;
}

absl::StatusOr<std::string> EtcdEndedJobs::Parts(const std::string& prefix) {
  std::string value;
  bool found = false;
  RETURN_IF_ERROR(
      ForEachEtcdKey(*client_, prefix, kPartsPage, 0, [&](etcdserverpb::KeyValue& pair) {
        found = true;
        absl::StrAppend(&value, pair.value());
        return absl::OkStatus();
      }));
  if (!found) return absl::NotFoundError("no entry");
  return value;
}

// An entry that cannot be read has an empty summary, which whoever reads it finds damaged.
absl::StatusOr<EndedJob> EtcdEndedJobs::Whole(const etcdserverpb::KeyValue& pair) {
  JobId job;
  if (!EtcdKeys::ReadEntry(pair.key(), job)) {
    return absl::DataLossError(absl::StrCat(pair.key(), " is no key of a job"));
  }
  v1::EtcdEntry entry;
  if (!entry.ParseFromString(pair.value())) entry.Clear();
  EndedJob ended = EndedJobOf(job, entry);
  if (!entry.summary_apart()) return ended;
  absl::StatusOr<std::string> summary = Parts(keys_.Summary(job));
  if (!summary.ok() && !absl::IsNotFound(summary.status())) return summary.status();
  if (summary.ok()) ended.summary = *std::move(summary);
  return ended;
}

absl::StatusOr<EndedJob> EtcdEndedJobs::Find(JobId job) {
  ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse answer,
                   EtcdPage(*client_, keys_.Entry(job), "", 1));
  if (answer.kvs().empty()) return absl::NotFoundError("no entry");
  return Whole(answer.kvs(0));
}

absl::StatusOr<EndedJob> EtcdEndedJobs::FindNamed(const std::string& name) {
  const std::string prefix = keys_.EntriesNamed(name);
  ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse answer,
                   EtcdPage(*client_, prefix, EtcdKeys::Behind(prefix), 1));
  JobId job;
  if (answer.kvs().empty() || !EtcdKeys::ReadEntry(answer.kvs(0).key(), job)) {
    return absl::NotFoundError("no entry");
  }
  return Find(job);
}

absl::StatusOr<std::string> EtcdEndedJobs::Details(JobId job) { return Parts(keys_.Details(job)); }

absl::StatusOr<std::vector<EndedJob>> EtcdEndedJobs::List(JobId before, size_t count) {
  std::vector<EndedJob> jobs;
  // Right behind the key of `before`, which need not be there.
  std::string first = absl::StrCat(keys_.Entry(before), absl::string_view("\0", 1));
  while (jobs.size() < count) {
    const int64_t page = std::min(kEntriesPage, static_cast<int64_t>(count - jobs.size()));
    ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse answer,
                     EtcdPage(*client_, first, EtcdKeys::Behind(keys_.AllEntries()), page));
    for (const etcdserverpb::KeyValue& pair : answer.kvs()) {
      ASSIGN_OR_RETURN(EndedJob job, Whole(pair));
      jobs.push_back(std::move(job));
    }
    if (!answer.more() || answer.kvs().empty()) break;
    first = absl::StrCat(answer.kvs().rbegin()->key(), absl::string_view("\0", 1));
  }
  return jobs;
}

absl::StatusOr<StoredRequest> EtcdEndedJobs::Request(const std::string& id, Instant now) {
  MutexLock lock(&mu_);
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second.expires <= now) {
    return absl::NotFoundError("no entry");
  }
  return found->second;
}

std::map<job::JobPhase, int64_t> EtcdEndedJobs::Count() const {
  MutexLock lock(&mu_);
  return counts_;
}

void EtcdEndedJobs::SetCounts(std::map<job::JobPhase, int64_t> counts) {
  MutexLock lock(&mu_);
  counts_ = std::move(counts);
}

void EtcdEndedJobs::SetRequests(std::vector<StoredRequest> requests) {
  {
    MutexLock lock(&mu_);
    requests_.clear();
    expiring_.clear();
  }
  for (StoredRequest& request : requests) AddRequest(std::move(request));
}

void EtcdEndedJobs::AddRequest(StoredRequest request) {
  ForgetRequests({request.id});
  MutexLock lock(&mu_);
  expiring_.emplace(request.expires, request.id);
  requests_[request.id] = std::move(request);
}

void EtcdEndedJobs::ForgetRequests(const std::vector<std::string>& ids) {
  MutexLock lock(&mu_);
  for (const std::string& id : ids) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    const auto [first, behind] = expiring_.equal_range(found->second.expires);
    const auto entry =
        std::find_if(first, behind, [&id](const auto& expiring) { return expiring.second == id; });
    if (entry != behind) expiring_.erase(entry);
    requests_.erase(found);
  }
}

std::vector<std::string> EtcdEndedJobs::ExpiredRequests(Instant now, size_t count) const {
  MutexLock lock(&mu_);
  std::vector<std::string> ids;
  for (const auto& [expires, id] : expiring_) {
    if (expires > now || ids.size() == count) break;
    ids.push_back(id);
  }
  return ids;
}

}  // namespace phalanx::coordinator
