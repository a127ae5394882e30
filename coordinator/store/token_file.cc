#include "coordinator/store/token_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/seal.h"
#include "core/base/status.h"
#include "core/posix/file.h"
#include "core/posix/whole_file.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kFileBytesMax = 256 << 20;
constexpr char kWithoutTokens[] =
    ": put a backup of this file in its place, or move it away: jobs stay as they are, and what "
    "joined by a token does so anew, by another one";

}  // namespace

absl::StatusOr<TokenRecords> TokenFile::Load() {
  records_.clear();
  struct stat found {};
  if (stat(file_.c_str(), &found) != 0 && errno == ENOENT) return records_;
  const absl::StatusOr<std::string> sealed = ReadWholeFile(file_, kFileBytesMax);
  if (!sealed.ok()) {
    return absl::UnavailableError(
        absl::StrCat(file_, ": ", sealed.status().message(), kWithoutTokens));
  }
  const absl::StatusOr<absl::string_view> bytes = Unseal(*sealed, 0);
  if (absl::IsFailedPrecondition(bytes.status())) return Annotate(bytes.status(), file_);
  if (!bytes.ok())
    return absl::DataLossError(absl::StrCat(file_, ": ", bytes.status().message(), kWithoutTokens));
  v1::JoinRecords all;
  if (!all.ParseFromArray(bytes->data(), static_cast<int>(bytes->size())))
    return absl::DataLossError(
        absl::StrCat(file_, ": does not parse as JoinRecords", kWithoutTokens));
  for (v1::JoinRecord& record : *all.mutable_tokens()) {
    std::string id = record.about().id();
    records_.emplace(std::move(id), std::move(record));
  }
  return records_;
}

absl::Status TokenFile::Write(const v1::JoinRecord& record,
                              const std::vector<std::string>& forgotten) {
  TokenRecords records = records_;
  for (const std::string& id : forgotten) records.erase(id);
  records.insert_or_assign(record.about().id(), record);
  RETURN_IF_ERROR(WriteAll(records));
  records_ = std::move(records);
  return absl::OkStatus();
}

absl::Status TokenFile::WriteAll(const TokenRecords& records) {
  v1::JoinRecords all;
  for (const auto& [id, record] : records) *all.add_tokens() = record;
  RETURN_IF_ERROR(WriteWholeFile(file_, Seal(all.SerializeAsString(), 0), 0600));
  return SyncFolderOf(file_);
}

}  // namespace phalanx::coordinator
