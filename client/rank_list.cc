#include "client/rank_list.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/terminal_text.h"

namespace phalanx::client {

absl::StatusOr<std::vector<int32_t>> ParseRanks(absl::Span<const std::string> lists) {
  std::vector<int32_t> ranks;
  for (const std::string& list : lists) {
    for (const absl::string_view item : absl::StrSplit(list, ',')) {
      if (absl::SimpleAtoi(item, &ranks.emplace_back())) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("\"", LineText(list), "\" must be ranks such as 3 or 1,3"));
    }
  }
  return ranks;
}

}  // namespace phalanx::client
