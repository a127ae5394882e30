// A rank process without a model: says hello and does what the name of its job says.
//
//   wait     ready; SIGUSR1 makes it report one more step
//   exit-N   exits with N when it is to run
//   crash    dies of SIGSEGV when it is to run
//   shut     ready, then closes its channel and lives on
//   flood    ready, then sends a frame of 2 GiB and lives on
//   hang     ready, then ignores SIGTERM and never reads again
//   fork     ready; has a child that only waits
//   detach   as fork, but the child leaves the process group
//   chatty   prints 40,000 numbered lines, then is ready
//   babble   ready; has a child that prints lines for ever
//   linger   ready; SIGUSR2 ends its main thread, and the process stays until it is killed
//   binary   prints bytes that are no text and exits with 1
//
// It leaves an epoch when it is told to, after an event "Stopped". The first report of an epoch is
// an event "Up" whose message is "pid=P child=C fds=LIST index=PATH".
#include <dirent.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/channel/life_page.h"

namespace {

using phalanx::channel::LifePage;
using phalanx::v1::RankReport;
using phalanx::v1::RunEpoch;
using phalanx::v1::ToDaemon;
using phalanx::v1::ToRank;

constexpr absl::Duration kPatience = absl::Seconds(20);

// "wait" of "metadata: {name: wait}".
std::string BehaviourOf(const RunEpoch& run) {
  const std::string& text = run.assign().document().text();
  const size_t begin = text.find("name: ") + 6;
  return text.substr(begin, text.find_first_of("}\n,", begin) - begin);
}

std::string OpenDescriptors() {
  std::vector<int> numbers;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    int number = 0;
    if (absl::SimpleAtoi(entry->d_name, &number) && number != dirfd(folder)) {
      numbers.push_back(number);
    }
  }
  closedir(folder);
  std::sort(numbers.begin(), numbers.end());
  return absl::StrJoin(numbers, ",");
}

class FakeRank {
 public:
  int Run() {
    // Before the signal descriptor is made: what the daemon gave us and nothing else.
    descriptors_ = OpenDescriptors();
    life_ = *LifePage::Open(phalanx::channel::kLifePageFd);
    life_->Hold();
    ToDaemon hello;
    hello.mutable_hello()->set_pid(getpid());
    Send(hello);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    while (true) {
      pollfd fds[2] = {{channel_.fd(), POLLIN, 0}, {signal_fd, POLLIN, 0}};
      poll(fds, 2, -1);
      if (fds[1].revents != 0) {
        signalfd_siginfo info;
        if (read(signal_fd, &info, sizeof(info)) == sizeof(info)) ReportStep();
      }
      if (fds[0].revents == 0) continue;
      while (true) {
        ToRank order;
        const absl::Status received = channel_.Receive(&order, absl::ZeroDuration());
        if (received.code() == absl::StatusCode::kDeadlineExceeded) break;
        if (!received.ok()) return 3;
        if (order.has_quit()) {
          life_->LetGo();
          return 0;
        }
        Obey(order);
      }
    }
  }

 private:
  void Obey(const ToRank& order) {
    if (order.has_run()) Begin(order.run());
    if (order.has_stop()) {
      ToDaemon told = Report();
      told.mutable_report()->mutable_event()->set_type("Stopped");
      Send(told);
      ToDaemon stopped;
      stopped.mutable_stopped()->set_epoch(order.stop().epoch());
      Send(stopped);
    }
  }

  void Send(const ToDaemon& message) {
    if (!channel_.Send(message, kPatience).ok()) std::_Exit(4);
  }

  ToDaemon Report() const {
    ToDaemon message;
    RankReport& report = *message.mutable_report();
    report.set_job(run_.assign().job());
    report.set_epoch(run_.assign().epoch());
    report.set_rank(run_.rank());
    return message;
  }

  void ReportStep() {
    ++step_;
    ToDaemon message = Report();
    message.mutable_report()->mutable_step()->set_step(step_);
    Send(message);
    ToDaemon progress;
    progress.mutable_progress()->set_epoch(run_.assign().epoch());
    progress.mutable_progress()->set_step(step_);
    Send(progress);
  }

  void Begin(const RunEpoch& run) {
    run_ = run;
    step_ = 0;
    const std::string behaviour = BehaviourOf(run);
    pid_t child = 0;
    if (behaviour == "fork" || behaviour == "detach" || behaviour == "babble") {
      child = fork();
      while (child == 0 && behaviour == "babble") std::puts("much talk about nothing");
      if (child == 0 && behaviour == "detach") setsid();
      while (child == 0) pause();
    }
    if (behaviour == "hang") std::signal(SIGTERM, SIG_IGN);
    if (behaviour == "linger") {
      // The other thread has its mask from its first instruction on: no signal finds it open.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, &before);
      std::thread([] {
        while (true) pause();
      }).detach();
      std::signal(SIGUSR2, [](int) { syscall(SYS_exit, 0); });
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    ToDaemon up = Report();
    up.mutable_report()->mutable_event()->set_type("Up");
    up.mutable_report()->mutable_event()->set_message(absl::StrCat(
        "pid=", getpid(), " child=", child, " fds=", descriptors_, " index=", run.data_index()));
    Send(up);
    if (behaviour == "crash") {
      std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would exit instead
      raise(SIGSEGV);
    }
    int code = 0;
    if (absl::StartsWith(behaviour, "exit-") && absl::SimpleAtoi(behaviour.substr(5), &code)) {
      std::fprintf(stderr, "about to exit with %d\n", code);
      std::_Exit(code);
    }
    if (behaviour == "binary") {
      std::fputs("\xFF\xFE is no text\n", stderr);
      std::_Exit(1);
    }
    if (behaviour == "chatty") {
      for (int i = 0; i < 40'000; ++i) std::printf("line %d of much talk about nothing\n", i);
      std::fflush(stdout);
    }
    ToDaemon ready = Report();
    ready.mutable_report()->mutable_ready();
    Send(ready);
    if (behaviour == "shut") channel_.Shutdown();
    if (behaviour == "flood") {
      const uint32_t length = 1u << 31;
      [[maybe_unused]] const ssize_t sent = write(channel_.fd(), &length, sizeof(length));
    }
    while (behaviour == "hang" || behaviour == "shut" || behaviour == "flood") pause();
  }

  phalanx::channel::FrameSocket channel_{phalanx::channel::kRankChannelFd};
  std::optional<LifePage> life_;
  std::string descriptors_;
  RunEpoch run_;
  int64_t step_ = 0;
};

}  // namespace

int main() { return FakeRank().Run(); }
