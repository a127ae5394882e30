#include "core/plan/digest_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/job_reader.h"

namespace phalanx::plan {
namespace {

// Strings carry their length, so that no text can pass for another one's structure.
std::string Quoted(absl::string_view text) { return absl::StrCat(text.size(), ":", text); }

// Devices of one node in a row are one line; their indices are written as runs.
void AppendDevices(const std::vector<Device>& devices, std::string* out) {
  for (size_t i = 0; i < devices.size();) {
    const NodeName& node = devices[i].node;
    absl::StrAppend(out, "node ", Quoted(node));
    while (i < devices.size() && devices[i].node == node) {
      const int32_t first = devices[i].index;
      int32_t count = 0;
      while (i < devices.size() && devices[i].index == first + count && devices[i].node == node) {
        ++count;
        ++i;
      }
      absl::StrAppend(out, " ", first, "+", count);
    }
    absl::StrAppend(out, "\n");
  }
}

}  // namespace

std::string CanonicalText(const Plan& plan) {
  std::string out =
      absl::StrCat("phalanx plan 2\nepoch ", plan.epoch.value, " world ", plan.world, " stages ",
                   plan.stages, " microbatches ", plan.microbatches, "\n");
  absl::StrAppend(&out, job::ActedText(plan.spec));
  for (const ModulePlan& module : plan.modules) {
    absl::StrAppend(&out, "stages ", module.first_stage, " chunks ", module.chunks, " placement ",
                    static_cast<int>(module.placement));
    for (const LayerRange& layers : module.stage_layers) {
      absl::StrAppend(&out, " ", layers.first, "+", layers.count);
    }
    absl::StrAppend(&out, "\n");
  }
  for (const Link& link : plan.links) {
    if (link.edge < 0) continue;  // those within a module follow from its stages
    absl::StrAppend(&out, "link ",
                    absl::StrJoin({link.from_module, link.from_stage, link.from_chunk,
                                   link.to_module, link.to_stage, link.to_chunk, link.edge},
                                  " "),
                    "\n");
  }
  AppendDevices(plan.devices, &out);
  return out;
}

}  // namespace phalanx::plan
