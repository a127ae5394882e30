// Labels are shown to everybody, and no folder of a node that anybody means has control characters
// in its name.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

void CheckText(const std::string& path, absl::string_view text, Report& report) {
  if (HasControl(text)) Refuse(path, report);
}

void CheckList(const std::string& path, const std::vector<std::string>& texts, Report& report) {
  if (std::any_of(texts.begin(), texts.end(), HasControl)) Refuse(path, report);
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
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    CheckText(absl::StrCat("spec.modules[", i, "].weights"), spec.modules[i].weights.value_or(""),
              report);
  }
  if (spec.data.has_value()) {
    CheckList("spec.data.shards", spec.data->shards, report);
    CheckList("spec.data.validation", spec.data->validation, report);
    CheckText("spec.data.tokenizer", spec.data->tokenizer, report);
  }
  if (spec.checkpoint.has_value()) {
    CheckText("spec.checkpoint.directory", spec.checkpoint->directory, report);
    CheckText("spec.checkpoint.resume_from", spec.checkpoint->resume_from.value_or(""), report);
  }
  // What is not written is made of the job's name.
  if (report.Written("spec.output") != nullptr) CheckText("spec.output", spec.output, report);
}

}  // namespace phalanx::job
