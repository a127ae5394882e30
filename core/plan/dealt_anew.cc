#include "core/plan/dealt_anew.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/plan/samples.h"

namespace phalanx::plan {
namespace {

// Replicas that are named.
constexpr size_t kNamedMax = 8;

std::set<int32_t> ReplicasWithSlow(const Plan& before, const Plan& now, int32_t module) {
  std::set<int32_t> replicas;
  for (const Plan* plan : {&before, &now}) {
    for (const Plan* of : {&before, &now}) {
      for (const SlowPlace& slow : of->layout.slow) {
        const auto at = plan->replicas(module).PositionOf(slow.place);
        if (at.has_value()) replicas.insert(at->dp);
      }
    }
  }
  return replicas;
}

}  // namespace

std::vector<DealtAnewTo> DealtAnew(const Plan& before, const Plan& now) {
  std::vector<DealtAnewTo> dealt;
  for (const ModulePlan& module : now.modules) {
    const std::vector<int64_t> had = LaneSamplesOfStep(before, module.index);
    const std::vector<int64_t> has = LaneSamplesOfStep(now, module.index);
    for (const int32_t dp : ReplicasWithSlow(before, now, module.index)) {
      const auto replica = static_cast<size_t>(dp);
      if (replica >= had.size() || replica >= has.size() || had[replica] == has[replica]) continue;
      dealt.push_back({now.module_spec(module.index).name, dp, had[replica], has[replica],
                       std::accumulate(has.begin(), has.end(), int64_t{0})});
    }
  }
  return dealt;
}

std::vector<std::string> ToWords(absl::Span<const DealtAnewTo> dealt) {
  std::vector<std::string> words;
  for (const DealtAnewTo& one : dealt.subspan(0, std::min(dealt.size(), kNamedMax))) {
    words.push_back(absl::StrCat("replica ", one.replica, " of ", one.module, " has ", one.now,
                                 " of ", one.of, " samples a step, not ", one.before));
  }
  if (dealt.size() > kNamedMax)
    words.push_back(absl::StrCat(dealt.size() - kNamedMax, " more have others"));
  return words;
}

}  // namespace phalanx::plan
