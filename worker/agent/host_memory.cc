#include "worker/agent/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace phalanx::agent {
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

absl::StatusOr<UniqueFd> MakeBuffer(const std::string& name, int64_t bytes) {
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd.is_open() || ftruncate(fd.get(), bytes) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make a host buffer of ", bytes, " bytes: ", strerror(errno)));
  }
  return fd;
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

absl::StatusOr<std::array<int, 2>> HostMemory::BuffersOf(JobId job, int32_t rank, int64_t bytes) {
  if (bytes < 1 || bytes > std::numeric_limits<int64_t>::max() / 4) {
    return absl::InvalidArgumentError(absl::StrCat("a host buffer of ", bytes, " bytes"));
  }
  Buffers& buffers = buffers_[{job, rank}];
  if (buffers.bytes != bytes) {
    bytes_ -= 2 * buffers.bytes;
    buffers = {};
    const int64_t available = available_();
    if (available > 0 && 2 * bytes > available) {
      return absl::ResourceExhaustedError(
          absl::StrCat("rank ", rank, " needs two host buffers of ", bytes,
                       " bytes for its optimizer state; the node has ", available, " available"));
    }
    for (UniqueFd& fd : buffers.fds) {
      auto made = MakeBuffer(absl::StrCat("phalanx-", ToString(job), "-rank-", rank), bytes);
      if (!made.ok()) return made.status();
      fd = *std::move(made);
    }
    buffers.bytes = bytes;
    bytes_ += 2 * bytes;
  }
  return std::array<int, 2>{buffers.fds[0].get(), buffers.fds[1].get()};
}

void HostMemory::Free(JobId job) {
  for (auto entry = buffers_.begin(); entry != buffers_.end();) {
    if (job != JobId{} && entry->first.first != job) {
      ++entry;
      continue;
    }
    bytes_ -= 2 * entry->second.bytes;
    entry = buffers_.erase(entry);
  }
}

}  // namespace phalanx::agent
