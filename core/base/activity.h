// core/base/activity.h: what a thread is doing, for somebody who watches it: it works, or it waits
// for others.
//
// The watcher reads one word. Odd: the thread works, and has not waited since the word became what
// it is. So one that stays odd and the same for longer than any piece of work takes is of a thread
// that hangs. Even: it waits, or does nothing that is watched, for however long.
//
//   ActivityOfThread shown(word);       once, on the thread
//   Working working;                    in it, around what is to be watched
//   working.Next();                     between two pieces of work
//   Waiting waiting;                    around a wait for others, wherever it is
//
// On a thread that shows nothing all of them cost a look at a thread-local pointer.
#pragma once

#include <atomic>
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

// In what is not watched it changes nothing.
class Waiting {
 public:
  Waiting();
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const bool ends_work_;
};

inline bool ShowsWork(uint64_t word) { return word % 2 == 1; }

}  // namespace phalanx
