#include "tests/sim/cluster/faults.h"

#include <utility>

#include "absl/types/span.h"
#include "worker/agent/machine/xid.h"

namespace phalanx::sim {

void Faults::Start(absl::Duration interval, const Kinds& kinds) {
  interval_ = interval;
  on_ = true;
  only_crashes_ = kinds.only_crashes;
  behind_ = kinds.behind;
  managing_ = kinds.managing;
  coordinator_.on_write = [this](const coordinator::JournalRecord& record) { OnWrite(record); };
  Next();
  if (only_crashes_) return;
  shared_.dies_moving = 0.005;
  shared_.dies_applying = 1e-5;
  shared_.slow_stream = 0.03;
}

void Faults::Stop() {
  on_ = false;
  ++generation_;
  shared_.bad_context = shared_.dies_moving = shared_.dies_applying = 0;
  shared_.slow_stream = 0;
  coordinator_.on_write = nullptr;
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
  if (only_crashes_) return CrashCoordinator();
  const uint64_t kind = timeline_.Below(100);
  if (kind < 45) return BreakRank();
  if (kind < 60) return BreakNode();
  if (kind < 80) return BreakNetwork();
  if (kind < 84) return BreakDevice();
  if (kind < 88) return BreakDisk();
  return BreakCoordinator();
}

void Faults::BreakRank() {
  RankProcess* process = SomeProcess();
  if (process == nullptr) return;
  const uint64_t kind = timeline_.Below(12);
  timeline_.Note("fault: process $1 of node $0, job $2, kind $3",
                 static_cast<int64_t>(process->node()), process->number().value,
                 process->job().value, static_cast<int64_t>(kind));
  if (kind < 6) return process->Die(0, 9);
  if (kind == 6) return process->Die(0, 11);
  if (kind == 7) return process->Die(1, 0);
  const bool hangs = kind >= 10;
  if (hangs) {
    if (process->current() == nullptr) return;  // it works at nothing
    process->Hang();
    if (timeline_.Chance(0.5)) return;  // for good: its daemon ends it
  } else {
    process->Suspend();
  }
  NodeHost& node = *nodes_[process->node()];
  const auto number = process->number();
  const absl::Duration time = timeline_.Chance(0.5)
                                  ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(3))
                                  : timeline_.Between(absl::Seconds(3), absl::Seconds(60));
  Lasts(time, [&node, number, process, hangs] {
    // It may be gone, and another in its place in memory.
    for (RankProcess* living : node.processes()) {
      if (living != process || living->number() != number) continue;
      return hangs ? process->GoOn() : process->Resume();
    }
  });
}

// What its driver reports (worker/agent/machine/xid.h). Most that are lost are repaired, and their
// daemons started again.
void Faults::BreakDevice() {
  NodeHost& node = SomeNode();
  const auto device = static_cast<int32_t>(timeline_.Below(static_cast<uint64_t>(node.devices())));
  const absl::Span<const agent::XidTraits> all = agent::AllXids();
  const agent::XidTraits& xid = all[timeline_.Below(all.size())];
  timeline_.Note("fault: device $1 of node $0, XID $2", static_cast<int64_t>(node.index()), device,
                 xid.xid);
  node.FaultDevice(device, xid.xid);
  if (xid.effect != agent::XidEffect::kDeviceLost || timeline_.Chance(0.3)) return;
  Lasts(timeline_.Between(absl::Seconds(5), absl::Minutes(3)), [this, &node] {
    node.Kill();
    timeline_.After(timeline_.Between(absl::ZeroDuration(), absl::Seconds(10)),
                    [&node] { node.Start(); });
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
  const uint64_t kind = timeline_.Below(behind_ ? 12 : 11);
  timeline_.Note("fault: the network of node $0, kind $1", static_cast<int64_t>(node.index()),
                 static_cast<int64_t>(kind));
  if (kind < 3) {
    const uint64_t told = timeline_.Below(4);
    return node.BreakStream((told & 1) != 0, (told & 2) != 0);
  }
  if (kind == 11) return node.MeetOlderCoordinator();
  if (kind >= 8) {
    const absl::Duration late = timeline_.Chance(0.5)
                                    ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(1))
                                    : timeline_.Between(absl::Seconds(1), absl::Seconds(30));
    return node.DelayStream(/*by_daemon=*/kind != 8, late);
  }
  Cuts& cuts = shared_.network.cuts(node.index());
  const bool up = kind != 4, down = kind != 5, peers = kind >= 6;
  cuts.up += up, cuts.down += down, cuts.peers += peers;
  const absl::Duration time = timeline_.Chance(0.5)
                                  ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(5))
                                  : timeline_.Between(absl::Seconds(5), absl::Seconds(90));
  Lasts(time, [&cuts, up, down, peers] { cuts.up -= up, cuts.down -= down, cuts.peers -= peers; });
}

void Faults::BreakDisk() {
  if (timeline_.Chance(0.4)) {
    timeline_.Note("fault: the disk is slow");
    coordinator_.set_commit_time(timeline_.Between(absl::Milliseconds(20), absl::Seconds(3)));
    return Lasts(timeline_.Between(absl::Seconds(1), absl::Seconds(20)),
                 [this] { coordinator_.set_commit_time(absl::Milliseconds(1)); });
  }
  timeline_.Note("fault: the disk takes nothing");
  coordinator_.set_disk_fails(true);
  const absl::Duration time = timeline_.Chance(0.5)
                                  ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(2))
                                  : timeline_.Between(absl::Seconds(2), absl::Seconds(60));
  Lasts(time, [this] { coordinator_.set_disk_fails(false); });
}

void Faults::BreakCoordinator() {
  if (timeline_.Chance(0.3))
    return coordinator_.Pause(timeline_.Between(absl::ZeroDuration(), absl::Seconds(30)));
  CrashCoordinator();
}

void Faults::CrashCoordinator() {
  coordinator_.Crash();
  const absl::Duration time = timeline_.Chance(0.5)
                                  ? timeline_.Between(absl::ZeroDuration(), absl::Seconds(2))
                                  : timeline_.Between(absl::Seconds(2), absl::Seconds(40));
  Lasts(time, [this] { coordinator_.Start(); });
}

// One of thirty: the coordinator before or just after it is durable, somebody whom it is about, or
// the way to a node that is to hear of it. Where the coordinator alone dies, one of eight of all
// records, mostly before it is durable.
void Faults::OnWrite(const coordinator::JournalRecord& record) {
  const auto* planned = std::get_if<coordinator::EpochPlanned>(&record.body);
  const bool recovers = planned != nullptr
                            ? planned->state_epoch != Epoch{0}
                            : std::holds_alternative<coordinator::EpochBegan>(record.body);
  const bool manages =
      managing_ && (std::holds_alternative<coordinator::NodeMarked>(record.body) ||
                    std::holds_alternative<coordinator::SuspensionChanged>(record.body));
  if (!(recovers || manages || only_crashes_) ||
      !timeline_.Chance(only_crashes_ ? 1.0 / 8 : 1.0 / 30))
    return;
  const uint64_t kind = only_crashes_           ? 0
                        : behind_               ? timeline_.Below(4)
                        : timeline_.Chance(0.5) ? 0
                                                : 3;
  timeline_.After(
      timeline_.Between(absl::ZeroDuration(), absl::Milliseconds(only_crashes_ ? 1 : 5)),
      [this, kind, generation = generation_] {
        if (generation != generation_) return;
        ++count_;
        if (under_way_ == 0) quiet_since_ = timeline_.now();
        timeline_.Note("fault: in the middle of a write");
        if (kind < 2) return CrashCoordinator();
        if (kind == 2) return BreakNetwork();
        if (RankProcess* process = SomeProcess()) process->Die(0, 9);
      });
}

}  // namespace phalanx::sim
