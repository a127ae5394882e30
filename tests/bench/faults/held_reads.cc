// Loaded into ranks before all else (LD_PRELOAD): storage that does not answer.
//
// While the file that PHALANX_HELD_READS names holds the number of this process and how names
// begin, what reads a shard of data of such a name waits, as it would for a disk or a server of
// files. Everything else goes on.
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

constexpr int kNameBytes = 64;

// The name of the shard that the descriptor is of, without its folders, into `name`; false: it is
// of none.
bool NameOfShard(int descriptor, std::string& name) {
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path));
  name.assign(path, length > 0 ? static_cast<size_t>(length) : 0);
  name.erase(0, name.rfind('/') + 1);
  return name.ends_with(".tar");
}

bool IsHeld(const std::string& shard) {
  const char* const name = std::getenv("PHALANX_HELD_READS");
  std::FILE* const file = name == nullptr ? nullptr : std::fopen(name, "re");
  if (file == nullptr) return false;
  long process = 0;
  char begin[kNameBytes] = "";
  const bool holds = std::fscanf(file, "%ld %63s", &process, begin) == 2;
  std::fclose(file);
  return holds && process == getpid() && shard.starts_with(begin);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] ssize_t pread(int descriptor, void* buffer, size_t bytes,
                                                        off_t offset) {
  using Read = ssize_t (*)(int, void*, size_t, off_t);
  static const Read next = reinterpret_cast<Read>(dlsym(RTLD_NEXT, "pread"));
  if (std::string shard; NameOfShard(descriptor, shard)) {
    while (IsHeld(shard)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return next(descriptor, buffer, bytes, offset);
}
