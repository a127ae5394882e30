// Whether nodes reach each other: one worker listens, then the other one connects. Nothing of it is
// stored.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/machine/coordinator.h"
#include "core/base/host_port.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kTrialsMax = 16;

absl::Status NotConnected(const NodeName& node) {
  return absl::FailedPreconditionError(absl::StrCat("node ", node, " is not connected"));
}

// The address in its bytes; empty: `text` is none in numbers. Brackets are left out.
std::string AddressBytes(absl::string_view text) {
  if (absl::ConsumePrefix(&text, "[")) absl::ConsumeSuffix(&text, "]");
  const std::string host(text);
  std::array<char, sizeof(in6_addr)> bytes{};
  if (inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) return {bytes.data(), sizeof(in_addr)};
  if (inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1) return {bytes.data(), sizeof(in6_addr)};
  return {};
}

// False: it is another one than that where its worker says that ranks are reached, so that a worker
// sends others nowhere else. One that is told as a name is not looked up.
bool IsAddressOf(const NodeTable& nodes, const NodeName& name, absl::string_view host) {
  const auto node = nodes.find(name);
  if (node == nodes.end()) return false;
  const std::string told = AddressBytes(node->second.address);
  return told.empty() || told == AddressBytes(host);
}

}  // namespace

absl::Status Coordinator::CheckReach(const ReachRequested& event) const {
  for (const NodeName& name : {event.from, event.to}) {
    const auto node = nodes_.find(name);
    if (node == nodes_.end()) return NoSuchNode(name);
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
  trials_.emplace(event.token, event.to);
  trial_agenda_.Note(event.token, now_ + options_.trial_timeout);
  SendTo(nodes_.at(event.to),
         TryPeer{.token = event.token, .from = event.from, .to = event.to, .word = event.word});
}

void Coordinator::OnTried(TryPeer trial, const CommandFinished& result) {
  if (!trials_.contains(trial.token)) return;
  const bool listened = trial.listens_at.empty();
  const NodeName& asked = listened ? trial.to : trial.from;
  if (result.code == static_cast<int32_t>(absl::StatusCode::kUnavailable)) {
    return AnswerTrial(trial.token,
                       listened ? absl::StrCat(trial.to, ": ", result.message)
                                : absl::StrCat(trial.from, " does not reach ", trial.to, " at ",
                                               trial.listens_at, ": ", result.message));
  }
  if (result.code == static_cast<int32_t>(absl::StatusCode::kUnimplemented)) {
    return AnswerTrial(trial.token, absl::FailedPreconditionError(absl::StrCat(
                                        "the worker of node ", asked,
                                        " is of a release that tries no connections; upgrade it")));
  }
  if (result.code != 0) {
    return AnswerTrial(trial.token, absl::FailedPreconditionError(
                                        absl::StrCat("node ", asked, ": ", result.message)));
  }
  if (!listened) return AnswerTrial(trial.token, "");
  const auto from = nodes_.find(trial.from);
  if (from == nodes_.end() || !from->second.connected())
    return AnswerTrial(trial.token, NotConnected(trial.from));
  const absl::StatusOr<HostPort> place = ParseHostPort(result.listens_at, 1);
  if (!place.ok()) {
    return AnswerTrial(trial.token, absl::FailedPreconditionError(absl::StrCat(
                                        "node ", trial.to, " does not say where it listens")));
  }
  if (!IsAddressOf(nodes_, trial.to, place->host)) {
    return AnswerTrial(trial.token, absl::FailedPreconditionError(absl::StrCat(
                                        "node ", trial.to, " says that it listens at ",
                                        result.listens_at, ", which is not its --address")));
  }
  trials_.at(trial.token) = trial.from;
  trial.listens_at = result.listens_at;
  SendTo(from->second, std::move(trial));
}

void Coordinator::AnswerTrial(Token token, absl::StatusOr<std::string> fault) {
  if (trials_.erase(token) == 0) return;
  trial_agenda_.Forget(token);
  actions_.push_back(AnswerReach{token, std::move(fault)});
}

void Coordinator::EndLateTrials(Instant judged) {
  for (const Token token : trial_agenda_.Take(judged)) {
    AnswerTrial(token, absl::FailedPreconditionError(
                           absl::StrCat("node ", trials_.at(token), " has not answered within ",
                                        absl::FormatDuration(options_.trial_timeout))));
  }
}

void Coordinator::RefuseTrials(const Node& node) {
  for (const Outstanding& outstanding : node.outstanding) {
    if (const auto* trial = std::get_if<TryPeer>(&outstanding.command)) {
      AnswerTrial(trial->token, absl::FailedPreconditionError(absl::StrCat(
                                    "node ", node.name, " disconnected before it answered")));
    }
  }
}

}  // namespace phalanx::coordinator
