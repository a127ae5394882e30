#include "core/posix/process_usage.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace phalanx {
namespace {

int64_t OpenDescriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (folder == nullptr) return 0;
  int64_t count = -1;  // that of the folder
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') ++count;
  }
  return count;
}

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

int64_t ResidentBytesOf(int pid) {
  const std::string name = absl::StrCat("/proc/", pid, "/statm");
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(name.c_str(), "re"), &std::fclose);
  long long pages = 0;
  if (file == nullptr || std::fscanf(file.get(), "%*d %lld", &pages) != 1) return 0;
  return pages * sysconf(_SC_PAGESIZE);
}

ProcessUsage UsageOfThisProcess() {
  ProcessUsage usage{.resident_bytes = ResidentBytesOf(getpid()),
                     .open_descriptors = OpenDescriptors()};
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0)
    usage.cpu_seconds = SecondsOf(used.ru_utime) + SecondsOf(used.ru_stime);
  return usage;
}

}  // namespace phalanx
