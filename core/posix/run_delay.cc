#include "core/posix/run_delay.h"

#include <cstdint>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace phalanx {

absl::Duration ParseRunDelay(absl::string_view schedstat) {
  const std::vector<absl::string_view> fields = absl::StrSplit(schedstat, ' ');
  int64_t nanoseconds = 0;
  if (fields.size() < 3 || !absl::SimpleAtoi(fields[1], &nanoseconds) || nanoseconds < 0)
    return absl::ZeroDuration();
  return absl::Nanoseconds(nanoseconds);
}

absl::Duration RunDelay(const std::string& thread) {
  std::ifstream file(absl::StrCat("/proc/", thread, "/schedstat"));
  std::string line;
  std::getline(file, line);
  return ParseRunDelay(line);
}

}  // namespace phalanx
