// worker/channel/life_page.h: memory that a daemon and one of its rank processes share, through
// which the daemon learns of the process's death at once.
//
// The kernel tears a dead process's memory down before it closes its sockets and before its parent
// can reap it, which takes half a second where a GPU has work queued. Robust mutexes it lets go
// first of all. So the main thread of the process holds one for its life (Hold), and a thread of
// the daemon waits for it (AwaitEnd). A process that ends in good order lets go of it (LetGo) and
// is then known by its exit alone.
//
// A process that is stopped is not dead. So a thread of it that does nothing else counts on (Beat):
// where that stands still, the process does not run, whatever its other threads wait for.
//
// A thread that hangs in a process that runs shows in the word of its work (core/posix/activity.h).
//
// The page is descriptor kLifePageFd of the rank, sealed in its size: nothing that the rank does to
// it makes the daemon's reads fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/posix/unique_fd.h"

namespace phalanx::channel {

inline constexpr int kLifePageFd = 4;

// One mapping. The pages behind it live as long as anybody maps them.
class LifePage {
 public:
  struct Made;
  // Of the daemon: a page and the descriptor for the rank. Errors: Unavailable.
  static absl::StatusOr<Made> Make();
  // Of the rank. Errors: FailedPrecondition: `fd` is no such page.
  static absl::StatusOr<LifePage> Open(int fd);

  LifePage(LifePage&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  LifePage& operator=(LifePage&& other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~LifePage();

  // Of the rank, both of the thread whose end is the process's: its main thread. Once each.
  void Hold();
  void LetGo();

  // Of any thread of the rank, again and again.
  void Beat();

  // Of the thread that trains. Never nullptr while the page lives.
  std::atomic<uint64_t>* activity();

  // How often.
  uint64_t beats() const;
  uint64_t work() const;
  // Whether the rank has held it, from before it says anything else.
  bool was_held() const;

  enum class End {
    kNone,     // not within the time
    kInOrder,  // the rank let go of it
    kDied,     // its main thread has ended and held it
  };
  // Of one thread of the daemon, after was_held().
  End AwaitEnd(absl::Duration timeout);

 private:
  struct Shared;
  explicit LifePage(Shared* shared) : shared_(shared) {}
  static absl::StatusOr<LifePage> Map(int fd);

  Shared* shared_ = nullptr;
};

struct LifePage::Made {
  LifePage page;
  UniqueFd for_rank;
};

}  // namespace phalanx::channel
