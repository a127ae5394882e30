// core/posix/unique_fd.h: a file descriptor with one owner, who closes it.
#pragma once

#include <utility>

namespace phalanx {

// Not thread-safe.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.Release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  // Closes what it holds, and holds `fd`.
  void reset(int fd = -1);
  // Gives the descriptor to the caller to close.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// From then on standard input, output and error are open: whichever this process was started
// without is /dev/null, so that no file or connection takes its number and gets what is printed.
// Writing to standard output fails then, as it did before. Called before anything is opened.
void HoldStandardStreams();

}  // namespace phalanx
