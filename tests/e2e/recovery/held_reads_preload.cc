// Loaded into ranks before all else (LD_PRELOAD): storage that does not answer (held_reads.h).
//
// While the file that PHALANX_HELD_READS names holds the number of this process and how names
// begin, and is locked, what reads a shard of data of such a name waits, as it would for a disk or
// a server of files. Everything else goes on.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

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

void AwaitShard(const std::string& shard) {
  const char* const name = std::getenv("PHALANX_HELD_READS");
  std::FILE* const file = name == nullptr ? nullptr : std::fopen(name, "re");
  if (file == nullptr) return;
  long process = 0;
  char begin[kNameBytes] = "";
  const bool names = std::fscanf(file, "%ld %63s", &process, begin) == 2;
  if (names && process == getpid() && shard.starts_with(begin)) {
    while (flock(fileno(file), LOCK_SH) != 0 && errno == EINTR) {
    }
  }
  std::fclose(file);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] ssize_t pread(int descriptor, void* buffer, size_t bytes,
                                                        off_t offset) {
  using Read = ssize_t (*)(int, void*, size_t, off_t);
  static const Read next = reinterpret_cast<Read>(dlsym(RTLD_NEXT, "pread"));
  if (std::string shard; NameOfShard(descriptor, shard)) AwaitShard(shard);
  return next(descriptor, buffer, bytes, offset);
}
