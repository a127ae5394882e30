#include "core/plan/memory_fit.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

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
  size_t worst = 0, count = 0;
  int64_t most = 0;
  for (size_t rank = 0; rank < std::min(needs.size(), device_memory.size()); ++rank) {
    const int64_t lacking = needs[rank].total() - device_memory[rank];
    if (device_memory[rank] == 0 || lacking <= 0) continue;
    ++count;
    if (lacking <= most) continue;
    most = lacking;
    worst = rank;
  }
  if (count == 0) return std::nullopt;
  std::string text = absl::StrCat(
      "rank ", worst, " needs ", FormatBytes(needs[worst].total()), " (", LargestTerm(needs[worst]),
      " is the largest term), device has ", FormatBytes(device_memory[worst]));
  if (count == 2) absl::StrAppend(&text, "; another rank does not fit either");
  if (count > 2) absl::StrAppend(&text, "; ", count - 1, " other ranks do not fit either");
  return text;
}

absl::Status CheckMemory(const Plan& plan, absl::Span<const int64_t> device_memory) {
  if (std::all_of(device_memory.begin(), device_memory.end(), [](int64_t b) { return b == 0; })) {
    return absl::OkStatus();
  }
  const std::optional<std::string> shortage = MemoryShortage(EstimateMemory(plan), device_memory);
  if (!shortage.has_value()) return absl::OkStatus();
  return ViolationsStatus({{.field = "spec.modules", .rule = *shortage}});
}

}  // namespace phalanx::plan
