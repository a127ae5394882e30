#include "tests/bench/heartbeats/fleet.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {

Fleet::Fleet(const std::string& address, int64_t count, NodeCertificates* certificates,
             const Kind& kind, const Daemon::Told& told) {
  constexpr absl::Duration kInterval = absl::Seconds(3);
  // As in the coordinator (coordinator/rpc/server.cc): with thousands of connections the search for
  // deadlocks took more than a third of this process's time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::Time next = absl::Now() + kInterval;
  for (int64_t i = 0; i < count; ++i) {
    daemons_.push_back(std::make_unique<Daemon>(
        address,
        certificates != nullptr ? certificates->Of(NameOfNode(i))
                                : grpc::InsecureChannelCredentials(),
        Daemon::Machine{.number = i, .device_kind = kind.device_kind, .devices = kind.devices},
        told));
    daemons_.back()->AwaitWelcome();
    if (absl::Now() < next) continue;
    for (const auto& daemon : daemons_) daemon->Heartbeat(0);
    next = absl::Now() + kInterval;
  }
}

Fleet::~Fleet() {
  for (const auto& daemon : daemons_) daemon->Leave();
}

size_t Fleet::lost() const {
  return static_cast<size_t>(std::count_if(daemons_.begin(), daemons_.end(),
                                           [](const auto& daemon) { return daemon->ended(); }));
}

void Fleet::Step(int64_t job, int64_t step) const {
  for (const auto& daemon : daemons_) daemon->Step(job, step);
}

void Fleet::Succeed(int64_t job, int64_t step) const {
  for (const auto& daemon : daemons_) daemon->Succeed(job, step);
}

absl::Time Fleet::Kill(int64_t job, int32_t rank) const {
  // A job runs once its ranks are assigned, which its daemons may be told a little later.
  const absl::Time end = absl::Now() + support::kPatience;
  auto has = daemons_.end();
  while (true) {
    has = std::find_if(daemons_.begin(), daemons_.end(),
                       [&](const auto& daemon) { return daemon->Has(job, rank); });
    if (has != daemons_.end()) break;
    support::Require(absl::Now() < end,
                     absl::StrCat("rank ", rank, " of job-", job, " is on no node"));
    absl::SleepFor(absl::Milliseconds(1));
  }
  const absl::Time start = absl::Now();
  (*has)->Kill(job, rank);
  return start;
}

Heartbeats::Heartbeats(const Fleet& fleet, const Pace& pace, Lateness* lateness)
    : thread_([this, &fleet, pace, lateness](const std::stop_token& stop) {
        const auto count = static_cast<int64_t>(fleet.size());
        auto next = std::chrono::steady_clock::now();
        for (int64_t turn = 0; !stop.stop_requested(); ++turn) {
          const int64_t first = turn % pace.times * count / pace.times;
          const int64_t end = (turn % pace.times + 1) * count / pace.times;
          for (int64_t i = first; i < end; ++i) {
            const auto node = static_cast<size_t>(i);
            fleet.node(node).Heartbeat(lateness != nullptr ? lateness->Send(node) : 0);
          }
          sent_ += end - first;
          std::this_thread::sleep_until(next += pace.interval / pace.times);
        }
      }) {}

}  // namespace phalanx::coordinator
