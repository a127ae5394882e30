#include "client/doctor_reach.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/cut_text.h"

namespace phalanx::client {
namespace {

using job::Finding;
using Verdict = Finding::Verdict;

constexpr size_t kFaultsShownMax = 4;
constexpr size_t kFaultShownMax = 200;  // bytes
constexpr char kNext[] =
    "ranks of a job on both nodes would not find each other: start the worker of the node that is "
    "not reached with --address and an address of its own that the others reach, and let them "
    "connect to the ports that its ranks listen on (check \"node ports\")";

// What came of the pairs that were tried.
struct Trials {
  size_t tried = 0;
  std::vector<std::string> faults;
  std::vector<std::string> unknown;  // why nobody can tell
  bool cut_short = false;            // others were not tried
  absl::Status refused;              // not OK: none can be
};

Trials TryAll(Connection& connection, const std::vector<NodePair>& pairs,
              const ReachOptions& options) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options.time_max);
  const size_t count = std::min(pairs.size(), options.pairs_max);
  Trials trials{.cut_short = count < pairs.size()};
  for (size_t i = 0; i < count; ++i) {
    if (std::chrono::steady_clock::now() >= end) {
      trials.cut_short = true;
      break;
    }
    const NodePair& pair = pairs[i * pairs.size() / count];
    v1::TryConnectionRequest request;
    request.set_from(pair.from);
    request.set_to(pair.to);
    v1::TryConnectionResponse response;
    const absl::Status status =
        connection.Call(&v1::JobService::Stub::TryConnection, request, &response);
    if (absl::IsPermissionDenied(status) || absl::IsUnimplemented(status)) {
      trials.refused = status;
      return trials;
    }
    ++trials.tried;
    if (!status.ok()) {
      trials.unknown.emplace_back(status.message());
    } else if (!response.fault().empty()) {
      trials.faults.push_back(response.fault());
    }
  }
  return trials;
}

std::string FaultsText(const std::vector<std::string>& faults) {
  std::vector<std::string> shown;
  for (const std::string& fault : faults) {
    if (shown.size() == kFaultsShownMax) break;
    shown.push_back(CutText(fault, kFaultShownMax));
  }
  if (shown.size() < faults.size())
    shown.push_back(absl::StrCat(faults.size() - shown.size(), " more do not, either"));
  return absl::StrJoin(shown, "; ");
}

}  // namespace

std::vector<NodePair> RingsOf(const std::vector<v1::NodeStatus>& nodes) {
  std::map<std::string, std::vector<std::string>> by_kind;
  for (const v1::NodeStatus& node : nodes) {
    if (node.state() == v1::NodeStatus::STATE_READY)
      by_kind[node.device_kind()].push_back(node.name());
  }
  std::vector<NodePair> pairs;
  for (const auto& [kind, names] : by_kind) {
    if (names.size() < 2) continue;
    for (size_t i = 0; i < names.size(); ++i)
      pairs.push_back({names[i], names[(i + 1) % names.size()]});
  }
  return pairs;
}

job::Finding ExamineReach(Connection& connection, const std::vector<v1::NodeStatus>& nodes,
                          const ReachOptions& options) {
  Finding finding{.check = "node reach", .verdict = Verdict::kSkipped};
  const std::vector<NodePair> pairs = RingsOf(nodes);
  if (pairs.empty()) {
    finding.found = "there are no two nodes that a job would be on together";
    return finding;
  }
  const Trials trials = TryAll(connection, pairs, options);
  if (!trials.refused.ok()) {
    finding.found = absl::IsUnimplemented(trials.refused)
                        ? "this coordinator is of a release that tries no connections"
                        : std::string(trials.refused.message());
    return finding;
  }
  const size_t known = trials.tried - trials.unknown.size();
  if (!trials.faults.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.found = FaultsText(trials.faults);
    finding.next = kNext;
    if (known > trials.faults.size())
      absl::StrAppend(&finding.found, "; ", known - trials.faults.size(), " reach the next one");
  } else if (known > 0) {
    finding.verdict = Verdict::kOk;
    finding.found = absl::StrCat(known == pairs.size() ? absl::StrCat("all ", known)
                                                       : absl::StrCat(known, " of ", pairs.size()),
                                 " nodes reach the next one where its ranks would listen");
  } else {
    finding.found = "nobody can tell";
  }
  if (trials.cut_short)
    absl::StrAppend(&finding.found, "; ", pairs.size() - trials.tried, " not tried");
  if (!trials.unknown.empty()) {
    absl::StrAppend(&finding.found, "; ", trials.unknown.size(),
                    " unknown: ", CutText(trials.unknown.front(), kFaultShownMax));
  }
  return finding;
}

}  // namespace phalanx::client
