#include "core/job/path_fields.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::job {

std::vector<PathField> PathFieldsOf(const JobSpec& spec) {
  std::vector<PathField> fields;
  const auto add = [&fields](std::string field, absl::Span<const std::string> paths, PathUse use) {
    if (!paths.empty() && !paths[0].empty()) fields.push_back({std::move(field), paths, use});
  };
  const auto one = [](const std::string& path) { return absl::MakeConstSpan(&path, 1); };
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const std::optional<std::string>& weights = spec.modules[i].weights;
    if (weights.has_value())
      add(absl::StrCat("spec.modules[", i, "].weights"), one(*weights), PathUse::kRead);
  }
  if (spec.data.has_value()) {
    add("spec.data.shards", spec.data->shards, PathUse::kRead);
    add("spec.data.validation", spec.data->validation, PathUse::kRead);
    add("spec.data.tokenizer", one(spec.data->tokenizer), PathUse::kRead);
  }
  add("spec.output", one(spec.output), PathUse::kWrite);
  if (spec.checkpoint.has_value()) {
    add("spec.checkpoint.directory", one(spec.checkpoint->directory), PathUse::kWrite);
    const std::optional<std::string>& from = spec.checkpoint->resume_from;
    if (from.has_value() && *from != kResumeFromLatest)
      add("spec.checkpoint.resume_from", one(*from), PathUse::kRead);
  }
  return fields;
}

}  // namespace phalanx::job
