#include "tests/sim/cluster/faults.h"

#include <utility>

namespace phalanx::sim {

void Faults::Start(absl::Duration interval) {
  interval_ = interval;
  on_ = true;
  Next();
}

void Faults::Stop() {
  on_ = false;
  ++generation_;
  shared_.bad_context = 0;
  for (const std::unique_ptr<NodeHost>& node : nodes_) node->start_failure = 0;
  if (under_way_ == 0) quiet_since_ = timeline_.now();
}

// Every third fault is followed by another one before its recovery is over.
void Faults::Next() {
  const absl::Duration delay = count_ > 0 && timeline_.Chance(0.33)
                                   ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(2))
                                   : timeline_.Exponential(interval_);
  timeline_.After(delay, [this, generation = generation_] {
    if (generation != generation_) return;
    Break();
    Next();
  });
}

void Faults::Lasts(absl::Duration duration, std::function<void()> undo) {
  ++under_way_;
  timeline_.After(duration, [this, undo = std::move(undo)] {
    undo();
    if (--under_way_ == 0) quiet_since_ = timeline_.now();
  });
}

RankProcess* Faults::SomeProcess() {
  std::vector<RankProcess*> all;
  for (const std::unique_ptr<NodeHost>& node : nodes_) {
    for (RankProcess* process : node->processes()) all.push_back(process);
  }
  return all.empty() ? nullptr : all[timeline_.Below(all.size())];
}

void Faults::Break() {
  ++count_;
  if (under_way_ == 0) quiet_since_ = timeline_.now();
  const uint64_t kind = timeline_.Below(100);
  if (kind < 50) return BreakRank();
  if (kind < 65) return BreakNode();
  if (kind < 85) return BreakNetwork();
  return BreakCoordinator();
}

void Faults::BreakRank() {
  RankProcess* process = SomeProcess();
  if (process == nullptr) return;
  const uint64_t kind = timeline_.Below(10);
  timeline_.Note("fault: process $1 of node $0, job $2, kind $3",
                 static_cast<int64_t>(process->node()), process->number().value,
                 process->job().value, static_cast<int64_t>(kind));
  if (kind < 6) return process->Die(0, 9);
  if (kind == 6) return process->Die(0, 11);
  if (kind == 7) return process->Die(1, 0);
  process->Suspend();
  NodeHost& node = *nodes_[process->node()];
  const auto number = process->number();
  const absl::Duration time = timeline_.Chance(0.5)
                                  ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(3))
                                  : timeline_.Between(absl::Seconds(3), absl::Seconds(60));
  Lasts(time, [&node, number, process] {
    // It may be gone, and another in its place in memory.
    for (RankProcess* living : node.processes()) {
      if (living == process && living->number() == number) return process->Resume();
    }
  });
}

void Faults::BreakNode() {
  NodeHost& node = SomeNode();
  const uint64_t kind = timeline_.Below(4);
  const auto index = static_cast<int64_t>(node.index());
  if (kind == 0) return node.Pause(timeline_.Between(absl::ZeroDuration(), absl::Seconds(30)));
  if (kind < 3) {
    timeline_.Note("fault: the daemon of node $0", index);
    node.Kill();
    return Lasts(timeline_.Between(absl::ZeroDuration(), absl::Seconds(60)),
                 [&node] { node.Start(); });
  }
  timeline_.Note("fault: the power of node $0", index);
  Cuts& cuts = shared_.network.cuts(node.index());
  ++cuts.up, ++cuts.down, ++cuts.peers;
  node.Kill(/*silent=*/true);
  Lasts(timeline_.Between(absl::Seconds(5), absl::Minutes(3)), [&node, &cuts] {
    --cuts.up, --cuts.down, --cuts.peers;
    node.Start();
  });
}

void Faults::BreakNetwork() {
  NodeHost& node = SomeNode();
  const uint64_t kind = timeline_.Below(8);
  timeline_.Note("fault: the network of node $0, kind $1", static_cast<int64_t>(node.index()),
                 static_cast<int64_t>(kind));
  if (kind < 3) {
    const uint64_t told = timeline_.Below(4);
    return node.BreakStream((told & 1) != 0, (told & 2) != 0);
  }
  Cuts& cuts = shared_.network.cuts(node.index());
  const bool up = kind != 4, down = kind != 5, peers = kind >= 6;
  cuts.up += up, cuts.down += down, cuts.peers += peers;
  const absl::Duration time = timeline_.Chance(0.5)
                                  ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(5))
                                  : timeline_.Between(absl::Seconds(5), absl::Seconds(90));
  Lasts(time, [&cuts, up, down, peers] { cuts.up -= up, cuts.down -= down, cuts.peers -= peers; });
}

void Faults::BreakCoordinator() {
  const uint64_t kind = timeline_.Below(4);
  if (kind == 0)
    return coordinator_.Pause(timeline_.Between(absl::ZeroDuration(), absl::Seconds(30)));
  if (kind == 1) {
    coordinator_.set_commit_time(timeline_.Between(absl::Milliseconds(20), absl::Seconds(2)));
    return Lasts(timeline_.Between(absl::Seconds(1), absl::Seconds(20)),
                 [this] { coordinator_.set_commit_time(absl::Milliseconds(1)); });
  }
  coordinator_.Crash();
  const absl::Duration time = timeline_.Chance(0.5)
                                  ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(2))
                                  : timeline_.Between(absl::Seconds(2), absl::Seconds(40));
  Lasts(time, [this] { coordinator_.Start(); });
}

}  // namespace phalanx::sim
