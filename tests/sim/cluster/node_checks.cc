// What must hold of a node.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/epoch_run.h"
#include "tests/sim/cluster/node_host.h"

namespace phalanx::sim {
namespace {

// Longer than the coordinator waits for the process that had the node's name before.
constexpr absl::Duration kTold = absl::Seconds(60);

}  // namespace

void NodeHost::NoteEpoch(const agent::Event& event) {
  // What still comes on a stream that it has given up it does not obey, the welcome included.
  const auto* welcomed = std::get_if<agent::SessionWelcomed>(&event);
  if (welcomed != nullptr && stream_ != nullptr && stream_->number == welcomed->session)
    welcomed_ = welcomed->session;
  const auto* closed = std::get_if<agent::SessionClosed>(&event);
  if (closed != nullptr && closed->session == welcomed_) welcomed_ = {};
  const auto* received = std::get_if<agent::CommandReceived>(&event);
  if (received == nullptr || received->session != welcomed_) return;
  if (const auto* assign = std::get_if<agent::AssignCommand>(&received->command)) {
    Epoch& lowest = lowest_[assign->job];
    lowest = std::max(lowest, assign->epoch);
  } else if (const auto* stop = std::get_if<agent::StopCommand>(&received->command)) {
    Epoch& lowest = lowest_[stop->job];
    lowest = std::max(lowest, Epoch{stop->epoch.value + 1});
    Epoch& stopped = stopped_[stop->job];
    stopped = std::max(stopped, stop->epoch);
  }
}

void NodeHost::NoteEnding(agent::ProcessNumber number) {
  const auto found = processes_.find(number);
  if (found != processes_.end()) found->second.told_to_end = true;
}

void NodeHost::CheckFree(const std::vector<int32_t>& devices) const {
  for (const auto& [number, slot] : processes_) {
    const RankProcess& process = *slot.process;
    const bool meant = std::count(devices.begin(), devices.end(), process.device()) != 0;
    if (!meant || process.dead() || slot.told_to_end) continue;
    const EpochRun* run = process.current();
    shared_.ledger.Violate(absl::StrCat(
        name_, " device ", process.device(), " is given to another job while a rank of ",
        ToString(process.job()), run == nullptr ? " waits" : " works", " on it, process ",
        number.value, run == nullptr ? "" : absl::StrCat(" in epoch ", run->epoch().value)));
  }
}

void NodeHost::CheckResult(const agent::SendCommandResult& result) const {
  if (absl::IsFailedPrecondition(result.status) &&
      absl::StrContains(result.status.message(), " runs job-")) {
    shared_.ledger.Violate(
        absl::StrCat(name_, " refuses an assignment: ", result.status.message()));
  }
}

bool NodeHost::IsServed() const {
  if (!up() || paused_since_.has_value() || stream_ == nullptr || !coordinator_.Serves())
    return false;
  const bool open = stream_->accepted && !stream_->coordinator_closed && !stream_->up->broken() &&
                    !stream_->down->broken();
  return open && shared_.network.UpReaches(index_) && shared_.network.DownReaches(index_);
}

void NodeHost::CheckTold() {
  const bool served = IsServed();
  const Instant now = shared_.timeline.now();
  for (auto& [number, slot] : processes_) {
    const RankProcess& process = *slot.process;
    const EpochRun* run = process.current();
    const bool waits = served && !process.dead() && !process.suspended() && run != nullptr &&
                       run->awaits_begin() && coordinator_.HasBegun(process.job(), run->epoch());
    auto& [since, session] = slot.untold;
    if (!waits || session != stream_->session) since = absl::InfiniteFuture();
    if (!waits) continue;
    session = stream_->session;
    since = std::min(since, now);
    if (now - since < kTold) continue;
    shared_.ledger.Violate(absl::StrCat(name_, ": nobody tells a rank of ", ToString(process.job()),
                                        " from where epoch ", run->epoch().value, " goes on, for ",
                                        absl::FormatDuration(kTold)));
  }
}

}  // namespace phalanx::sim
