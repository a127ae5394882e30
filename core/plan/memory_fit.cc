#include "core/plan/memory_fit.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/violation.h"

namespace phalanx::plan {
namespace {

std::string LargestTerm(const MemoryEstimate& need) {
  const std::pair<const char*, int64_t> terms[] = {{"parameters", need.parameters},
                                                   {"gradients", need.gradients},
                                                   {"optimizer", need.optimizer},
                                                   {"activations", need.activations}};
  const auto* largest =
      std::max_element(std::begin(terms), std::end(terms),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::StrCat(largest->first, " ", FormatBytes(largest->second));
}

struct Shortage {
  size_t worst = 0, count = 0;  // the rank that lacks most; how many lack
};

std::optional<Shortage> FindShortage(absl::Span<const MemoryEstimate> needs,
                                     absl::Span<const int64_t> device_memory) {
  Shortage shortage;
  int64_t most = 0;
  for (size_t rank = 0; rank < std::min(needs.size(), device_memory.size()); ++rank) {
    const int64_t lacking = needs[rank].total() - device_memory[rank];
    if (device_memory[rank] == 0 || lacking <= 0) continue;
    ++shortage.count;
    if (lacking <= most) continue;
    most = lacking;
    shortage.worst = rank;
  }
  if (shortage.count == 0) return std::nullopt;
  return shortage;
}

std::string SentenceOf(const Shortage& shortage, absl::Span<const MemoryEstimate> needs,
                       absl::Span<const int64_t> device_memory) {
  const auto& [worst, count] = shortage;
  std::string text = absl::StrCat(
      "rank ", worst, " needs ", FormatBytes(needs[worst].total()), " (", LargestTerm(needs[worst]),
      " is the largest term), device has ", FormatBytes(device_memory[worst]));
  if (count == 2) absl::StrAppend(&text, "; another rank does not fit either");
  if (count > 2) absl::StrAppend(&text, "; ", count - 1, " other ranks do not fit either");
  return text;
}

// "without ranks 1, 3, ".
std::string LostText(const RankList& lost) {
  constexpr size_t kShown = 8;
  if (lost.empty()) return "";
  std::string text = lost.size() == 1 ? "without rank " : "without ranks ";
  for (size_t i = 0; i < std::min(lost.size(), kShown); ++i) {
    absl::StrAppend(&text, lost[i].value, ", ");
  }
  if (lost.size() > kShown) absl::StrAppend(&text, "..., ");
  return text;
}

// "; replica 0 of module language is 1 wide there instead of 2", of the modules whose replicas have
// become narrower where a rank stands.
std::string NarrowedText(const Plan& plan, Rank rank) {
  std::string text;
  for (const Place& place : plan.PlacesOf(rank)) {
    const job::Module& module = plan.module_spec(place.module);
    if (place.width == module.parallel.tp) continue;
    absl::StrAppend(&text, "; replica ", place.dp, " of module ", module.name, " is ", place.width,
                    " wide there instead of ", module.parallel.tp);
  }
  return text;
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::optional<std::string> MemoryShortage(absl::Span<const MemoryEstimate> needs,
                                          absl::Span<const int64_t> device_memory) {
  const std::optional<Shortage> shortage = FindShortage(needs, device_memory);
  if (!shortage.has_value()) return std::nullopt;
  return SentenceOf(*shortage, needs, device_memory);
}

absl::Status CheckMemory(const Plan& plan, absl::Span<const int64_t> device_memory) {
  if (std::all_of(device_memory.begin(), device_memory.end(), [](int64_t b) { return b == 0; })) {
    return absl::OkStatus();
  }
  const std::vector<MemoryEstimate> needs = EstimateMemory(plan);
  const std::optional<Shortage> shortage = FindShortage(needs, device_memory);
  if (!shortage.has_value()) return absl::OkStatus();
  return ViolationsStatus(
      {{.field = "spec.modules",
        .rule =
            absl::StrCat(LostText(plan.layout.lost), SentenceOf(*shortage, needs, device_memory),
                         NarrowedText(plan, Rank{static_cast<int32_t>(shortage->worst)}))}});
}

}  // namespace phalanx::plan
