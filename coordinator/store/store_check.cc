#include "coordinator/store/store_check.h"

#include <sys/stat.h>

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/sqlite_schema.h"
#include "coordinator/store/wal_check.h"
#include "coordinator/wire/ended_codec.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/seal.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kProblemsMax = 100;
constexpr char kNext[] =
    "; put a backup of the store in its place, or move it away to start with an empty one (its "
    "jobs "
    "are then unknown)";

class Checker {
 public:
  explicit Checker(StoreReport& report) : report_(report) {}

  void Problem(absl::string_view where, const absl::Status& status) {
    AddProblem(report_, where, status);
  }

  absl::Status Pages(sqlite::Connection& connection) {
    ASSIGN_OR_RETURN(sqlite::Statement check, connection.Prepare("PRAGMA integrity_check(100)"));
    while (true) {
      ASSIGN_OR_RETURN(const bool row, check.Step());
      if (!row) return absl::OkStatus();
      const std::string line = check.Bytes(0);
      if (line != "ok") Problem("the database:", absl::DataLossError(line));
    }
  }

  absl::Status Records(sqlite::Connection& connection) {
    const bool sealed = report_.schema > 1;
    ASSIGN_OR_RETURN(sqlite::Statement read,
                     connection.Prepare(sealed ? "SELECT number, record, job FROM journal"
                                               : "SELECT number, record FROM journal"));
    while (true) {
      ASSIGN_OR_RETURN(const bool row, read.Step());
      if (!row) return absl::OkStatus();
      ++report_.records;
      const auto number = static_cast<uint64_t>(read.Number(0));
      const std::string bytes = read.Bytes(1);
      std::string name = absl::StrCat("record ", number);
      if (sealed) absl::StrAppend(&name, " of ", ToString(JobId{read.Number(2)}));
      Problem(name, (sealed ? DecodeRecord(bytes, number) : DecodeUnsealedRecord(bytes)).status());
    }
  }

  absl::Status Ended(sqlite::Connection& connection) {
    if (report_.schema < 2) return absl::OkStatus();
    ASSIGN_OR_RETURN(sqlite::Statement read,
                     connection.Prepare("SELECT job, summary, details FROM ended"));
    while (true) {
      ASSIGN_OR_RETURN(const bool row, read.Step());
      if (!row) return absl::OkStatus();
      ++report_.ended_jobs;
      const JobId job{read.Number(0)};
      const std::string name = ToString(job);
      Problem(absl::StrCat("the summary of ", name), DecodeSummary(read.Bytes(1), job).status());
      Problem(absl::StrCat("the details of ", name), DecodeDetails(read.Bytes(2), job).status());
    }
  }

 private:
  StoreReport& report_;
};

}  // namespace

void AddProblem(StoreReport& report, absl::string_view where, const absl::Status& status) {
  if (status.ok()) return;
  report.damaged |= !absl::IsFailedPrecondition(status);
  if (report.problems.size() >= kProblemsMax) {
    ++report.problems_left_out;
    return;
  }
  report.problems.push_back(
      absl::StrCat(where, " ", status.message(), absl::IsDataLoss(status) ? kNext : ""));
}

absl::StatusOr<StoreReport> CheckStore(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    return absl::NotFoundError(absl::StrCat("there is no store at ", path));
  }
  if (S_ISREG(found.st_mode) && found.st_size == 0) {
    return absl::NotFoundError(absl::StrCat(path, " is empty (0 bytes): it holds no store", kNext));
  }
  StoreReport report;
  report.start_refused = std::string(CheckHasOneName(path).message());
  Checker checker(report);
  // It says itself what to do.
  const absl::Status log = CheckLog(absl::StrCat(path, "-wal"));
  if (absl::IsDataLoss(log)) {
    report.damaged = true;
    report.problems.push_back(absl::StrCat("the log ", log.message()));
  } else if (!log.ok()) {
    return log;
  }
  ASSIGN_OR_RETURN(sqlite::Connection connection,
                   sqlite::Connection::Open(path, SQLITE_OPEN_READWRITE));
  RETURN_IF_ERROR(Annotate(connection.KeepLogOnClose(), path));
  RETURN_IF_ERROR(
      Annotate(connection.Execute("PRAGMA query_only=ON; PRAGMA busy_timeout=5000"), path));
  const absl::StatusOr<int64_t> version = SchemaVersion(connection);
  // The disk is full, say: that is no damage.
  if (absl::IsUnavailable(version.status()) || absl::IsResourceExhausted(version.status()))
    return Annotate(version.status(), path);
  checker.Problem(absl::StrCat("the database ", path), version.status());
  if (version.ok() && *version == 0) {
    return absl::NotFoundError(absl::StrCat(path,
                                            " is a database without tables: it holds no "
                                            "store",
                                            kNext));
  }
  if (!version.ok()) return report;
  report.schema = *version;
  // Where pages are damaged, reading on may fail: what was found until then is told.
  checker.Problem("the database:", checker.Pages(connection));
  checker.Problem("the records:", checker.Records(connection));
  checker.Problem("the ended jobs:", checker.Ended(connection));
  if (report.schema > 2) checker.Problem("the store", StoreIdentity(connection).status());
  return report;
}

absl::Status EntryStatus(EndedJobs& ended, const EndedJob& listed) {
  if (!listed.summary.empty()) return absl::OkStatus();
  const absl::Status status = ended.Find(listed.job).status();
  if (!absl::IsDataLoss(status)) return absl::OkStatus();
  return Annotate(status, absl::StrCat("the entry of ", ToString(listed.job)));
}

void CheckEnded(EndedJobs& ended, const std::atomic<bool>& stop, absl::FunctionRef<void()> found,
                absl::FunctionRef<void(const std::string&)> complain) {
  // What one read takes at a time: other readers wait for it.
  constexpr size_t kPage = 100;
  JobId before{std::numeric_limits<int64_t>::max()};
  size_t problems = 0;
  const auto check = [&](absl::string_view what, JobId job, const absl::Status& status) {
    if (!absl::IsDataLoss(status) || ++problems > kProblemsMax) return;
    complain(absl::StrCat("the ", what, " of ", ToString(job), " ", status.message(),
                          "; phalanx delete removes it"));
  };
  while (!stop) {
    const absl::StatusOr<std::vector<EndedJob>> page = ended.List(before, kPage);
    if (!page.ok()) return complain(absl::StrCat("the ended jobs: ", page.status().message()));
    if (page->empty()) break;
    for (const EndedJob& job : *page) {
      if (const absl::Status entry = EntryStatus(ended, job); !entry.ok()) {
        found();
        if (++problems <= kProblemsMax) complain(absl::StrCat(entry.message(), kNext));
        continue;
      }
      const auto number = static_cast<uint64_t>(job.job.value);
      const absl::Status summary = Unseal(job.summary, number).status();
      const absl::StatusOr<std::string> sealed = ended.Details(job.job);
      const absl::Status details = sealed.ok() ? Unseal(*sealed, number).status() : sealed.status();
      if (absl::IsDataLoss(summary) || absl::IsDataLoss(details)) found();
      check("summary", job.job, summary);
      check("details", job.job, details);
    }
    before = page->back().job;
  }
  if (problems > kProblemsMax) {
    complain(absl::StrCat("and ", problems - kProblemsMax, " entries of ended jobs more"));
  }
}

absl::Status VerdictOn(const StoreReport& report) {
  if (report.problems.empty()) return absl::OkStatus();
  if (report.damaged) return absl::DataLossError("the store is damaged");
  return absl::FailedPreconditionError(report.problems.front());
}

std::vector<std::string> Lines(const StoreReport& report) {
  std::vector<std::string> lines = report.problems;
  if (report.problems_left_out != 0) {
    lines.push_back(absl::StrCat("and ", report.problems_left_out, " problems more"));
  }
  if (!report.start_refused.empty())
    lines.push_back(
        absl::StrCat("a coordinator does not start on it here: ", report.start_refused));
  const char* verdict = report.problems.empty() ? "the store is whole"
                        : report.damaged        ? "the store is damaged"
                                                : "this coordinator cannot read the store";
  const bool counted = report.schema != 0 || report.damaged;
  lines.push_back(counted ? absl::StrCat("schema ", report.schema, ", ", report.records,
                                         " records, ", report.ended_jobs, " ended jobs: ", verdict)
                          : verdict);
  return lines;
}

}  // namespace phalanx::coordinator
