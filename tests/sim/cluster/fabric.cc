#include "tests/sim/cluster/fabric.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::sim {

void Fabric::Join(JobId job, Epoch epoch, int32_t rank, size_t node,
                  std::weak_ptr<Endpoint> endpoint) {
  groups_[{job, epoch}].members[rank] = {node, std::move(endpoint)};
}

std::shared_ptr<Endpoint> Fabric::Find(const Key& key, int32_t rank) const {
  const auto group = groups_.find(key);
  if (group == groups_.end()) return nullptr;
  const auto member = group->second.members.find(rank);
  return member == group->second.members.end() ? nullptr : member->second.endpoint.lock();
}

std::shared_ptr<Pipe> Fabric::PipeOf(const Key& key, Group& group, int32_t from, int32_t to) {
  std::shared_ptr<Pipe>& pipe = group.pipes[{from, to}];
  if (pipe != nullptr) return pipe;
  const size_t a = group.members.at(from).node;
  const auto other = group.members.find(to);
  const size_t b = other == group.members.end() ? a : other->second.node;
  pipe = std::make_shared<Pipe>(
      timeline_, network_, [this, a, b] { return network_.PeersReach(a, b); },
      [this, key, from, to] { TellGone(key, from, to); });
  return pipe;
}

void Fabric::TellGone(const Key& key, int32_t whom, int32_t gone) {
  if (const std::shared_ptr<Endpoint> endpoint = Find(key, whom)) endpoint->OnGone(gone);
}

void Fabric::Send(JobId job, Epoch epoch, int32_t to, Message message) {
  const Key key{job, epoch};
  const auto group = groups_.find(key);
  if (group == groups_.end() || !group->second.members.contains(message.from)) return;
  const bool of_step =
      message.kind == Message::Kind::kGradients || message.kind == Message::Kind::kRecord;
  if (of_step && std::exchange(loses_next_, false)) {
    ++lost_;
    return timeline_.Note("fault: a message of job $0, epoch $1, step $2 to rank $3 is lost",
                          job.value, epoch.value, message.key, to);
  }
  PipeOf(key, group->second, message.from, to)->Send([this, key, to, message = std::move(message)] {
    if (const std::shared_ptr<Endpoint> endpoint = Find(key, to)) return endpoint->Deliver(message);
    timeline_.After(network_.Delay(),
                    [this, key, to, from = message.from] { TellGone(key, from, to); });
  });
}

void Fabric::Leave(JobId job, Epoch epoch, int32_t rank, bool silent) {
  const Key key{job, epoch};
  const auto found = groups_.find(key);
  if (found == groups_.end() || !found->second.members.contains(rank)) return;
  Group& group = found->second;
  for (const auto& [other, member] : group.members) {
    if (other == rank) continue;
    const std::shared_ptr<Pipe> pipe = PipeOf(key, group, rank, other);
    if (silent) {
      pipe->Break();
    } else {
      pipe->Send([this, key, other = other, rank] { TellGone(key, other, rank); });
    }
  }
  group.members.erase(rank);
  if (group.members.empty()) groups_.erase(found);
}

const absl::StatusOr<std::vector<TransferRound>>& Fabric::TransfersOf(
    JobId job, Epoch epoch, const std::map<int32_t, Holdings>& needs,
    const std::map<int32_t, Holdings>& holdings) {
  Group& group = groups_[{job, epoch}];
  uint64_t hash = needs.size();
  for (const auto& [rank, held] : holdings)
    hash = Mix64(hash ^ HashOf(held) ^ static_cast<uint64_t>(rank));
  if (!group.transfers.has_value()) {
    group.transfers = PlanTransfers(needs, holdings);
    group.transfers_of = hash;
  } else if (group.transfers_of != hash) {
    ledger_.Violate(
        absl::StrCat(ToString(job), " epoch ", epoch.value, ": two ranks see other holdings"));
  }
  return *group.transfers;
}

}  // namespace phalanx::sim
