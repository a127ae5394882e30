#include "core/posix/available_memory.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"

namespace phalanx {
namespace {

// -1: the file does not say.
int64_t NumberIn(const char* path) {
  std::ifstream file(path);
  std::string text;
  int64_t value = -1;
  return file >> text && absl::SimpleAtoi(text, &value) ? value : -1;
}

int64_t AvailableOnNode() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("MemAvailable:", 0) != 0) continue;
    const size_t digits = line.find_first_of("0123456789");
    int64_t kibibytes = 0;
    if (digits == std::string::npos ||
        !absl::SimpleAtoi(line.substr(digits, line.find(' ', digits) - digits), &kibibytes))
      break;
    return kibibytes << 10;
  }
  return -1;
}

}  // namespace

int64_t AvailableHostMemory() {
  int64_t available = AvailableOnNode();
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max");
  const int64_t current = NumberIn("/sys/fs/cgroup/memory.current");
  if (limit >= 0 && current >= 0) {
    const int64_t left = std::max<int64_t>(limit - current, 1);
    available = available < 0 ? left : std::min(available, left);
  }
  return std::max<int64_t>(available, 0);
}

}  // namespace phalanx
