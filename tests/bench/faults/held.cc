#include "tests/bench/faults/held.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace phalanx::e2e {
namespace {

constexpr double kGrowthMax = 0.1;

}  // namespace

Held HeldBy(const std::vector<pid_t>& processes) {
  Held held{.processes = static_cast<int64_t>(processes.size())};
  for (const pid_t pid : processes) {
    std::error_code ended;
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", pid, "/fd"), ended);
    held.descriptors += std::distance(begin(all), end(all));
    std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
    for (std::string line; std::getline(status, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      int64_t kib = 0;
      if (absl::StartsWith(line, "VmRSS:") && words.size() > 1 && absl::SimpleAtoi(words[1], &kib))
        held.resident_kib += kib;
    }
  }
  return held;
}

nlohmann::ordered_json ToJson(const Held& held) {
  return {{"resident_kib", held.resident_kib},
          {"descriptors", held.descriptors},
          {"processes", held.processes}};
}

bool IsFlat(const Held& first, const Held& end) {
  return end.processes <= first.processes && end.descriptors <= first.descriptors &&
         static_cast<double>(end.resident_kib) <=
             (1 + kGrowthMax) * static_cast<double>(first.resident_kib);
}

}  // namespace phalanx::e2e
