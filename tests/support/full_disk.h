// tests/support/full_disk.h: a disk that is full, of which a test may have as much as it says.
#pragma once

#include <signal.h>
#include <sys/resource.h>

namespace phalanx::support {

// Files of this process do not grow beyond `bytes` while it lives: writes fail as on a disk that is
// full. One at a time.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

}  // namespace phalanx::support
