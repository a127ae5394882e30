#include "core/job/texts.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace phalanx::job {
namespace {

bool HasControl(absl::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_iscntrl(c); });
}

class Texts {
 public:
  void Check(absl::string_view field, const std::string& text) {
    if (HasControl(text)) Add(field, text);
  }
  void Check(absl::string_view field, const std::vector<std::string>& texts) {
    const auto found = std::find_if(texts.begin(), texts.end(), HasControl);
    if (found != texts.end()) Add(field, *found);
  }
  void Check(absl::string_view field, const std::map<std::string, std::string>& labels) {
    for (const auto& [key, value] : labels) {
      if (HasControl(key) || HasControl(value)) Add(absl::StrCat(field, ".", key), value);
    }
  }
  std::vector<Violation> Take() && { return std::move(violations_); }

 private:
  void Add(absl::string_view field, const std::string& value) {
    violations_.push_back({.field = std::string(field),
                           .value = value,
                           .rule = "must have no control characters"});
  }
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> TextViolations(const JobSpec& spec) {
  Texts texts;
  texts.Check("metadata.labels", spec.labels);
  texts.Check("spec.resources.node_selector", spec.resources.node_selector);
  for (size_t i = 0; i < spec.modules.size(); ++i)
    texts.Check(absl::StrCat("spec.modules[", i, "].weights"), spec.modules[i].weights.value_or(""));
  if (spec.data.has_value()) {
    texts.Check("spec.data.shards", spec.data->shards);
    texts.Check("spec.data.validation", spec.data->validation);
    texts.Check("spec.data.tokenizer", spec.data->tokenizer);
  }
  if (spec.checkpoint.has_value()) {
    texts.Check("spec.checkpoint.directory", spec.checkpoint->directory);
    texts.Check("spec.checkpoint.resume_from", spec.checkpoint->resume_from.value_or(""));
  }
  texts.Check("spec.output", spec.output);
  return std::move(texts).Take();
}

}  // namespace phalanx::job
