// core/posix/activity.h: what a thread is doing, for somebody who watches it: it works, or it
// waits.
//
// The watcher reads one word. ShowsWork: the thread works, and has not waited since the word became
// what it is. So one that stays so for longer than any piece of work takes is of a thread that
// hangs. ShowsNeed: it waits for what only others can bring about, its device or other ranks, and
// has since the word became what it is: where all that could bring it about show the same, for
// long, nobody gets any further. Neither: it waits for something else, such as data or storage, or
// does nothing that is watched, for however long.
//
//   ActivityOfThread shown(word);       once, on the thread
//   Working working;                    in it, around what is to be watched
//   working.Next();                     between two pieces of work
//   Waiting waiting;                    around a wait, wherever it is
//   Waiting waiting(Waiting::kNeed);    the same, for the device or for other ranks
//   SecondsWaited()                     how long the thread has waited in its work, in all
//
// On a thread that shows nothing all of them cost a look at a thread-local pointer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace phalanx {

// `word` outlives it; nullptr: nobody watches. One at a time on a thread.
class ActivityOfThread {
 public:
  explicit ActivityOfThread(std::atomic<uint64_t>* word);
  ~ActivityOfThread();
  ActivityOfThread(const ActivityOfThread&) = delete;
  ActivityOfThread& operator=(const ActivityOfThread&) = delete;
};

class Working {
 public:
  Working();
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;
  void Next();
};

// In what is not watched it changes nothing. In another wait the inner one counts, until it ends.
class Waiting {
 public:
  enum For : uint8_t { kAnything, kNeed };

  explicit Waiting(For what = kAnything);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const uint64_t before_;                        // what the thread did, to which it goes back
  std::chrono::steady_clock::time_point begin_;  // of a wait that interrupts work
};

// Of this thread, in waits that have ended and that interrupted work, since it began to show what
// it does.
double SecondsWaited();

inline bool ShowsWork(uint64_t word) { return word % 2 == 1; }
inline bool ShowsNeed(uint64_t word) { return word % 8 == 2; }

}  // namespace phalanx
