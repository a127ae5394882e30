#include "core/job/job_reader.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "core/job/fields.h"
#include "core/job/not_yet.h"
#include "core/job/references.h"
#include "core/job/report.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

constexpr size_t kNameMax = 63;

// Whether `name` is not too long, begins with a letter and goes on as `legal` says.
template <typename Legal>
bool IsName(absl::string_view name, Legal legal) {
  return !name.empty() && name.size() <= kNameMax &&
         absl::ascii_isalpha(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return legal(static_cast<unsigned char>(c)); });
}

bool IsJobName(absl::string_view name) {
  return IsName(name,
                [](unsigned char c) {
                  return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
                }) &&
         name.back() != '-';
}

bool IsModuleName(absl::string_view name) {
  return IsName(name,
                [](unsigned char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; });
}

void CheckNames(const JobSpec& spec, Report& report) {
  const auto read = [&](const std::string& path) {
    return report.Written(path) != nullptr && report.Sound(path);
  };
  int64_t number = 0;
  if (read("metadata.name") && !IsJobName(spec.name)) {
    report.Add("metadata.name",
               "must be lower-case letters, digits and '-', at most 63, starting with a letter "
               "and not ending with '-'");
  } else if (read("metadata.name") && absl::StartsWith(spec.name, "job-") &&
             absl::SimpleAtoi(absl::string_view(spec.name).substr(4), &number)) {
    report.Add("metadata.name", "may not be job-N, which is how jobs are numbered");
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const std::string path = ModulePath(i) + ".name";
    if (read(path) && !IsModuleName(spec.modules[i].name)) {
      report.Add(path, "must be letters, digits, '-' and '_', at most 63, starting with a letter");
    }
  }
}

}  // namespace

absl::StatusOr<ReadJob> ReadJobSpec(const Tree& document, Purpose purpose) {
  Report report(document);
  ReadJob job;
  ReadFields(purpose, report, job.spec);
  CheckNames(job.spec, report);
  ResolveReferences(report, job.spec);
  CheckLayout(job.spec, report);
  CheckRun(job.spec, report);
  if (purpose != Purpose::kAccepted) CheckEnvironment(job.spec, report);
  if (purpose == Purpose::kSubmit) CheckTexts(job.spec, report);
  if (purpose != Purpose::kPlan) RefuseNotYet(job.spec, report);
  if (!report.empty()) return ViolationsStatus(report.Sorted());
  job.warnings = WarningsOf(job.spec, report);
  return job;
}

}  // namespace phalanx::job
