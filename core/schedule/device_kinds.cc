#include "core/schedule/device_kinds.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/cut_text.h"

namespace phalanx::schedule {
namespace {

struct NamedKind {
  absl::string_view name, kind;
};
// As NVML names them.
constexpr NamedKind kNamedKinds[] = {
    {"NVIDIA H100 80GB HBM3", "h100"},
    {"NVIDIA H200", "h200"},
};

constexpr size_t kNamesShown = 3, kNameBytesShown = 64;

DeviceCosts Nominal(std::string why) { return {.why_nominal = std::move(why)}; }

std::string ListOf(const std::set<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() == kNamesShown) break;
    shown.push_back(name.empty() ? "one without a name" : CutText(name, kNameBytesShown));
  }
  const size_t more = names.size() - shown.size();
  return absl::StrCat(absl::StrJoin(shown, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace

absl::string_view KindOfDevice(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kNamedKinds), std::end(kNamedKinds),
                                         [&](const NamedKind& one) { return one.name == name; });
  return found == std::end(kNamedKinds) ? absl::string_view() : found->kind;
}

DeviceCosts CostsOfDevices(const std::set<std::string>& names) {
  if (names.empty()) return Nominal("no node that the job may use is connected");
  if (names.size() == 1 && names.begin()->empty())
    return Nominal("nodes do not name their devices");
  std::set<absl::string_view> kinds;
  for (const std::string& name : names) kinds.insert(KindOfDevice(name));
  const bool alike = names.size() == 1 || (kinds.size() == 1 && !kinds.begin()->empty());
  if (!alike) {
    DeviceCosts costs = Nominal(absl::StrCat("devices are not alike: ", ListOf(names)));
    const BytesBeside beside = BesideOfDevices(names);
    costs.profile.unestimated_bytes = beside.least;
    costs.profile.process = beside.process;
    return costs;
  }
  const absl::string_view kind = *kinds.begin();
  absl::StatusOr<DeviceProfile> profile = FindProfile(kind);
  if (kind.empty() || !profile.ok()) return Nominal(absl::StrCat("no profile of ", ListOf(names)));
  return {.profile = *std::move(profile)};
}

BytesBeside BesideOfDevices(const std::set<std::string>& names) {
  BytesBeside most;
  for (const std::string& name : names) {
    const absl::string_view kind = KindOfDevice(name);
    if (kind.empty()) continue;
    const absl::StatusOr<DeviceProfile> profile = FindProfile(kind);
    if (profile.ok() && profile->unestimated_bytes > most.least) most = BesideOf(*profile);
  }
  return most;
}

}  // namespace phalanx::schedule
