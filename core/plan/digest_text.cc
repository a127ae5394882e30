#include "core/plan/digest_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/digest.h"
#include "core/job/job_reader.h"

namespace phalanx::plan {
namespace {

std::string Ranks(const std::vector<Rank>& ranks, int32_t end = kWorldMax) {
  std::string out;
  for (Rank rank : ranks) {
    if (rank.value < end) absl::StrAppend(&out, " ", rank.value);
  }
  return out;
}

void AppendReplicas(const ModuleLayout& layout, std::string* out) {
  for (const SlotChange& change : layout.changes) {
    absl::StrAppend(out, "slot ", change.dp, " ", change.pp, Ranks(change.ranks), "\n");
  }
  absl::StrAppend(out, "speeds ", absl::StrJoin(layout.speeds, " "), " home ",
                  static_cast<int>(layout.state_home), " ", layout.state_copies, "\n");
  if (layout.lowered.has_value()) {
    const LoweredGrid& lowered = *layout.lowered;
    absl::StrAppend(out, "lowered tp ", lowered.tp, " dp ", lowered.dp, " pp ", lowered.pp,
                    Ranks(lowered.ranks), "\n");
  }
  if (!layout.order.empty()) absl::StrAppend(out, "order ", absl::StrJoin(layout.order, " "), "\n");
}

// Devices of ranks alone; indices are written as runs. Names carry their length, so that no text
// can pass for another one's structure.
void AppendDevices(const Plan& plan, std::string* out) {
  constexpr size_t kLineBytes = 32;  // of a node, about
  out->reserve(out->size() + kLineBytes * plan.layout.nodes.size());
  int32_t left = plan.world;
  for (const NodeDevices& node : plan.layout.nodes) {
    const int32_t end = std::min<int32_t>(left, static_cast<int32_t>(node.devices.size()));
    left -= end;
    absl::StrAppend(out, "node ", node.node.size(), ":", node.node);
    if (!node.domain.empty())
      absl::StrAppend(out, " domain ", node.domain.size(), ":", node.domain);
    for (int32_t i = 0; i < end;) {
      const int32_t first = node.devices[static_cast<size_t>(i)];
      int32_t count = 0;
      for (; i < end && node.devices[static_cast<size_t>(i)] == first + count; ++i) ++count;
      absl::StrAppend(out, " ", first, "+", count);
    }
    absl::StrAppend(out, "\n");
    if (left == 0) break;
  }
}

}  // namespace

std::string CanonicalText(const Plan& plan) {
  std::string out =
      absl::StrCat("phalanx plan 4 derivation ", plan.layout.derivation, "\nworld ", plan.world,
                   " stages ", plan.stages, " microbatches ", plan.microbatches, "\n");
  absl::StrAppend(&out, job::ActedText(plan.spec));
  for (const ModulePlan& module : plan.modules) {
    absl::StrAppend(&out, "stages ", module.first_stage, " chunks ", module.chunks(), " path ",
                    static_cast<int>(module.order.path));
    for (const LayerRange& layers : module.stage_layers) {
      absl::StrAppend(&out, " ", layers.first, "+", layers.count);
    }
    absl::StrAppend(&out, "\n");
    AppendReplicas(plan.layout.modules[static_cast<size_t>(module.index)], &out);
  }
  for (const Link& link : plan.links) {
    if (link.edge < 0) continue;  // those within a module follow from its stages
    absl::StrAppend(&out, "link ",
                    absl::StrJoin({link.from.module, link.from.stage, link.from.chunk,
                                   link.to.module, link.to.stage, link.to.chunk, link.edge},
                                  " "),
                    "\n");
  }
  AppendDevices(plan, &out);
  const std::string& products = plan.layout.products;
  if (!products.empty()) absl::StrAppend(&out, "products ", products.size(), ":", products, "\n");
  absl::StrAppend(&out, "lost", Ranks(plan.layout.lost, plan.world), "\nidle",
                  Ranks(plan.layout.idle, plan.world), "\n");
  return out;
}

void TakeProducts(std::string table, Plan& plan) {
  if (plan.layout.products == table) return;
  plan.layout.products = std::move(table);
  plan.digest = Digest(CanonicalText(plan));
}

}  // namespace phalanx::plan
