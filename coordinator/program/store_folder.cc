#include "coordinator/program/store_folder.h"

#include <sys/stat.h>

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

absl::Status MakeStoreFolder(const std::string& folder) {
  std::filesystem::path path = folder;
  if (!path.has_filename()) path = path.parent_path();
  std::error_code ignored;  // mkdir says what is wrong with the folders above
  std::filesystem::create_directories(path.parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot make the folder ", folder, ": ", std::strerror(errno)));
}

absl::StatusOr<StoreReport> CheckStoreIn(const std::string& folder) {
  ASSIGN_OR_RETURN(StoreReport report, CheckStore(JournalIn(folder)));
  AddProblem(report, "the join tokens:", TokenFile(TokensIn(folder)).Load().status());
  return report;
}

}  // namespace phalanx::coordinator
