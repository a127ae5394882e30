// How soon each detector finds what is its own to find.
#include <map>
#include <string>

#include "tests/e2e/matrix/row.h"

namespace phalanx::e2e {
namespace {

// What a process, its daemon or a broken connection says: as long as a word about a peer waits for
// a better one, 300 ms, and as it takes to come.
constexpr absl::Duration kSaid = absl::Milliseconds(350);
// Between two looks of a daemon at its ranks.
constexpr absl::Duration kLook = absl::Seconds(1);

}  // namespace

std::optional<absl::Duration> DetectedWithin(const Row& row) {
  if (row.expected.cause.empty()) return std::nullopt;
  static const auto& silent = *new std::map<std::string, absl::Duration>{
      {"RankHung", absl::Seconds(5) + kLook},
      {"NoProgress", absl::Seconds(10) + kLook},
  };
  const auto found = silent.find(row.expected.cause);
  const absl::Duration of_cause = found == silent.end() ? absl::ZeroDuration() : found->second;
  return of_cause + row.unseen + kSaid;
}

}  // namespace phalanx::e2e
