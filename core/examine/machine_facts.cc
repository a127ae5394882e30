#include "core/examine/machine_facts.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/random_word.h"
#include "core/posix/unique_fd.h"

namespace phalanx::examine {
namespace {

template <typename Function>
Function Symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

// The handle stays open, for the libraries may keep threads; another one of the same library is the
// same.
void* Open(const char* name, LibraryFacts& facts) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  facts.found = library != nullptr;
  if (library == nullptr) {
    const char* why = dlerror();
    facts.error = why == nullptr ? "cannot be loaded" : why;
  }
  return library;
}

void ReadDriver(MachineFacts& facts) {
  void* library = Open("libnvidia-ml.so.1", facts.driver);
  if (library == nullptr) return;
  const auto init = Symbol<int (*)()>(library, "nvmlInit_v2");
  const auto text = Symbol<const char* (*)(int)>(library, "nvmlErrorString");
  const auto version = Symbol<int (*)(char*, unsigned int)>(library, "nvmlSystemGetDriverVersion");
  const auto count = Symbol<int (*)(unsigned int*)>(library, "nvmlDeviceGetCount_v2");
  const auto shutdown = Symbol<int (*)()>(library, "nvmlShutdown");
  if (init == nullptr || text == nullptr || version == nullptr || count == nullptr ||
      shutdown == nullptr) {
    facts.driver.error = "lacks functions of NVML";
    return;
  }
  if (const int result = init(); result != 0) {
    facts.driver.error = text(result);
    return;
  }
  char name[96] = {};
  if (version(name, sizeof(name) - 1) == 0) facts.driver.version = name;
  unsigned int gpus = 0;
  if (const int result = count(&gpus); result != 0) facts.driver.error = text(result);
  facts.gpus = static_cast<int32_t>(gpus);
  shutdown();  // one of as many as there were beginnings
}

void ReadNccl(LibraryFacts& facts) {
  void* library = Open("libnccl.so.2", facts);
  if (library == nullptr) return;
  const auto version = Symbol<int (*)(int*)>(library, "ncclGetVersion");
  int number = 0;
  if (version == nullptr || version(&number) != 0) return;
  // 21803 is 2.18.3; before 2.9 it was 2803.
  const int thousand = number >= 10000 ? 10000 : 1000;
  facts.version = absl::StrCat(number / thousand, ".", number % thousand / 100, ".", number % 100);
}

std::optional<bool> ClockSynchronised() {
  timex state = {};
  const int result = adjtimex(&state);
  if (result < 0) return std::nullopt;
  return result != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

int64_t Limit(__rlimit_resource resource, bool hard) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return kUnlimited;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? kUnlimited : static_cast<int64_t>(value);
}

void ReadHost(MachineFacts& facts) {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) {
    facts.host_error = std::strerror(errno);
    return;
  }
  facts.host = name;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(name, nullptr, &hints, &found); error != 0) {
    facts.host_error = gai_strerror(error);
    return;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  facts.host_is_loopback = true;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    bool loopback = false;
    if (one->ai_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(one->ai_addr);
      loopback = (ntohl(address->sin_addr.s_addr) >> 24) == 127;
    } else if (one->ai_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(one->ai_addr);
      loopback = IN6_IS_ADDR_LOOPBACK(&address->sin6_addr);
    }
    facts.host_is_loopback &= loopback;
  }
}

// Of NFS, CIFS/SMB2, Lustre, GPFS, BeeGFS, CephFS, FUSE (GlusterFS, s3fs, ...) and 9p.
bool IsOfNetwork(const struct statfs& system) {
  constexpr uint32_t kMagics[] = {0x6969,     0xFF534D42, 0xFE534D42, 0x0BD00BD0, 0x47504653,
                                  0x19830326, 0x00C36400, 0x65735546, 0x01021997};
  const auto magic = static_cast<uint32_t>(system.f_type);
  return std::find(std::begin(kMagics), std::end(kMagics), magic) != std::end(kMagics);
}

std::string Failed(absl::string_view what) {
  return absl::StrCat(what, ": ", std::strerror(errno));
}

// What ranks do with files: write one aside, sync it and rename it. Says in `facts` what fails.
void TryFolder(const std::string& folder, FolderFacts& facts) {
  const auto fail = [&facts](absl::string_view what) {
    facts.full = errno == ENOSPC;
    facts.error = Failed(what);
  };
  // Other nodes, whose processes may have the same number, try it at the same time.
  const std::string draft = absl::StrCat(folder, "/.phalanx-doctor.", absl::Hex(RandomWord()));
  const std::string whole = draft + ".whole";
  UniqueFd file(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.is_open()) return fail("a file cannot be made in it");
  if (write(file.get(), "x", 1) != 1) {
    fail("a file in it cannot be written");
  } else if (fsync(file.get()) != 0) {
    fail("a file in it cannot be synced");
  }
  file.reset();
  if (facts.error.empty() && rename(draft.c_str(), whole.c_str()) != 0) {
    fail("a file in it cannot be renamed");
  }
  unlink(draft.c_str());
  unlink(whole.c_str());
}

constexpr size_t kMarkDigits = 16;

// Empty: there is none, or it is another file.
std::string ReadMark(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  char text[kMarkDigits + 1];
  if (!file.is_open() || read(file.get(), text, sizeof(text)) != ssize_t{sizeof(text)}) return "";
  const absl::string_view mark(text, kMarkDigits);
  return std::all_of(mark.begin(), mark.end(),
                     [](unsigned char c) { return absl::ascii_isxdigit(c); })
             ? std::string(mark)
             : "";
}

std::string MarkOf(const std::string& folder) {
  const std::string path = folder + "/.phalanx-folder";
  if (std::string mark = ReadMark(path); !mark.empty()) return mark;
  const std::string draft = absl::StrCat(folder, "/.phalanx-doctor.", absl::Hex(RandomWord()));
  const std::string text = absl::StrCat(absl::Hex(RandomWord(), absl::kZeroPad16), "\n");
  UniqueFd file(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return "";
  const bool whole =
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(file.get()) == 0;
  file.reset();
  // Of machines that come at the same time one is first.
  if (whole) static_cast<void>(link(draft.c_str(), path.c_str()));
  unlink(draft.c_str());
  return ReadMark(path);
}

int32_t CountGpuFiles() {
  using Entries = std::filesystem::directory_iterator;
  int32_t count = 0;
  std::error_code error;  // no /dev, no GPUs
  for (Entries entry("/dev", error); !error && entry != Entries(); entry.increment(error)) {
    const std::string file = entry->path().filename();
    absl::string_view name = file;
    int32_t number = 0;
    if (absl::ConsumePrefix(&name, "nvidia") && absl::SimpleAtoi(name, &number)) ++count;
  }
  return count;
}

FolderFacts ReadFolder(const std::string& path, bool is_written, bool marked) {
  FolderFacts facts{.path = path, .is_written = is_written};
  struct stat info = {};
  struct statfs system = {};
  if (stat(path.c_str(), &info) != 0 || statfs(path.c_str(), &system) != 0) {
    facts.error = std::strerror(errno);
  } else if (!S_ISDIR(info.st_mode)) {
    facts.error = "is no folder";
  } else {
    facts.on_network = IsOfNetwork(system);
    facts.free_bytes = static_cast<int64_t>(system.f_bavail) * system.f_bsize;
    if (is_written) {
      TryFolder(path, facts);
      facts.refused = !facts.error.empty() && access(path.c_str(), W_OK) != 0 && errno == EACCES;
      if (marked && facts.error.empty()) facts.mark = MarkOf(path);
    } else if (access(path.c_str(), R_OK | X_OK) != 0) {
      facts.error = Failed("files in it cannot be read");
    }
  }
  return facts;
}

}  // namespace

MachineFacts ReadMachine(const Folders& folders) {
  MachineFacts facts;
  facts.gpu_files = CountGpuFiles();
  ReadDriver(facts);
  if (facts.gpu_files > 0 || facts.gpus > 0) ReadNccl(facts.nccl);
  facts.clock_synchronised = ClockSynchronised();
  struct statvfs shared = {};
  if (statvfs("/dev/shm", &shared) == 0) {
    facts.shared_memory_bytes = static_cast<int64_t>(shared.f_blocks * shared.f_frsize);
  }
  facts.limits = {.open_files = Limit(RLIMIT_NOFILE, true),
                  .locked_bytes = Limit(RLIMIT_MEMLOCK, false),
                  .file_bytes = Limit(RLIMIT_FSIZE, false),
                  .processes = Limit(RLIMIT_NPROC, false)};
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> facts.ports_first >> facts.ports_last;
  ReadHost(facts);
  for (const std::string& folder : folders.read)
    facts.folders.push_back(ReadFolder(folder, false, false));
  for (const std::string& folder : folders.write)
    facts.folders.push_back(ReadFolder(folder, true, folders.marked));
  if (!folders.state.empty()) facts.state = ReadFolder(folders.state, true, false);
  return facts;
}

}  // namespace phalanx::examine
