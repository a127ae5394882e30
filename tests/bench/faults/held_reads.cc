// Loaded into ranks before all else (LD_PRELOAD): storage that does not answer.
//
// While the file that PHALANX_HELD_READS names holds the number of this process, what reads a shard
// of data from it waits, as it would for a disk or a server of files. Everything else goes on.
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

// Whether the descriptor is of a file that is named so.
bool IsShard(int descriptor) {
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path));
  constexpr char kEnd[] = ".tar";
  constexpr ssize_t kLength = sizeof(kEnd) - 1;
  return length > kLength && std::memcmp(path + length - kLength, kEnd, kLength) == 0;
}

bool IsHeld() {
  const char* const name = std::getenv("PHALANX_HELD_READS");
  std::FILE* const file = name == nullptr ? nullptr : std::fopen(name, "re");
  if (file == nullptr) return false;
  long process = 0;
  const bool held = std::fscanf(file, "%ld", &process) == 1 && process == getpid();
  std::fclose(file);
  return held;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] ssize_t pread(int descriptor, void* buffer, size_t bytes,
                                                        off_t offset) {
  using Read = ssize_t (*)(int, void*, size_t, off_t);
  static const Read next = reinterpret_cast<Read>(dlsym(RTLD_NEXT, "pread"));
  if (IsShard(descriptor)) {
    while (IsHeld()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return next(descriptor, buffer, bytes, offset);
}
