// Whether nodes reach each other: one worker listens, then the other one connects. Nothing of it is
// stored.
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "core/base/host_port.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kTrialsMax = 16;
// Of a name that no node has: an answer has room for few.
constexpr size_t kNameBytesShown = 128;

absl::Status NotConnected(const NodeName& node) {
  return absl::FailedPreconditionError(absl::StrCat("node ", node, " is not connected"));
}

}  // namespace

absl::Status Coordinator::CheckReach(const ReachRequested& event) const {
  for (const NodeName& name : {event.from, event.to}) {
    const auto node = nodes_.find(name);
    if (node == nodes_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no node \"",
                                              name.substr(0, kNameBytesShown),
                                              "\"; phalanx nodes lists those there are"));
    }
    if (!node->second.connected()) return NotConnected(name);
  }
  if (event.from == event.to) {
    return absl::InvalidArgumentError(
        absl::StrCat("to: ", event.to, ": must be another node than from"));
  }
  if (trials_.size() < kTrialsMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      trials_.size(), " pairs of nodes are being tried; try again when they are done"));
}

void Coordinator::On(const ReachRequested& event) {
  if (absl::Status refusal = CheckReach(event); !refusal.ok()) {
    actions_.push_back(AnswerReach{event.token, std::move(refusal)});
    return;
  }
  trials_.insert(event.token);
  SendTo(nodes_.at(event.to),
         TryPeer{.token = event.token, .from = event.from, .to = event.to, .word = event.word});
}

void Coordinator::OnTried(TryPeer trial, const CommandFinished& result) {
  if (!trials_.contains(trial.token)) return;
  const bool listened = trial.listens_at.empty();
  const NodeName& asked = listened ? trial.to : trial.from;
  if (result.code == static_cast<int32_t>(absl::StatusCode::kUnavailable)) {
    return AnswerTrial(trial, listened
                                  ? absl::StrCat(trial.to, ": ", result.message)
                                  : absl::StrCat(trial.from, " does not reach ", trial.to, " at ",
                                                 trial.listens_at, ": ", result.message));
  }
  if (result.code == static_cast<int32_t>(absl::StatusCode::kUnimplemented)) {
    return AnswerTrial(trial, absl::FailedPreconditionError(absl::StrCat(
                                  "the worker of node ", asked,
                                  " is of a release that tries no connections; upgrade it")));
  }
  if (result.code != 0) {
    return AnswerTrial(
        trial, absl::FailedPreconditionError(absl::StrCat("node ", asked, ": ", result.message)));
  }
  if (!listened) return AnswerTrial(trial, "");
  const auto from = nodes_.find(trial.from);
  if (from == nodes_.end() || !from->second.connected())
    return AnswerTrial(trial, NotConnected(trial.from));
  if (!ParseHostPort(result.listens_at, 1).ok()) {
    return AnswerTrial(trial, absl::FailedPreconditionError(absl::StrCat(
                                  "node ", trial.to, " does not say where it listens")));
  }
  trial.listens_at = result.listens_at;
  SendTo(from->second, std::move(trial));
}

void Coordinator::AnswerTrial(const TryPeer& trial, absl::StatusOr<std::string> fault) {
  if (trials_.erase(trial.token) != 0)
    actions_.push_back(AnswerReach{trial.token, std::move(fault)});
}

void Coordinator::RefuseTrials(const Node& node) {
  for (const Outstanding& outstanding : node.outstanding) {
    if (const auto* trial = std::get_if<TryPeer>(&outstanding.command)) {
      AnswerTrial(*trial, absl::FailedPreconditionError(absl::StrCat(
                              "node ", node.name, " disconnected before it answered")));
    }
  }
}

}  // namespace phalanx::coordinator
