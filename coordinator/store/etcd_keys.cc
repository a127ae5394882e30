#include "coordinator/store/etcd_keys.h"

#include <algorithm>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kDigits = 16;

std::string Digits(uint64_t number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }
std::string Digits(JobId job) { return Digits(static_cast<uint64_t>(job.value)); }
std::string Downwards(JobId job) {
  return Digits(static_cast<uint64_t>(std::numeric_limits<int64_t>::max() - job.value));
}

// Takes a number from the front of `key`.
bool Take(absl::string_view& key, uint64_t& number) {
  if (key.size() < kDigits || !absl::SimpleHexAtoi(key.substr(0, kDigits), &number)) return false;
  key.remove_prefix(kDigits);
  return true;
}

}  // namespace

absl::Status NewerSchemaError(uint32_t schema) {
  if (schema == kEtcdCopying) {
    return absl::FailedPreconditionError(
        "says that a copy of a store is not finished: make it again with --copy-store-to");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("has schema version ", schema, "; this coordinator knows ", kEtcdSchema,
                   ": a newer coordinator wrote it, start that one"));
}

std::string EtcdKeys::Staged(int64_t part) const {
  return absl::StrCat(AllStaged(), Digits(static_cast<uint64_t>(part)));
}
std::string EtcdKeys::RecordsOf(JobId job) const {
  return absl::StrCat(AllRecords(), Digits(job), "/");
}
std::string EtcdKeys::Record(JobId job, uint64_t number) const {
  return absl::StrCat(RecordsOf(job), Digits(number), "/");
}
std::string EtcdKeys::Entry(JobId job) const { return absl::StrCat(AllEntries(), Downwards(job)); }
std::string EtcdKeys::Summary(JobId job) const {
  return absl::StrCat(AllSummaries(), Downwards(job), "/");
}
std::string EtcdKeys::Details(JobId job) const {
  return absl::StrCat(AllDetails(), Downwards(job), "/");
}
std::string EtcdKeys::EntriesNamed(absl::string_view name) const {
  return absl::StrCat(AllNames(), absl::BytesToHexString(name), "/");
}
std::string EtcdKeys::NameOf(absl::string_view name, JobId job) const {
  return absl::StrCat(EntriesNamed(name), Downwards(job));
}
std::string EtcdKeys::Time(Instant ended, JobId job) const {
  const int64_t microseconds = std::max<int64_t>(0, absl::ToUnixMicros(ended));
  return absl::StrCat(AllTimes(), Digits(static_cast<uint64_t>(microseconds)), "/", Digits(job));
}
std::string EtcdKeys::Request(absl::string_view id) const {
  return absl::StrCat(AllRequests(), absl::BytesToHexString(id));
}

std::string EtcdKeys::Token(absl::string_view id) const { return absl::StrCat(AllTokens(), id); }

std::string EtcdKeys::Part(absl::string_view value, size_t part) {
  return absl::StrCat(value, absl::Hex(part, absl::kZeroPad8));
}

std::string EtcdKeys::Behind(std::string prefix) {
  ++prefix.back();  // a slash, so no carry
  return prefix;
}

bool EtcdKeys::ReadRecord(absl::string_view key, JobId& job, uint64_t& number) const {
  uint64_t read = 0;
  if (!absl::ConsumePrefix(&key, AllRecords()) || !Take(key, read) ||
      !absl::ConsumePrefix(&key, "/") || !Take(key, number)) {
    return false;
  }
  job = JobId{static_cast<int64_t>(read)};
  return true;
}

bool EtcdKeys::ReadEntry(absl::string_view key, JobId& job) {
  uint64_t downwards = 0;
  if (key.size() < kDigits) return false;
  key.remove_prefix(key.size() - kDigits);
  if (!Take(key, downwards)) return false;
  job = JobId{std::numeric_limits<int64_t>::max() - static_cast<int64_t>(downwards)};
  return true;
}

bool EtcdKeys::ReadTime(absl::string_view key, Instant& ended, JobId& job) const {
  uint64_t microseconds = 0, number = 0;
  if (!absl::ConsumePrefix(&key, AllTimes()) || !Take(key, microseconds) ||
      !absl::ConsumePrefix(&key, "/") || !Take(key, number)) {
    return false;
  }
  ended = absl::FromUnixMicros(static_cast<int64_t>(microseconds));
  job = JobId{static_cast<int64_t>(number)};
  return true;
}

}  // namespace phalanx::coordinator
