#include "core/wire/resolved_job.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/job/tree.h"
#include "core/schedule/search.h"
#include "core/wire/job_yaml.h"
#include "core/wire/search_text.h"

namespace phalanx::wire {
namespace {

using job::Tree;

const Tree* Entry(const Tree* mapping, absl::string_view name) {
  if (mapping == nullptr) return nullptr;
  const auto found = std::find_if(mapping->entries.begin(), mapping->entries.end(),
                                  [name](const auto& entry) { return entry.key == name; });
  return found == mapping->entries.end() ? nullptr : &found->value;
}

// What the job says of its data, completed by what is known of it.
absl::Status Complete(absl::string_view text, const job::DataShape& data, job::Batch& batch) {
  ASSIGN_OR_RETURN(const Tree document, ParseYaml(text));
  const Tree* const written = Entry(Entry(&document, "spec"), "batch");
  if (Entry(written, "items") == nullptr)
    batch.items = std::max(1, static_cast<int32_t>(std::lround(std::min(data.items, 65536.0))));
  // As exact as it matters, and short to read.
  if (Entry(written, "labelled_share") == nullptr)
    batch.labelled_share = std::round(std::clamp(data.labelled_share, 0.0, 1.0) * 1e4) / 1e4;
  return absl::OkStatus();
}

std::string NoteOf(const job::JobSpec& chosen, const schedule::DeviceCosts& costs) {
  const std::string under = costs.profile.name != schedule::kNominalDevice
                                ? absl::StrCat("the profile of ", costs.profile.name)
                            : costs.why_nominal.empty()
                                ? std::string("nominal costs")
                                : absl::StrCat("nominal costs (", costs.why_nominal, ")");
  const job::Batch& batch = chosen.batch;
  return absl::StrCat(
      "parallel: auto became ", LayoutText(chosen), ": fastest by search under ", under, ", with ",
      batch.items, batch.items == 1 ? " item" : " items", " a sample (batch.items) and a label at ",
      std::round(batch.labelled_share * 1e4) / 1e2, " % of positions (batch.labelled_share)");
}

}  // namespace

absl::StatusOr<ResolvedJob> Resolve(std::string text, job::ReadJob job, job::Purpose purpose,
                                    const SearchedDevices& devices,
                                    const std::optional<job::DataShape>& data,
                                    std::function<absl::Status()> go_on) {
  if (!job.spec.HasOpenLayout()) return ResolvedJob{std::move(text), std::move(job), ""};
  if (data.has_value()) RETURN_IF_ERROR(Complete(text, *data, job.spec.batch));
  std::vector<bool> open;
  for (const job::Module& module : job.spec.modules) open.push_back(module.parallel.automatic);
  ASSIGN_OR_RETURN(const schedule::SearchResult found,
                   schedule::SearchLayouts(job.spec, {.devices = job.spec.resources.devices,
                                                      .node_devices = devices.node_devices,
                                                      .device_memory = devices.device_memory,
                                                      .profile = devices.costs.profile,
                                                      .items = job.spec.batch.items,
                                                      .open = open,
                                                      .keep_written = true,
                                                      .threads = devices.threads,
                                                      .go_on = std::move(go_on)}));
  const job::JobSpec& chosen = found.best.front().spec;
  ResolvedJob resolved;
  ASSIGN_OR_RETURN(resolved.text, WithLayoutOf(text, chosen, open));
  ASSIGN_OR_RETURN(resolved.job, ReadJobFile(resolved.text, purpose));
  resolved.note = NoteOf(chosen, devices.costs);
  return resolved;
}

}  // namespace phalanx::wire
