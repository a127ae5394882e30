// worker/checkpoint/pinned_mapping.h: host memory for copies of state, pinned piece by piece.
//
// CUDA takes a lock while it pins memory, for some 0.1 s and more a gigabyte, and whoever launches
// a kernel meanwhile waits for it. So memory is pinned and let go in pieces; who does so beside
// training makes a pause after each (PinningThread), and training waits for one piece at most.
//
// Pages are there before they are pinned: the kernel clears them outside that lock, which a few
// threads do several times as fast as one.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"

namespace phalanx::checkpoint {

// How memory is pinned, on any thread; empty: not at all.
struct Pinning {
  std::function<bool(std::byte* memory, size_t bytes)> pin;
  std::function<void(std::byte* memory)> unpin;
};
// For copies from and to the device; empty for a CPU.
Pinning PinningOf(c10::Device device);

class PinnedMapping {
 public:
  // A copy between host and device crosses no multiple of it (sections.h, CopyOut): nobody says
  // whether CUDA copies into two pieces that were pinned one by one.
  static constexpr int64_t kPieceBytes = int64_t{64} << 20;

  // Maps `bytes` of the file, shared, or of no file (-1). Nothing is pinned yet. Errors:
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<PinnedMapping>> Map(int fd, int64_t bytes, Pinning pinning);
  // Without pauses.
  ~PinnedMapping();
  PinnedMapping(const PinnedMapping&) = delete;

  // After each piece `go_on` is asked whether to go on; it may wait.
  using GoOn = absl::FunctionRef<bool()>;
  // Makes all pages of a file, or all that are to be pinned, and pins them. What is done already
  // stays done. Errors: ResourceExhausted; Cancelled if it is not to go on.
  absl::Status Pin(GoOn go_on);
  // Lets go what is pinned, the last piece first. Returns whether all of it went.
  bool Unpin(GoOn go_on);

  std::byte* data() { return memory_; }
  const std::byte* data() const { return memory_; }
  int64_t bytes() const { return bytes_; }
  // Of them pinned, or, where nothing is, made.
  int64_t pinned() const { return done_; }
  // How long others may have waited for the last piece.
  std::chrono::steady_clock::duration locked() const { return locked_; }
  // Whether all is done that Pin does.
  bool ready() const { return done_ == bytes_; }
  // Whether it is `bytes` of that file; of no file: whether it has as many.
  bool Is(int fd, int64_t bytes) const;

 private:
  PinnedMapping(int64_t bytes, Pinning pinning) : bytes_(bytes), pinning_(std::move(pinning)) {}
  // Of some pieces that follow each other.
  absl::Status MakePages(std::byte* first, int64_t bytes) const;

  const int64_t bytes_;
  const Pinning pinning_;
  std::byte* memory_ = nullptr;
  bool of_file_ = false;
  dev_t device_ = 0;
  ino_t file_ = 0;
  int64_t done_ = 0;  // bytes, whole pieces but for the last
  std::chrono::steady_clock::duration locked_{};
  int64_t populated_ = 0;  // bytes whose pages are there; at least done_
};

}  // namespace phalanx::checkpoint
