// tests/bench/heartbeats/fleet.h: many nodes of one coordinator, and who sends their heartbeats.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tests/bench/heartbeats/daemon.h"
#include "tests/bench/heartbeats/lateness.h"
#include "tests/bench/heartbeats/nodes.h"

namespace phalanx::coordinator {

// Nodes node-0, node-1 and so on. Made and ended by one thread; else thread-safe.
class Fleet {
 public:
  struct Kind {
    std::string device_kind = "gpu";
    int32_t devices = 8;
  };
  // They join one after the other; those that are there send heartbeats until all are.
  // `certificates`: of each, or null for plaintext. Throws std::runtime_error where one is not let
  // in.
  Fleet(const std::string& address, int64_t count, NodeCertificates* certificates, const Kind& kind,
        const Daemon::Told& told = nullptr);
  // All sessions end at once.
  ~Fleet();

  size_t size() const { return daemons_.size(); }
  Daemon& node(size_t number) const { return *daemons_[number]; }
  // Sessions that are over.
  size_t lost() const;

  // Of the ranks of the job, wherever they are.
  void Step(int64_t job, int64_t step) const;
  void Succeed(int64_t job, int64_t step) const;
  // When its node began to say so. Throws std::runtime_error where the rank is nowhere.
  absl::Time Kill(int64_t job, int32_t rank) const;

 private:
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

// Sends a heartbeat of each node in each interval until it goes, at so many times of the interval.
class Heartbeats {
 public:
  struct Pace {
    std::chrono::nanoseconds interval = std::chrono::seconds(1);
    int64_t times = 10;
  };
  // `lateness`: told of each before it is sent, or null.
  Heartbeats(const Fleet& fleet, const Pace& pace, Lateness* lateness = nullptr);
  int64_t sent() const { return sent_; }

 private:
  std::atomic<int64_t> sent_ = 0;
  std::jthread thread_;  // last member: joins before the rest ends
};

}  // namespace phalanx::coordinator
