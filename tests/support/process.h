// tests/support/process.h: processes under test.
//
// What goes wrong throws std::runtime_error: a test fails, the benchmark ends. Every process gets
// SIGKILL when this program ends, however it ends, so make them on the main thread. Each carries a
// mark in its environment, which its own children inherit: what it leaves behind can be found by
// it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace phalanx::support {

// Past it a test gives up. Nothing takes as long on a machine that works.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Throws unless `condition`.
void Require(bool condition, const std::string& message);

// Watches a process that need not be a child.
class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t pid);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch& operator=(ProcessWatch&&) = delete;

  pid_t pid() const { return pid_; }
  // False: it still lives at the deadline.
  bool AwaitEnd(absl::Duration patience = kPatience) const;
  bool HasEnded() const { return AwaitEnd(absl::ZeroDuration()); }
  // SIGSTOP. Behind it none of its threads runs any more: they stop one by one.
  void Stop() const;
  int descriptor() const { return descriptor_; }

 private:
  pid_t pid_;
  int descriptor_;
};

// A child. Killed and reaped by the destructor.
class Process {
 public:
  // Starts argv[0] (a path) with stdout and stderr in the files named; one file may be both.
  Process(const std::vector<std::string>& argv, const std::string& mark, const std::string& out,
          const std::string& talk);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return watch_.pid(); }
  const ProcessWatch& watch() const { return watch_; }
  // Behind SIGSTOP none of its threads runs any more.
  void Signal(int number) const;
  // Waits for its end; what waitpid said.
  int Wait();
  // The same, for a process that is to exit of itself; -1 if a signal ended it.
  int WaitExitCode();

 private:
  void AwaitStop() const;

  ProcessWatch watch_;
  bool reaped_ = false;
  int status_ = 0;
};

// A program of this build: BinDir()/`name`. A path stays as it is: a program of another one.
std::string Program(const std::string& name);

// What a process said: on stdout and on stderr.
struct Finished {
  int exit_code = 0;  // -1: a signal ended it
  std::string out, talk;
};
Finished RunToEnd(const std::vector<std::string>& argv);

// Waits until `path` is there, as writers of ready files put it: whole, by rename. Throws if
// `writer` ends before.
void AwaitFile(const std::string& path, const Process& writer);
// Waits until the file at `path` holds `text`. Throws if `writer` ends without that.
void AwaitText(const std::string& path, const std::string& text, const Process& writer);

// Living processes whose environment carries the mark; zombies are none.
std::vector<pid_t> ProcessesMarked(const std::string& mark);
// A mark that no other process has.
std::string NewMark();

std::string ReadText(const std::string& path);

}  // namespace phalanx::support
