// coordinator/store/etcd_keys.h: which key of a store on etcd has what. Pure.
//
//   leader                      the address of whoever leads (coordinator/etcd/election.h)
//   state                       EtcdState
//   staged/PART                 a transaction of a batch that takes several
//   journal/JOB/NUMBER/PART     a record, in parts
//   ended/JOB'                  EtcdEntry of a job that has ended
//   summary/JOB'/PART           its summary, where it does not fit into the entry
//   details/JOB'/PART           its details
//   name/NAME/JOB'              nothing; NAME in hexadecimal digits
//   time/ENDED/JOB              EtcdEntry without a summary; ENDED in microseconds
//   request/ID                  EtcdRequestId; ID in hexadecimal digits
//   tokens                      the head of the chain of what changes join tokens (etcd_tokens.h)
//   token/ID                    JoinRecord, sealed
//
// Numbers are hexadecimal digits of one length, so that keys lie in order of the numbers. JOB' is
// counted down from the largest number there is: etcd reads ranges forwards, so the newest comes
// first. Values are cut into parts because etcd takes requests of at most 1.5 MiB; those of one
// record or one job change in one batch, so whatever parts there are make up the value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/ids.h"
#include "core/base/time.h"

namespace phalanx::coordinator {

// Of the keys and the values of a store on etcd, which has nothing to do with SQLite's tables.
inline constexpr uint32_t kEtcdSchema = 1;
// In the place of the schema while a copy is under way, so that every version refuses it.
inline constexpr uint32_t kEtcdCopying = 0xFFFFFFFF;
inline constexpr size_t kEtcdPartBytes = 256 << 10;

// Of a state that says a schema above ours; the message goes behind what it is.
absl::Status NewerSchemaError(uint32_t schema);

class EtcdKeys {
 public:
  // "/PREFIX/".
  explicit EtcdKeys(std::string prefix) : prefix_(std::move(prefix)) {}

  const std::string& Prefix() const { return prefix_; }
  std::string State() const { return prefix_ + "state"; }
  std::string AllStaged() const { return prefix_ + "staged/"; }
  std::string Staged(int64_t part) const;
  std::string AllRecords() const { return prefix_ + "journal/"; }
  std::string RecordsOf(JobId job) const;
  std::string Record(JobId job, uint64_t number) const;
  std::string AllEntries() const { return prefix_ + "ended/"; }
  std::string Entry(JobId job) const;
  std::string AllSummaries() const { return prefix_ + "summary/"; }
  std::string Summary(JobId job) const;
  std::string AllDetails() const { return prefix_ + "details/"; }
  std::string Details(JobId job) const;
  std::string AllNames() const { return prefix_ + "name/"; }
  std::string EntriesNamed(absl::string_view name) const;
  std::string NameOf(absl::string_view name, JobId job) const;
  std::string AllTimes() const { return prefix_ + "time/"; }
  std::string Time(Instant ended, JobId job) const;
  std::string AllRequests() const { return prefix_ + "request/"; }
  std::string Request(absl::string_view id) const;
  std::string TokensHead() const { return prefix_ + "tokens"; }
  std::string AllTokens() const { return prefix_ + "token/"; }
  std::string Token(absl::string_view id) const;

  // Part of a value whose parts lie under `value`, which ends with a slash.
  static std::string Part(absl::string_view value, size_t part);
  // The keys that begin with `prefix` are those of [prefix, Behind(prefix)).
  static std::string Behind(std::string prefix);

  // What stands in a key of a record, an entry, a name or a time. False: it is no such key.
  bool ReadRecord(absl::string_view key, JobId& job, uint64_t& number) const;
  static bool ReadEntry(absl::string_view key, JobId& job);
  bool ReadTime(absl::string_view key, Instant& ended, JobId& job) const;

 private:
  const std::string prefix_;
};

}  // namespace phalanx::coordinator
