// Labels are shown to everybody, and no folder of a node that anybody means has control characters
// in its name, or is called s3://bucket.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/job/path_fields.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

bool HasControl(absl::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_iscntrl(c); });
}

void Refuse(const std::string& path, Report& report) {
  report.Add(path, "must have no control characters");
}

// "s3" of "s3://bucket/shards"; empty: it has none.
absl::string_view SchemeOf(absl::string_view path) {
  const size_t end = path.find("://");
  if (end == 0 || end == absl::string_view::npos) return {};
  const absl::string_view scheme = path.substr(0, end);
  const bool is_one = std::all_of(scheme.begin(), scheme.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.';
  });
  return is_one ? scheme : absl::string_view();
}

void CheckPaths(const PathField& field, Report& report) {
  if (std::any_of(field.paths.begin(), field.paths.end(), HasControl))
    return Refuse(field.field, report);
  for (const std::string& path : field.paths) {
    const absl::string_view scheme = SchemeOf(path);
    if (scheme.empty()) continue;
    return report.Add(field.field, absl::StrCat("must name files or folders of the nodes: this "
                                                "release knows no ",
                                                scheme, "://"));
  }
}

void CheckLabels(const std::string& path, const std::map<std::string, std::string>& labels,
                 Report& report) {
  for (const auto& [key, value] : labels) {
    if (HasControl(key) || HasControl(value)) Refuse(JoinPath(path, key), report);
  }
}

}  // namespace

void CheckTexts(const JobSpec& spec, Report& report) {
  CheckLabels("metadata.labels", spec.labels, report);
  CheckLabels("spec.resources.node_selector", spec.resources.node_selector, report);
  for (const PathField& field : PathFieldsOf(spec)) {
    // What is not written is made of the job's name.
    if (field.field != "spec.output" || report.Written(field.field) != nullptr)
      CheckPaths(field, report);
  }
}

}  // namespace phalanx::job
