#include "client/doctor_nodes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/format.h"
#include "core/base/cut_text.h"
#include "core/wire/examination_codec.h"

namespace phalanx::client {
namespace {

using job::Finding;
using Verdict = Finding::Verdict;

constexpr size_t kNamesMax = 4;         // in one line of a table
constexpr size_t kFoundShownMax = 120;  // bytes, likewise
constexpr const char* kOrder[] = {"driver", "nccl",      "shared memory", "limits",     "clock",
                                  "ports",  "host name", "folders",       "examination"};

struct Said {
  std::string node;
  Finding finding;
};

// A message that was kept on its way, by a coordinator or a worker that stood still, makes its
// sender's clock seem to be behind.
constexpr absl::Duration kKeptMax = absl::Seconds(60);
// Two examinations are at most so far apart, and some.
constexpr absl::Duration kExaminationAgeMax = absl::Minutes(25);

// How far the clock is off for certain; zero: it may be right.
absl::Duration Off(const job::NodeExamination& examination) {
  if (examination.ahead_min > kClockSkewMax) return examination.ahead_min;
  if (examination.ahead_max < -kKeptMax) return examination.ahead_max;
  return absl::ZeroDuration();
}

void NoteClock(absl::Duration off, std::vector<Finding>& findings) {
  auto clock = std::find_if(findings.begin(), findings.end(),
                            [](const Finding& one) { return one.check == "clock"; });
  if (clock == findings.end()) clock = findings.insert(clock, {.check = "clock"});
  const std::string by_itself = std::exchange(clock->found, "");
  clock->verdict = std::max(clock->verdict, Verdict::kWarning);
  clock->found =
      absl::StrCat(absl::ToInt64Seconds(absl::AbsDuration(off)),
                   off > absl::ZeroDuration() ? " s ahead of" : " s behind", " the coordinator's",
                   by_itself.empty() ? "" : " (", by_itself, by_itself.empty() ? "" : ")");
  clock->next = "synchronise the clocks of the node and of the coordinator's machine";
}

// "all 64 nodes", "2 of 64 nodes".
std::string Of(size_t count, size_t all) {
  if (count < all) return absl::StrCat(count, " of ", all, " nodes");
  return all == 1 ? "the one node" : absl::StrCat("all ", all, " nodes");
}

Verdict WorstOf(const std::vector<Said>& said) {
  Verdict worst = Verdict::kSkipped;
  for (const Said& one : said) {
    const bool looked = one.finding.verdict != Verdict::kSkipped;
    if (looked && (worst == Verdict::kSkipped || one.finding.verdict > worst))
      worst = one.finding.verdict;
  }
  return worst;
}

// Of `nodes`, of which those of `said` have told of the check; at least one has.
Finding Aggregate(const std::string& check, const std::vector<Said>& said, size_t nodes) {
  Finding all{.check = absl::StrCat("node ", check), .verdict = WorstOf(said)};
  std::vector<const Said*> worst;
  int64_t warnings = 0;
  for (const Said& one : said) {
    if (one.finding.verdict == all.verdict) worst.push_back(&one);
    if (one.finding.verdict == Verdict::kWarning) ++warnings;
  }
  const Said& first = *worst.front();
  const bool same = std::all_of(worst.begin(), worst.end(), [&first](const Said* one) {
    return one->finding.found == first.finding.found;
  });
  all.found = Of(worst.size(), nodes);
  const std::string found = CutText(first.finding.found, kFoundShownMax);
  if (job::IsTrouble(all)) {
    std::vector<std::string> names;
    for (const Said* one : worst) names.push_back(one->node);
    absl::StrAppend(&all.found, ": ", NamesText(names, kNamesMax),
                    same ? "" : absl::StrCat("; ", first.node), ": ", found);
  } else if (same) {
    absl::StrAppend(&all.found, ": ", found);
  }
  // What is no trouble has advice for clusters alone: folders that not all nodes may have.
  if (job::IsTrouble(all) || nodes > 1) all.next = first.finding.next;
  if (all.verdict == Verdict::kProblem && warnings > 0)
    absl::StrAppend(&all.found, "; a warning on ", warnings, " more");
  if (said.size() < nodes) absl::StrAppend(&all.found, "; ", nodes - said.size(), " unknown");
  return all;
}

// NCCL of one version does not talk to that of another.
void NoteVersions(const std::vector<Said>& said, Finding& all) {
  if (job::IsTrouble(all)) return;
  std::map<std::string, std::vector<std::string>> nodes;  // by what they have
  for (const Said& one : said) {
    if (one.finding.verdict == Verdict::kOk) nodes[one.finding.found].push_back(one.node);
  }
  if (nodes.size() < 2) return;
  std::vector<std::string> texts;
  for (const auto& [found, names] : nodes) {
    texts.push_back(
        absl::StrCat(CutText(found, kFoundShownMax), " on ", NamesText(names, kNamesMax)));
  }
  all.verdict = Verdict::kWarning;
  all.found = absl::StrCat("nodes differ: ", NamesText(texts, kNamesMax));
  all.next =
      "install one version of NCCL on all nodes: it connects no ranks with different ones, so no "
      "job trains on nodes of both";
}

struct Folder {
  std::map<std::string, std::vector<std::string>> nodes;  // by the mark that they found
  size_t count = 0;                                       // of nodes
  bool on_network = false;                                // of any
};

// Of "/srv is 0123456789abcdef on the network; /scratch is ...", as a node says it.
void NoteFolders(const Said& said, std::map<std::string, Folder>& folders) {
  constexpr size_t kMarkDigits = 16;
  constexpr absl::string_view kIs = " is ";
  for (absl::string_view one : absl::StrSplit(said.finding.found, "; ")) {
    const bool on_network = absl::ConsumeSuffix(&one, " on the network");
    const size_t is = one.rfind(kIs);
    if (is == absl::string_view::npos || one.size() - is != kIs.size() + kMarkDigits) continue;
    Folder& folder = folders[std::string(one.substr(0, is))];
    std::vector<std::string>& nodes = folder.nodes[std::string(one.substr(is + kIs.size()))];
    if (!nodes.empty() && nodes.back() == said.node) continue;  // it names the folder twice
    nodes.push_back(said.node);
    ++folder.count;
    folder.on_network |= on_network;
  }
}

// Of folders that several nodes name. That disks of machines differ is as it should be.
std::vector<Finding> SameFolders(const std::vector<Said>& said) {
  std::map<std::string, Folder> folders;
  for (const Said& one : said) NoteFolders(one, folders);
  Finding all{.check = "node same folders"};
  std::vector<std::string> differ, own, same;
  for (const auto& [path, folder] : folders) {
    if (folder.count < 2) continue;
    if (folder.nodes.size() == 1) {
      same.push_back(absl::StrCat(folder.count, " nodes have the same ", path));
      continue;
    }
    std::vector<std::string> names;
    for (const auto& [mark, nodes] : folder.nodes) names.push_back(NamesText(nodes, kNamesMax));
    std::sort(names.begin(), names.end());
    (folder.on_network ? differ : own)
        .push_back(absl::StrCat(path, " is one folder on ",
                                NamesText(names, kNamesMax, ", another one on ")));
  }
  if (!differ.empty()) all.verdict = Verdict::kWarning;
  if (!differ.empty() || !own.empty())
    all.next = "jobs on several nodes need a folder that all of them mount at the same path";
  differ.insert(differ.end(), own.begin(), own.end());
  differ.insert(differ.end(), same.begin(), same.end());
  if (differ.empty()) return {};
  all.found = NamesText(differ, kNamesMax, "; ");
  return {all};
}

}  // namespace

std::vector<Finding> FindingsOf(const v1::NodeStatus& node) {
  if (!node.has_examination()) return {};
  job::NodeExamination examination = wire::FromProto(node.examination());
  const absl::Duration off = Off(examination);
  if (off != absl::ZeroDuration()) NoteClock(off, examination.findings);
  const absl::Duration age = ToTime(node.last_heartbeat()) - examination.received;
  if (age > kExaminationAgeMax) {
    examination.findings.push_back(
        {.check = "examination",
         .verdict = Verdict::kWarning,
         .found = absl::StrCat("the last one was ", FormatAge(age),
                               " before the last heartbeat: what is said here is of then"),
         .next = "a driver, a mount or a name server of the node does not answer"});
  }
  return std::move(examination.findings);
}

std::vector<Finding> ExamineNodes(const std::vector<v1::NodeStatus>& nodes) {
  if (nodes.empty()) return {};
  std::map<std::string, std::vector<Said>> by_check;
  for (const v1::NodeStatus& node : nodes) {
    if (node.state() == v1::NodeStatus::STATE_DISCONNECTED) continue;  // of whom others tell
    for (Finding& finding : FindingsOf(node)) {
      const std::string check = finding.check;
      by_check[check].push_back({node.name(), std::move(finding)});
    }
  }
  if (by_check.empty()) {
    return {{.check = "node machines",
             .verdict = Verdict::kSkipped,
             .found = absl::StrCat(Of(nodes.size(), nodes.size()),
                                   " unknown: the workers have just begun, or are of a release "
                                   "that says nothing")}};
  }
  std::vector<Finding> findings;
  for (const char* check : kOrder) {
    const auto said = by_check.find(check);
    if (said == by_check.end()) continue;
    findings.push_back(Aggregate(check, said->second, nodes.size()));
    if (said->first == "nccl") NoteVersions(said->second, findings.back());
    by_check.erase(said);
  }
  if (const auto said = by_check.find("same folders"); said != by_check.end()) {
    for (Finding& finding : SameFolders(said->second)) findings.push_back(std::move(finding));
    by_check.erase(said);
  }
  // Those that this version does not know: of a newer worker, or of one that is none.
  for (const auto& [check, said] : by_check) {
    if (findings.size() >= static_cast<size_t>(job::kFindingsMax)) break;
    findings.push_back(Aggregate(check, said, nodes.size()));
  }
  return findings;
}

std::string NamesText(const std::vector<std::string>& names, size_t shown_max,
                      absl::string_view between) {
  const size_t shown = std::min(names.size(), shown_max);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), between);
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

}  // namespace phalanx::client
