// worker/agent/death_watch.h: tells at once when a rank process has died (channel/life_page.h).
//
// A thread for each process: it sleeps in the kernel, and one thread can wait for one robust mutex
// only. A node has few ranks.
#pragma once

#include <cstdint>
#include <stop_token>
#include <thread>

#include "core/posix/unique_fd.h"
#include "worker/channel/life_page.h"

namespace phalanx::agent {

// Not thread-safe.
class DeathWatch {
 public:
  // Watches nothing yet.
  explicit DeathWatch(channel::LifePage page);
  // Waits for the thread, at most kLookInterval and a little.
  ~DeathWatch();

  // Once the process has said something. Nothing of one that does not hold its page is ever told.
  void Begin();
  // How often the process has shown that it runs.
  uint64_t beats() const { return page_.beats(); }
  // What its thread that trains shows of its work (core/posix/activity.h).
  uint64_t work() const { return page_.work(); }
  // Readable, for ever, once the process has died.
  int fd() const { return died_.get(); }

 private:
  void Watch(std::stop_token stop);

  channel::LifePage page_;
  const UniqueFd died_;
  std::jthread thread_;
};

}  // namespace phalanx::agent
