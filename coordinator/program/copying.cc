#include "coordinator/program/copying.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <stdio.h>  // renameat2
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/etcd/election.h"
#include "coordinator/program/store_folder.h"
#include "coordinator/store/etcd_backend.h"
#include "coordinator/store/etcd_check.h"
#include "coordinator/store/etcd_tokens.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/store_check.h"
#include "coordinator/store/store_copy.h"
#include "coordinator/store/token_file.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/posix/whole_file.h"

namespace phalanx::coordinator {
namespace {

// Behind the names of files that are not a store yet.
constexpr char kDraft[] = ".copy";

absl::Status RefuseProblems(const absl::StatusOr<StoreReport>& report) {
  if (!report.ok()) return report.status();
  const absl::Status verdict = VerdictOn(*report);
  if (verdict.ok()) return verdict;
  for (const std::string& line : Lines(*report)) spdlog::error("{}", LineText(line));
  return Annotate(verdict, "nothing was copied");
}

// A store on etcd that nobody else leads meanwhile.
struct EtcdSide {
  std::shared_ptr<EtcdClient> client;
  std::string prefix;
  std::shared_ptr<Leadership> leadership;
};
absl::StatusOr<EtcdSide> LeadAt(const Flags& flags, const EtcdPlace& place) {
  EtcdSide side{.client = std::make_shared<EtcdClient>(EtcdOptionsOf(flags, place)),
                .prefix = place.prefix};
  Election election(side.client, side.prefix, "a copy of the store");
  ASSIGN_OR_RETURN(side.leadership, election.Try());
  if (side.leadership != nullptr) return side;
  return absl::FailedPreconditionError(
      absl::StrCat(election.leader(), " leads below ", side.prefix,
                   " in etcd; stop all coordinators there, wait 3 s, and copy again"));
}

absl::StatusOr<CopyReport> CopyToEtcd(const Flags& flags, const EtcdPlace& place) {
  RETURN_IF_ERROR(RefuseProblems(CheckStoreIn(flags.store)));
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteBackend> from,
                   SqliteBackend::Open(JournalIn(flags.store)));
  TokenFile from_tokens(TokensIn(flags.store));
  ASSIGN_OR_RETURN(const EtcdSide side, LeadAt(flags, place));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<EtcdBackend> to,
      EtcdBackend::BeginCopy(side.client, side.prefix, side.leadership, from->identity()));
  EtcdTokens to_tokens(side.client, side.prefix, side.leadership);
  ASSIGN_OR_RETURN(CopyReport report, CopyStore({*from, from_tokens}, {*to, to_tokens}));
  RETURN_IF_ERROR(to->EndCopy(report.marks));
  return report;
}

absl::Status RenameError(const std::string& from, const std::string& to) {
  return absl::UnavailableError(
      absl::StrCat("cannot rename ", from, " to ", to, ": ", std::strerror(errno)));
}

absl::Status Rename(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : RenameError(from, to);
}

// Errors: also FailedPrecondition if there is a file at `to`, which stays.
absl::Status RenameToNew(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  // File systems of networks know no flags; a second name is made only where there is none.
  if ((errno == EINVAL || errno == ENOSYS) && link(from.c_str(), to.c_str()) == 0) {
    return unlink(from.c_str()) == 0 ? absl::OkStatus() : RenameError(from, to);
  }
  if (errno != EEXIST) return RenameError(from, to);
  return absl::FailedPreconditionError(absl::StrCat(
      to, " was made meanwhile, by a coordinator that was started there: copy to another folder"));
}

// A draft of the database stands for those of all files: where it is, the tokens are of a copy that
// was cut. A log without its database would be taken for one of the copy's.
absl::Status CheckFolder(const std::string& folder, const std::string& draft) {
  std::error_code error;
  const std::string journal = JournalIn(folder), tokens = TokensIn(folder);
  for (const std::string& file : {journal, absl::StrCat(journal, "-wal"), tokens}) {
    if (!std::filesystem::exists(file, error)) continue;
    if (file == tokens && std::filesystem::exists(draft, error)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        file, " is there already; a store is copied where there is none: choose another folder"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CopyReport> CopyToFolder(const Flags& flags, const EtcdPlace& place) {
  const std::string& folder = flags.copy_store_to;
  const std::string journal = JournalIn(folder), tokens = TokensIn(folder);
  RETURN_IF_ERROR(CheckFolder(folder, journal + kDraft));
  ASSIGN_OR_RETURN(const EtcdSide side, LeadAt(flags, place));
  RETURN_IF_ERROR(RefuseProblems(CheckEtcdStore(*side.client, side.prefix)));
  ASSIGN_OR_RETURN(const std::unique_ptr<EtcdBackend> from,
                   EtcdBackend::Open(side.client, side.prefix, side.leadership));
  EtcdTokens from_tokens(side.client, side.prefix, side.leadership);
  RETURN_IF_ERROR(MakeStoreFolder(folder, "--copy-store-to"));
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteBackend> to, SqliteBackend::Open(journal + kDraft));
  RETURN_IF_ERROR(to->BeginCopy(from->identity()));
  TokenFile to_tokens(tokens + kDraft);
  ASSIGN_OR_RETURN(CopyReport report, CopyStore({*from, from_tokens}, {*to, to_tokens}));
  RETURN_IF_ERROR(to->EndCopy(report.marks));
  to.reset();
  // The database last: without it the folder has no store.
  RETURN_IF_ERROR(Rename(tokens + kDraft, tokens));
  RETURN_IF_ERROR(SyncFolderOf(tokens));
  RETURN_IF_ERROR(RenameToNew(journal + kDraft, journal));
  std::error_code ignored;
  std::filesystem::remove(absl::StrCat(journal, kDraft, ".lock"), ignored);
  RETURN_IF_ERROR(SyncFolderOf(journal));
  return report;
}

}  // namespace

absl::StatusOr<std::string> CopyBetween(const Flags& flags, const Settings& settings) {
  ASSIGN_OR_RETURN(const CopyReport report, settings.etcd.has_value()
                                                ? CopyToFolder(flags, *settings.etcd)
                                                : CopyToEtcd(flags, *settings.copy_to));
  return absl::StrCat("copied ", report.records, " records, ", report.ended_jobs, " ended jobs, ",
                      report.requests, " request ids and ", report.tokens,
                      " join tokens, and read them back: the store is at ", flags.copy_store_to);
}

}  // namespace phalanx::coordinator
