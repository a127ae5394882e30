#include "coordinator/program/store_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "coordinator/store/token_file.h"
#include "core/base/status.h"

namespace phalanx::coordinator {

std::string JournalIn(const std::string& folder) { return absl::StrCat(folder, "/journal.db"); }
std::string TokensIn(const std::string& folder) { return absl::StrCat(folder, "/join-tokens"); }
std::string AuditIn(const std::string& folder) { return absl::StrCat(folder, "/audit.log"); }
std::string AuditOfWorkersIn(const std::string& folder) {
  return absl::StrCat(folder, "/audit-workers.log");
}
std::string RefusalsIn(const std::string& folder) {
  return absl::StrCat(folder, "/audit-refused.log");
}

absl::Status MakeStoreFolder(const std::string& folder, absl::string_view flag) {
  const auto fault = [&](absl::string_view what) {
    return absl::UnavailableError(
        absl::StrCat(flag, ": ", folder, ": ", what,
                     "; name a folder that the user of phalanx-coordinator may make and write in"));
  };
  std::filesystem::path path = folder;
  if (!path.has_filename()) path = path.parent_path();
  std::error_code above;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), above);
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno != EEXIST) {
    const char* reason = std::strerror(errno);
    return fault(absl::StrCat("cannot be made: ", above ? above.message() : reason));
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return fault("is no folder");
  if (access(path.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return fault(absl::StrCat("cannot be written in: ", std::strerror(errno)));
}

absl::StatusOr<StoreReport> CheckStoreIn(const std::string& folder) {
  ASSIGN_OR_RETURN(StoreReport report, CheckStore(JournalIn(folder)));
  const absl::Status tokens = TokenFile(TokensIn(folder)).Load().status();
  // It says itself what to do, which is not what is done about the journal.
  AddProblem(report, "the join tokens:",
             absl::IsDataLoss(tokens) ? absl::UnavailableError(tokens.message()) : tokens);
  return report;
}

}  // namespace phalanx::coordinator
