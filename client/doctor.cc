#include "client/doctor.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/advice.h"
#include "client/doctor_nodes.h"
#include "client/doctor_reach.h"
#include "client/exit_code.h"
#include "client/node_list.h"
#include "client/rpc_status.h"
#include "core/base/terminal_text.h"
#include "core/examine/examination.h"
#include "core/job/json.h"

namespace phalanx::client {
namespace {

using job::Finding;
using Verdict = Finding::Verdict;

constexpr size_t kNodesNamedMax = 16;
constexpr char kNextAfterSilence[] =
    "see that phalanx-coordinator runs there, listens on an address that this machine reaches "
    "(--listen) and that no firewall is between; phalanx config show tells where the address is "
    "from, and --machine leaves the cluster out";

// `status`: of a call; `store_fault`: why it accepts nothing, as it says then.
Finding Coordinator(const std::string& server, const absl::Status& status,
                    const std::string& store_fault) {
  Finding coordinator{.check = "coordinator", .found = absl::StrCat(server, " answers")};
  if (status.ok() && !store_fault.empty()) {
    coordinator.verdict = Verdict::kProblem;
    absl::StrAppend(&coordinator.found, " and changes nothing: ", store_fault);
    coordinator.next =
        "make room on the disk of its --store, or mend what its log says of it: it goes on by "
        "itself";
  }
  if (status.ok()) return coordinator;
  coordinator.verdict = Verdict::kProblem;
  coordinator.found = std::string(status.message());
  const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  // Such as of a certificate that has expired, or of a store that is full.
  const bool is_known = !NextOf(status).empty() || SaysNext(status.message());
  coordinator.next = silent && !is_known ? kNextAfterSilence : NextAfterCall(status);
  return coordinator;
}

job::Tree FindingsTree(const std::vector<Finding>& findings) {
  std::vector<job::Tree> list;
  for (const Finding& finding : findings) {
    list.push_back(
        job::MappingTree({{"check", job::TextTree(finding.check)},
                          {"verdict", job::TextTree(std::string(job::ToString(finding.verdict)))},
                          {"found", job::TextTree(finding.found)},
                          {"next", job::TextTree(finding.next)}}));
  }
  return job::MappingTree({{"findings", job::ListTree(std::move(list))}});
}

void PrintFindings(const std::vector<Finding>& findings, Format format, Io& io) {
  if (format == Format::kJson || format == Format::kYaml) {
    return PrintTree(FindingsTree(findings), format, io.out);
  }
  if (format == Format::kName) {
    for (const Finding& finding : findings) {
      if (job::IsTrouble(finding)) io.out << finding.check << "\n";
    }
    return;
  }
  Table table({"CHECK", "VERDICT", "FOUND"});
  for (const Finding& finding : findings) {
    table.Add({finding.check, std::string(job::ToString(finding.verdict)), finding.found});
  }
  table.Print(io.out);
  for (const Finding& finding : findings) {
    if (finding.next.empty()) continue;
    io.out << "\n" << finding.check << ": " << TerminalText(finding.next) << "\n";
  }
}

}  // namespace

std::vector<Finding> ExamineCluster(const std::vector<v1::NodeStatus>& nodes,
                                    const std::string& version, absl::Time now) {
  Finding ready{.check = "nodes"}, versions{.check = "versions"}, clocks{.check = "clocks"};
  std::vector<std::string> away, other;
  int64_t devices = 0;
  absl::Time newest = absl::InfinitePast();
  for (const v1::NodeStatus& node : nodes) {
    devices += node.devices();
    if (node.version() != version) other.push_back(absl::StrCat(node.name(), " ", node.version()));
    if (node.state() != v1::NodeStatus::STATE_READY) {
      away.push_back(node.name());
      continue;
    }
    if (node.has_last_heartbeat()) newest = std::max(newest, ToTime(node.last_heartbeat()));
  }
  ready.found = absl::StrCat(nodes.size(), " with ", devices, " devices");
  if (nodes.empty()) {
    ready.verdict = Verdict::kProblem;
    ready.next =
        "start phalanx-worker on a machine with --coordinator and this coordinator's address";
  } else if (!away.empty()) {
    ready.verdict = Verdict::kProblem;
    absl::StrAppend(&ready.found, "; disconnected: ", NamesText(away, kNodesNamedMax));
    ready.next =
        "see that phalanx-worker runs there and reaches the coordinator; its log says why not";
  }
  versions.found = absl::StrCat("all nodes have ", version, ", as this client");
  if (nodes.empty()) {
    versions.verdict = Verdict::kSkipped;
    versions.found = "no node to compare with";
  } else if (!other.empty()) {
    versions.verdict = Verdict::kWarning;
    versions.found =
        absl::StrCat("this client is ", version, "; others: ", NamesText(other, kNodesNamedMax));
    versions.next = "finish the upgrade: a coordinator serves this version and the one before";
  }
  if (newest == absl::InfinitePast()) {
    clocks.verdict = Verdict::kSkipped;
    clocks.found = "no node to compare with";
  } else {
    const absl::Duration apart = now - newest;
    clocks.found = "the coordinator's agrees with this machine's";
    if (absl::AbsDuration(apart) > kClockSkewMax) {
      clocks.verdict = Verdict::kWarning;
      clocks.found = absl::StrCat("by this machine's clock the newest heartbeat is ",
                                  absl::ToInt64Seconds(absl::AbsDuration(apart)),
                                  apart < absl::ZeroDuration() ? " s in the future" : " s old");
      clocks.next = "synchronise the clocks of the coordinator's machine and of this one";
    }
  }
  return {std::move(ready), std::move(versions), std::move(clocks)};
}

int Doctor(Connection& connection, const DoctorOptions& options, Io& io) {
  examine::Folders folders;
  if (!options.folder.empty()) folders.write.push_back(options.folder);
  std::vector<Finding> findings = examine::ExamineMachine(examine::ReadMachine(folders));
  if (options.cluster) {
    std::string store_fault;
    const absl::StatusOr<std::vector<v1::NodeStatus>> nodes =
        ListNodes(connection, true, &store_fault);
    findings.push_back(Coordinator(connection.server(), nodes.status(), store_fault));
    if (nodes.ok()) {
      for (std::vector<Finding> more :
           {ExamineCluster(*nodes, options.version, absl::Now()), ExamineNodes(*nodes)}) {
        findings.insert(findings.end(), std::make_move_iterator(more.begin()),
                        std::make_move_iterator(more.end()));
      }
      if (!nodes->empty()) findings.push_back(ExamineReach(connection, *nodes));
    }
  }
  PrintFindings(findings, options.format, io);
  const bool problem = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.verdict == Verdict::kProblem;
  });
  return problem ? kFailure : kSuccess;
}

}  // namespace phalanx::client
