// client/interrupt.h: signals as events, for commands that wait.
//
// While an Interrupt lives, its signals do not end the process; a thread of its own calls `notify`
// with each that arrives. Children made meanwhile must restore the signal mask (client/child.h
// does).
#pragma once

#include <signal.h>

#include <functional>
#include <initializer_list>
#include <thread>

namespace phalanx::client {

// Make it before other threads, which inherit the blocked signals. Not thread-safe itself; `notify`
// is called on its thread, one signal at a time.
class Interrupt {
 public:
  Interrupt(std::initializer_list<int> signals, std::function<void(int)> notify);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  void Run();

  const std::function<void(int)> notify_;
  sigset_t before_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  // Last member: reads the others.
  std::thread thread_;
};

}  // namespace phalanx::client
