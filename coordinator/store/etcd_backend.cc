#include "coordinator/store/etcd_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/common_codec.h"
#include "core/base/random_word.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr int kOpenAttempts = 5;
// Keys of one page: of records, whose parts may be large, and of request ids.
constexpr int64_t kRecordsPage = 256, kRequestsPage = 5000;
// Keys that one transaction removes of a copy that was cut: etcd takes its time for each.
constexpr int64_t kRemovedPage = 1000;
// What one call of Prune deletes at most.
constexpr int64_t kPruneJobs = 18;
constexpr size_t kPruneRequests = 100;
constexpr absl::Duration kCompactInterval = absl::Minutes(5);

void AddJobs(v1::EtcdState& state, v1::JobPhase phase, int64_t jobs) {
  for (v1::EtcdState::Count& count : *state.mutable_ended()) {
    if (count.phase() == phase) return count.set_jobs(count.jobs() + jobs);
  }
  v1::EtcdState::Count& count = *state.add_ended();
  count.set_phase(phase);
  count.set_jobs(jobs);
}

std::map<job::JobPhase, int64_t> CountsOf(const v1::EtcdState& state) {
  std::map<job::JobPhase, int64_t> counts;
  for (const v1::EtcdState::Count& count : state.ended()) {
    counts[FromProto(count.phase())] += count.jobs();
  }
  return counts;
}

void ClearStaged(v1::EtcdState& state) {
  state.clear_staged();
  state.clear_published();
  state.clear_applied();
}

}  // namespace

EtcdBackend::EtcdBackend(std::shared_ptr<EtcdClient> client, const std::string& prefix,
                         std::shared_ptr<Leadership> leadership)
    : client_(std::move(client)),
      keys_(prefix),
      leadership_(std::move(leadership)),
      ended_jobs_(std::make_shared<EtcdEndedJobs>(client_, keys_)),
      chain_(client_, keys_.State()) {}

absl::StatusOr<std::unique_ptr<EtcdBackend>> EtcdBackend::Open(
    std::shared_ptr<EtcdClient> client, const std::string& prefix,
    std::shared_ptr<Leadership> leadership) {
  std::unique_ptr<EtcdBackend> backend(
      new EtcdBackend(std::move(client), prefix, std::move(leadership)));
  RETURN_IF_ERROR(backend->Reopen().status());
  return backend;
}

absl::Status EtcdBackend::ReadState() {
  ASSIGN_OR_RETURN(const std::optional<std::string> head, chain_.Read());
  v1::EtcdState state;
  if (!head.has_value()) {
    state.set_schema(kEtcdSchema);
    state.set_identity(RandomWord());
  } else if (!state.ParseFromString(*head) || state.identity() == 0) {
    return absl::DataLossError(absl::StrCat(keys_.State(), " in etcd is damaged"));
  }
  if (state.schema() > kEtcdSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat(keys_.State(), " in etcd ", NewerSchemaError(state.schema()).message()));
  }
  state_ = std::move(state);
  return absl::OkStatus();
}

absl::Status EtcdBackend::CheckEmpty() {
  const std::string prefix = keys_.Prefix();
  ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse answer,
                   EtcdPage(*client_, prefix, EtcdKeys::Behind(prefix), 2));
  for (const etcdserverpb::KeyValue& pair : answer.kvs()) {
    if (pair.key() == leadership_->key()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("below ", prefix, " in etcd there is something already, ", pair.key(),
                     "; a store is copied where there is nothing: choose another prefix"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EtcdBackend>> EtcdBackend::BeginCopy(
    std::shared_ptr<EtcdClient> client, const std::string& prefix,
    std::shared_ptr<Leadership> leadership, uint64_t identity) {
  std::unique_ptr<EtcdBackend> backend(
      new EtcdBackend(std::move(client), prefix, std::move(leadership)));
  ASSIGN_OR_RETURN(const std::optional<std::string> head, backend->chain_.Read());
  v1::EtcdState found;
  if (!head.has_value()) {
    RETURN_IF_ERROR(backend->CheckEmpty());
  } else if (!found.ParseFromString(*head) || found.schema() != kEtcdCopying ||
             found.identity() != identity) {
    return absl::FailedPreconditionError(absl::StrCat(
        "below ", prefix, " in etcd there is ",
        found.schema() == kEtcdCopying ? "a part of a copy of another store" : "a store already",
        "; choose another prefix"));
  }
  v1::EtcdState begun;
  begun.set_schema(kEtcdCopying);
  begun.set_identity(identity);
  const EtcdKeys& keys = backend->keys_;
  etcdserverpb::TxnRequest begin;
  begin.add_success()->mutable_request_delete_range()->set_key(keys.TokensHead());
  RETURN_IF_ERROR(backend->Step(std::move(begin), begun));
  for (const std::string& all : {keys.AllStaged(), keys.AllRecords(), keys.AllEntries(),
                                 keys.AllSummaries(), keys.AllDetails(), keys.AllNames(),
                                 keys.AllTimes(), keys.AllRequests(), keys.AllTokens()}) {
    RETURN_IF_ERROR(backend->RemoveAll(all));
  }
  return backend;
}

absl::Status EtcdBackend::RemoveAll(const std::string& prefix) {
  etcdserverpb::RangeRequest page;
  page.set_key(prefix);
  page.set_range_end(EtcdKeys::Behind(prefix));
  page.set_limit(kRemovedPage);
  page.set_keys_only(true);
  for (bool more = true; more;) {
    ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse found, client_->Range(page));
    if (found.kvs().empty()) break;
    more = found.more();
    etcdserverpb::TxnRequest request;
    etcdserverpb::DeleteRangeRequest& remove =
        *request.add_success()->mutable_request_delete_range();
    remove.set_key(prefix);
    remove.set_range_end(absl::StrCat(found.kvs().rbegin()->key(), absl::string_view("\0", 1)));
    RETURN_IF_ERROR(Step(std::move(request), state_));
  }
  return absl::OkStatus();
}

absl::Status EtcdBackend::Import(const StoreContents& contents) {
  v1::EtcdState next = state_;
  EtcdChanges changes;
  for (const StoredRecord& record : contents.records) WriteRecord(record, changes);
  for (const EndedJob& ended : contents.ended) {
    std::optional<v1::EtcdEntry> none;
    WriteEnded(ended, none, next, changes);
  }
  for (const StoredRequest& request : contents.requests) WriteRequest(request, changes);
  for (etcdserverpb::TxnRequest& part : changes.Take()) {
    RETURN_IF_ERROR(Step(std::move(part), next));
  }
  return absl::OkStatus();
}

absl::Status EtcdBackend::EndCopy(const StoreMarks& marks) {
  v1::EtcdState whole = state_;
  whole.set_schema(kEtcdSchema);
  whole.set_last_record(marks.last_record);
  whole.set_last_job(marks.last_job.value);
  return Step({}, std::move(whole));
}

absl::StatusOr<uint64_t> EtcdBackend::Reopen() {
  absl::Status status;
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    RETURN_IF_ERROR(leadership_->Held());
    RETURN_IF_ERROR(ReadState());
    // What is on its way fails from here on: our turn comes before it. If it was faster we read
    // again, what it has left.
    status = Step({}, state_);
    if (!absl::IsUnavailable(status)) break;
  }
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(Finish());
  RETURN_IF_ERROR(LoadRequests());
  ended_jobs_->SetCounts(CountsOf(state_));
  return state_.last_record();
}

absl::Status EtcdBackend::Step(etcdserverpb::TxnRequest request, v1::EtcdState next) {
  next.set_turn(RandomWord());
  RETURN_IF_ERROR(chain_.Step(*leadership_, std::move(request), next.SerializeAsString()));
  state_ = std::move(next);
  return absl::OkStatus();
}

absl::Status EtcdBackend::Write(EtcdChanges changes, v1::EtcdState next) {
  std::vector<etcdserverpb::TxnRequest> parts = changes.Take();
  if (parts.size() <= 1) {
    return Step(parts.empty() ? etcdserverpb::TxnRequest() : std::move(parts[0]), std::move(next));
  }
  const auto count = static_cast<int64_t>(parts.size());
  for (int64_t part = 0; part < count; ++part) {
    etcdserverpb::TxnRequest lay;
    etcdserverpb::PutRequest& put = *lay.add_success()->mutable_request_put();
    put.set_key(keys_.Staged(part));
    put.set_value(parts[static_cast<size_t>(part)].SerializeAsString());
    const bool last = part + 1 == count;
    v1::EtcdState state = last ? next : state_;
    state.set_staged(part + 1);
    state.set_published(last);
    RETURN_IF_ERROR(Step(std::move(lay), std::move(state)));
  }
  for (int64_t part = 0; part < count; ++part) {
    RETURN_IF_ERROR(CarryOut(part, std::move(parts[static_cast<size_t>(part)])));
  }
  return absl::OkStatus();
}

absl::Status EtcdBackend::CarryOut(int64_t part, etcdserverpb::TxnRequest request) {
  request.add_success()->mutable_request_delete_range()->set_key(keys_.Staged(part));
  v1::EtcdState state = state_;
  state.set_applied(part + 1);
  if (state.applied() == state.staged()) ClearStaged(state);
  return Step(std::move(request), std::move(state));
}

absl::Status EtcdBackend::Finish() {
  if (!state_.published()) {
    if (state_.staged() == 0) return absl::OkStatus();
    EtcdChanges changes;
    changes.DeleteAll(keys_.AllStaged());
    v1::EtcdState state = state_;
    ClearStaged(state);
    return Write(std::move(changes), std::move(state));
  }
  while (state_.published()) {
    const int64_t part = state_.applied();
    ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse answer,
                     EtcdPage(*client_, keys_.Staged(part), "", 1));
    etcdserverpb::TxnRequest request;
    if (answer.kvs().empty() || !request.ParseFromString(answer.kvs(0).value())) {
      return absl::DataLossError(
          absl::StrCat(keys_.Staged(part), " in etcd is gone or damaged: a part of a batch"));
    }
    RETURN_IF_ERROR(CarryOut(part, std::move(request)));
  }
  return absl::OkStatus();
}

absl::Status EtcdBackend::ForEachRequest(absl::FunctionRef<absl::Status(StoredRequest)> visit) {
  return ForEachEtcdKey(
      *client_, keys_.AllRequests(), kRequestsPage, 0,
      [&](const etcdserverpb::KeyValue& pair) -> absl::Status {
        v1::EtcdRequestId request;
        if (!request.ParseFromString(pair.value())) {
          return absl::DataLossError(absl::StrCat(pair.key(), " in etcd is damaged"));
        }
        return visit({.id = request.id(),
                      .job = JobId{request.job()},
                      .document_digest = request.document_digest(),
                      .expires = absl::FromUnixMicros(request.expires_microseconds())});
      });
}

absl::Status EtcdBackend::LoadRequests() {
  std::vector<StoredRequest> requests;
  RETURN_IF_ERROR(ForEachRequest([&requests](StoredRequest request) {
    requests.push_back(std::move(request));
    return absl::OkStatus();
  }));
  ended_jobs_->SetRequests(std::move(requests));
  return absl::OkStatus();
}

absl::StatusOr<StoreMarks> EtcdBackend::Load(absl::FunctionRef<absl::Status(StoredRecord)> visit) {
  std::optional<StoredRecord> record;  // of the parts so far
  RETURN_IF_ERROR(ForEachEtcdKey(
      *client_, keys_.AllRecords(), kRecordsPage, 0,
      [&](etcdserverpb::KeyValue& pair) -> absl::Status {
        StoredRecord part;
        if (!keys_.ReadRecord(pair.key(), part.job, part.number)) {
          return absl::DataLossError(absl::StrCat(pair.key(), " in etcd is no key of a record"));
        }
        if (record.has_value() && record->job == part.job && record->number == part.number) {
          absl::StrAppend(&record->bytes, pair.value());
          return absl::OkStatus();
        }
        part.bytes = std::move(*pair.mutable_value());
        if (std::optional<StoredRecord> whole = std::exchange(record, std::move(part))) {
          return visit(*std::move(whole));
        }
        return absl::OkStatus();
      }));
  if (record.has_value()) RETURN_IF_ERROR(visit(*std::move(record)));
  return StoreMarks{.last_record = state_.last_record(), .last_job = JobId{state_.last_job()}};
}

absl::StatusOr<std::vector<StoredRecord>> EtcdBackend::RecordsOf(JobId job) {
  std::vector<StoredRecord> records;
  RETURN_IF_ERROR(ForEachEtcdKey(*client_, keys_.RecordsOf(job), kRecordsPage, 0,
                                 [&](etcdserverpb::KeyValue& pair) -> absl::Status {
                                   StoredRecord part;
                                   if (!keys_.ReadRecord(pair.key(), part.job, part.number)) {
                                     return absl::DataLossError(absl::StrCat(
                                         pair.key(), " in etcd is no key of a record"));
                                   }
                                   if (records.empty() || records.back().number != part.number) {
                                     records.push_back(std::move(part));
                                   }
                                   absl::StrAppend(&records.back().bytes, pair.value());
                                   return absl::OkStatus();
                                 }));
  return records;
}

absl::StatusOr<EtcdBackend::Entries> EtcdBackend::EntriesOf(const Batch& batch) {
  Entries entries;
  for (const EndedJob& ended : batch.ended) entries[ended.job];
  for (const JobId job : batch.deleted) entries[job];
  for (auto next = entries.begin(); next != entries.end();) {
    etcdserverpb::TxnRequest request;
    const auto first = next;
    for (;
         next != entries.end() && static_cast<size_t>(request.success_size()) < kEtcdOperationsMax;
         ++next) {
      request.add_success()->mutable_request_range()->set_key(keys_.Entry(next->first));
    }
    ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse answer, client_->Read(request));
    auto entry = first;
    for (const etcdserverpb::ResponseOp& found : answer.responses()) {
      if (entry == next) return absl::InternalError("etcd answered more than it was asked");
      const auto& pairs = found.response_range().kvs();
      if (!pairs.empty() && !entry->second.emplace().ParseFromString(pairs[0].value())) {
        return absl::DataLossError(absl::StrCat(pairs[0].key(), " in etcd is damaged"));
      }
      ++entry;
    }
  }
  return entries;
}

absl::Status EtcdBackend::Commit(const Batch& batch) {
  if (batch.empty()) return absl::OkStatus();
  v1::EtcdState next = state_;
  EtcdChanges changes;
  for (const StoredRecord& record : batch.records) {
    if (record.number <= next.last_record()) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", record.number, " does not follow ", next.last_record()));
    }
    next.set_last_record(record.number);
    next.set_last_job(std::max(next.last_job(), record.job.value));
    WriteRecord(record, changes);
  }
  ASSIGN_OR_RETURN(Entries entries, EntriesOf(batch));
  for (const EndedJob& ended : batch.ended) {
    next.set_last_job(std::max(next.last_job(), ended.job.value));
    WriteEnded(ended, entries[ended.job], next, changes);
  }
  for (const JobId job : batch.deleted) {
    std::optional<v1::EtcdEntry>& entry = entries[job];
    if (entry.has_value()) DeleteEnded(job, *entry, next, changes);
    entry.reset();
  }
  RETURN_IF_ERROR(Write(std::move(changes), std::move(next)));
  for (const EndedJob& ended : batch.ended) {
    if (ended.request.has_value()) ended_jobs_->AddRequest(*ended.request);
  }
  ended_jobs_->SetCounts(CountsOf(state_));
  return absl::OkStatus();
}

void EtcdBackend::WriteRecord(const StoredRecord& record, EtcdChanges& changes) const {
  changes.PutParts(keys_.Record(record.job, record.number), record.bytes);
  if (record.supersedes != 0) changes.DeleteAll(keys_.Record(record.job, record.supersedes));
}

void EtcdBackend::WriteRequest(const StoredRequest& request, EtcdChanges& changes) const {
  v1::EtcdRequestId stored;
  stored.set_id(request.id);
  stored.set_job(request.job.value);
  stored.set_document_digest(request.document_digest);
  stored.set_expires_microseconds(absl::ToUnixMicros(request.expires));
  changes.Put(keys_.Request(request.id), stored.SerializeAsString());
}

void EtcdBackend::WriteEnded(const EndedJob& ended, std::optional<v1::EtcdEntry>& entry,
                             v1::EtcdState& next, EtcdChanges& changes) const {
  changes.DeleteAll(keys_.RecordsOf(ended.job));
  if (ended.request.has_value()) WriteRequest(*ended.request, changes);
  // What was said first holds.
  if (entry.has_value()) return;
  entry = EtcdEntryOf(ended);
  AddJobs(next, entry->phase(), 1);
  changes.Put(keys_.Entry(ended.job), entry->SerializeAsString());
  if (entry->summary_apart()) changes.PutParts(keys_.Summary(ended.job), ended.summary);
  changes.PutParts(keys_.Details(ended.job), ended.details);
  changes.Put(keys_.NameOf(ended.name, ended.job), "");
  v1::EtcdEntry brief = *entry;
  brief.clear_summary();
  changes.Put(keys_.Time(ended.ended, ended.job), brief.SerializeAsString());
}

void EtcdBackend::DeleteEnded(JobId job, const v1::EtcdEntry& entry, v1::EtcdState& next,
                              EtcdChanges& changes) const {
  AddJobs(next, entry.phase(), -1);
  changes.Delete(keys_.Entry(job));
  if (entry.summary_apart()) changes.DeleteAll(keys_.Summary(job));
  changes.DeleteAll(keys_.Details(job));
  changes.Delete(keys_.NameOf(entry.name(), job));
  changes.Delete(keys_.Time(absl::FromUnixMicros(entry.ended_microseconds()), job));
}

absl::StatusOr<std::vector<EtcdBackend::Expiring>> EtcdBackend::Expired(const Retention& retention,
                                                                        Instant now) {
  int64_t count = 0;
  for (const v1::EtcdState::Count& of_phase : state_.ended()) count += of_phase.jobs();
  const int64_t excess = std::clamp<int64_t>(count - retention.count_max, 0, kPruneJobs);
  const std::string first = keys_.AllTimes();
  ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse oldest,
                   EtcdPage(*client_, first, EtcdKeys::Behind(first), kPruneJobs));
  std::vector<Expiring> expired;
  for (const etcdserverpb::KeyValue& pair : oldest.kvs()) {
    Expiring next;
    Instant ended;
    if (!keys_.ReadTime(pair.key(), ended, next.job) || !next.entry.ParseFromString(pair.value())) {
      return absl::DataLossError(absl::StrCat(pair.key(), " in etcd is damaged"));
    }
    if (static_cast<int64_t>(expired.size()) >= excess && ended >= now - retention.age_max) break;
    expired.push_back(std::move(next));
  }
  return expired;
}

absl::StatusOr<bool> EtcdBackend::Prune(const Retention& retention, Instant now) {
  RETURN_IF_ERROR(leadership_->Held());
  ASSIGN_OR_RETURN(const std::vector<Expiring> expired, Expired(retention, now));
  const std::vector<std::string> requests = ended_jobs_->ExpiredRequests(now, kPruneRequests);
  if (!expired.empty() || !requests.empty()) {
    v1::EtcdState next = state_;
    EtcdChanges changes;
    for (const Expiring& job : expired) DeleteEnded(job.job, job.entry, next, changes);
    for (const std::string& id : requests) changes.Delete(keys_.Request(id));
    RETURN_IF_ERROR(Write(std::move(changes), std::move(next)));
    ended_jobs_->ForgetRequests(requests);
    ended_jobs_->SetCounts(CountsOf(state_));
  }
  Compact(now);
  return static_cast<int64_t>(expired.size()) == kPruneJobs || requests.size() == kPruneRequests;
}

// etcd keeps every value that a key ever had until it is told otherwise, and is full one day.
void EtcdBackend::Compact(Instant now) {
  if (now < compact_at_) return;
  compact_at_ = now + kCompactInterval;
  // Nothing depends on it: it is tried again, and etcd may have been told to do it by itself.
  if (compact_to_ != 0) static_cast<void>(client_->Compact(compact_to_));
  compact_to_ = chain_.revision();
  if (const absl::StatusOr<int64_t> bytes = client_->Bytes(); bytes.ok()) bytes_ = *bytes;
}

}  // namespace phalanx::coordinator
