#include "coordinator/store/etcd_check.h"

#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "coordinator/store/etcd_ended_jobs.h"
#include "coordinator/store/etcd_keys.h"
#include "coordinator/store/etcd_tokens.h"
#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/ended_codec.h"
#include "coordinator/wire/record_codec.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

// Keys of one page, of small values.
constexpr int64_t kSmallPage = 5000;
// A leader carries out a batch within so long.
constexpr int kAttempts = 50;
constexpr absl::Duration kPause = absl::Milliseconds(100);

class EtcdChecker {
 public:
  EtcdChecker(EtcdClient& client, const std::string& prefix, StoreReport& report)
      : client_(client), keys_(prefix), report_(report) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(const bool readable, ReadState());
    if (!readable) return absl::OkStatus();
    RETURN_IF_ERROR(Records());
    RETURN_IF_ERROR(Entries());
    RETURN_IF_ERROR(Summaries());
    RETURN_IF_ERROR(Details());
    RETURN_IF_ERROR(Names());
    RETURN_IF_ERROR(Times());
    RETURN_IF_ERROR(Requests());
    RETURN_IF_ERROR(Tokens());
    Missing();
    Counts();
    return absl::OkStatus();
  }

 private:
  // What was found of a job that has ended. Of its two keys in indexes there are hashes: a million
  // of these are held at a time.
  struct Ended {
    bool summary_apart = false;
    size_t name_key = 0, time_key = 0;
    bool summary = false, details = false, name = false, time = false;
  };

  static absl::Status Damage(absl::string_view what) { return absl::DataLossError(what); }
  void Problem(absl::string_view where, const absl::Status& status) {
    AddProblem(report_, where, status);
  }

  // False: there is nothing more to be read.
  absl::StatusOr<bool> ReadState() {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse answer,
                       EtcdPage(client_, keys_.State(), "", 1));
      if (answer.kvs().empty()) {
        return absl::NotFoundError(
            absl::StrCat("there is no store in etcd: it has no key ", keys_.State()));
      }
      if (!state_.ParseFromString(answer.kvs(0).value())) {
        Problem(keys_.State(), Damage("does not parse as EtcdState"));
        return false;
      }
      if (state_.schema() > kEtcdSchema) {
        Problem(keys_.State(), NewerSchemaError(state_.schema()));
        return false;
      }
      report_.schema = state_.schema();
      revision_ = answer.header().revision();
      if (state_.identity() == 0) Problem("the store", Damage("has no identity: it is damaged"));
      if (!state_.published()) return true;
      absl::SleepFor(kPause);
    }
    return absl::UnavailableError(absl::StrCat(
        keys_.State(), " in etcd: a batch is committed that is not yet in its place, and nobody ",
        "goes on with it; start a coordinator, which does that, and check again"));
  }

  absl::Status ForEach(const std::string& prefix, int64_t page,
                       absl::FunctionRef<void(etcdserverpb::KeyValue& pair)> visit) {
    return ForEachEtcdKey(client_, prefix, page, revision_, [visit](etcdserverpb::KeyValue& pair) {
      visit(pair);
      return absl::OkStatus();
    });
  }

  // A value whose parts lie under `key`, which ends with a slash.
  struct Value {
    std::string key, bytes;
    size_t parts = 0;
    bool whole = true;  // its parts are those from 0 on
  };
  absl::Status ForEachValue(const std::string& prefix,
                            absl::FunctionRef<void(const Value& value)> visit) {
    std::optional<Value> value;
    RETURN_IF_ERROR(ForEach(prefix, kPartsPage, [&](etcdserverpb::KeyValue& pair) {
      std::string key = pair.key().substr(0, pair.key().rfind('/') + 1);
      if (!value.has_value() || value->key != key) {
        if (value.has_value()) visit(*value);
        value.emplace().key = std::move(key);
      }
      value->whole &= pair.key() == EtcdKeys::Part(value->key, value->parts++);
      absl::StrAppend(&value->bytes, pair.value());
    }));
    if (value.has_value()) visit(*value);
    return absl::OkStatus();
  }

  absl::Status Records() {
    return ForEachValue(keys_.AllRecords(), [this](const Value& value) {
      ++report_.records;
      JobId job;
      uint64_t number = 0;
      if (!keys_.ReadRecord(value.key, job, number) || value.key != keys_.Record(job, number)) {
        return Problem(value.key, Damage("is no key of a record"));
      }
      const std::string name = absl::StrCat("record ", number, " of ", ToString(job));
      Problem(name,
              value.whole ? DecodeRecord(value.bytes, number).status() : Damage("lacks a part"));
      if (number > state_.last_record()) {
        Problem(name, Damage(absl::StrCat("has a number above the last that was given, ",
                                          state_.last_record())));
      }
      if (job.value > state_.last_job()) {
        Problem(name, Damage(absl::StrCat("is of a job above the last that there was, ",
                                          state_.last_job())));
      }
    });
  }

  absl::Status Entries() {
    return ForEach(keys_.AllEntries(), kEntriesPage, [this](const etcdserverpb::KeyValue& pair) {
      ++report_.ended_jobs;
      JobId job;
      if (!EtcdKeys::ReadEntry(pair.key(), job) || pair.key() != keys_.Entry(job)) {
        return Problem(pair.key(), Damage("is no key of a job"));
      }
      const std::string name = absl::StrCat("the summary of ", ToString(job));
      Ended& ended = ended_[job];
      v1::EtcdEntry entry;
      if (!entry.ParseFromString(pair.value())) {
        // Whatever else there is of it cannot be judged.
        ended = {.summary = true, .details = true, .name = true, .time = true};
        return Problem(name, Damage("does not parse as EtcdEntry"));
      }
      ended.summary_apart = entry.summary_apart();
      ended.name_key = Hash(keys_.NameOf(entry.name(), job));
      ended.time_key = Hash(keys_.Time(absl::FromUnixMicros(entry.ended_microseconds()), job));
      ++counts_[entry.phase()];
      if (entry.summary_apart()) return;
      ended.summary = true;
      Problem(name, DecodeSummary(entry.summary(), job).status());
    });
  }

  // A value of an ended job: which job has it, if it has an entry.
  std::optional<JobId> OwnerOf(const Value& value) {
    JobId job;
    const std::string key(absl::StripSuffix(value.key, "/"));
    if (EtcdKeys::ReadEntry(key, job) && ended_.contains(job)) return job;
    Problem(value.key, Damage("belongs to no job that has ended"));
    return std::nullopt;
  }
  absl::Status Summaries() {
    return ForEachValue(keys_.AllSummaries(), [this](const Value& value) {
      const std::optional<JobId> job = OwnerOf(value);
      if (!job.has_value()) return;
      ended_[*job].summary = true;
      Problem(absl::StrCat("the summary of ", ToString(*job)),
              value.whole ? DecodeSummary(value.bytes, *job).status() : Damage("lacks a part"));
    });
  }
  absl::Status Details() {
    return ForEachValue(keys_.AllDetails(), [this](const Value& value) {
      const std::optional<JobId> job = OwnerOf(value);
      if (!job.has_value()) return;
      ended_[*job].details = true;
      Problem(absl::StrCat("the details of ", ToString(*job)),
              value.whole ? DecodeDetails(value.bytes, *job).status() : Damage("lacks a part"));
    });
  }

  absl::Status Names() {
    return ForEach(keys_.AllNames(), kSmallPage, [this](const etcdserverpb::KeyValue& pair) {
      JobId job;
      const bool read = EtcdKeys::ReadEntry(pair.key(), job);
      const auto found = read ? ended_.find(job) : ended_.end();
      if (found != ended_.end() && found->second.name) return;
      const bool right = found != ended_.end() && found->second.name_key == Hash(pair.key());
      if (right) found->second.name = true;
      if (!right) Problem(pair.key(), Damage("is the name of no job that has ended"));
    });
  }
  absl::Status Times() {
    return ForEach(keys_.AllTimes(), kSmallPage, [this](const etcdserverpb::KeyValue& pair) {
      JobId job;
      Instant time;
      v1::EtcdEntry brief;
      const bool read =
          keys_.ReadTime(pair.key(), time, job) && brief.ParseFromString(pair.value());
      const auto found = read ? ended_.find(job) : ended_.end();
      if (found != ended_.end() && found->second.time) return;
      const bool right = found != ended_.end() && found->second.time_key == Hash(pair.key());
      if (right) found->second.time = true;
      if (!right) Problem(pair.key(), Damage("is the end of no job that has ended"));
    });
  }
  // What Summaries, Details, Names and Times have not come across.
  void Missing() {
    for (const auto& [job, ended] : ended_) {
      const std::string of = absl::StrCat(" of ", ToString(job));
      if (!ended.summary) Problem(absl::StrCat("the summary", of), Damage("cannot be found"));
      if (!ended.details) Problem(absl::StrCat("the details", of), Damage("cannot be found"));
      if (!ended.name) Problem(absl::StrCat("the key of the name", of), Damage("cannot be found"));
      if (!ended.time) Problem(absl::StrCat("the key of the end", of), Damage("cannot be found"));
    }
  }

  absl::Status Requests() {
    return ForEach(keys_.AllRequests(), kSmallPage, [this](const etcdserverpb::KeyValue& pair) {
      v1::EtcdRequestId request;
      if (request.ParseFromString(pair.value()) && pair.key() == keys_.Request(request.id()))
        return;
      Problem(pair.key(), Damage("does not parse as the request id that it is the key of"));
    });
  }
  absl::Status Tokens() {
    return ForEach(keys_.AllTokens(), kPartsPage, [this](const etcdserverpb::KeyValue& pair) {
      Problem("the join token", UnsealToken(pair.key(), pair.value()).status());
    });
  }

  void Counts() {
    for (const v1::EtcdState::Count& count : state_.ended()) counts_[count.phase()] -= count.jobs();
    for (const auto& [phase, difference] : counts_) {
      if (difference == 0) continue;
      Problem(absl::StrCat("the count of jobs that are ", job::ToString(FromProto(phase))),
              Damage(absl::StrCat("is ", difference < 0 ? "above" : "below",
                                  " that of their entries by ",
                                  difference < 0 ? -difference : difference)));
    }
  }

  static size_t Hash(const std::string& key) { return std::hash<std::string>()(key); }

  EtcdClient& client_;
  const EtcdKeys keys_;
  StoreReport& report_;
  v1::EtcdState state_;
  int64_t revision_ = 0;  // at which everything is read
  std::map<JobId, Ended> ended_;
  std::map<v1::JobPhase, int64_t> counts_;
};

}  // namespace

absl::StatusOr<StoreReport> CheckEtcdStore(EtcdClient& client, const std::string& prefix) {
  StoreReport report;
  const absl::Status status = EtcdChecker(client, prefix, report).Run();
  // The leader has had etcd forget that moment.
  if (absl::IsOutOfRange(status)) return absl::UnavailableError(status.message());
  if (!status.ok()) return status;
  return report;
}

}  // namespace phalanx::coordinator
