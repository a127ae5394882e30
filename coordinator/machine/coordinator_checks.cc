// What checks of devices that no rank uses have found: a device that failed one gets nothing new.
// What is found to be wrong is stored with the node's mark, so that a coordinator that starts again
// knows it before the worker speaks, and of a worker that was restarted meanwhile.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

bool HasDevice(const Node& node, int32_t device) {
  return device >= 0 && static_cast<size_t>(device) < node.device_jobs.size();
}

// The device's check of then is the one that is known already.
bool IsKnown(const job::NodeCheck* before, const job::DeviceCheck& check) {
  if (before == nullptr) return false;
  return std::any_of(before->devices.begin(), before->devices.end(),
                     [&check](const job::DeviceCheck& other) {
                       return other.device == check.device && other.time == check.time;
                     });
}

// Of the node's own devices, with what was known before of those that are kept out, where nothing
// is said of them now: by a new process of the worker, which has not checked them yet.
std::shared_ptr<const job::NodeCheck> Merged(const Node& node, const job::NodeCheck& check) {
  auto whole = std::make_shared<job::NodeCheck>(check);
  std::erase_if(whole->devices,
                [&node](const job::DeviceCheck& one) { return !HasDevice(node, one.device); });
  if (node.check == nullptr) return whole;
  const auto speaks = [](const job::NodeCheck& all, int32_t device) {
    return std::any_of(all.devices.begin(), all.devices.end(), [device](const auto& one) {
      return one.device == device && one.verdict != job::CheckVerdict::kNone;
    });
  };
  for (const job::DeviceCheck& old : node.check->devices) {
    if (!node.failed_checks.contains(old.device) || speaks(check, old.device)) continue;
    std::erase_if(whole->devices,
                  [&old](const job::DeviceCheck& one) { return one.device == old.device; });
    whole->devices.push_back(old);
  }
  std::stable_sort(whole->devices.begin(), whole->devices.end(),
                   [](const auto& a, const auto& b) { return a.device < b.device; });
  return whole;
}

NodeMarked RecordOf(const Node& node) {
  NodeMarked record{.node = node.name, .mark = node.mark, .reserve = node.reserve};
  if (node.check == nullptr) return record;
  for (const job::DeviceCheck& one : node.check->devices) {
    const bool failed = one.verdict == job::CheckVerdict::kFailed;
    if (failed || one.verdict == job::CheckVerdict::kSlow) record.checks.push_back(one);
    if (failed && !node.failed_checks.contains(one.device)) record.let_back.push_back(one.device);
  }
  return record;
}

// Each check has other times and figures, which are not worth a record.
bool HasVerdictsOf(const NodeMarked& a, const NodeMarked& b) {
  return a.let_back == b.let_back &&
         std::equal(a.checks.begin(), a.checks.end(), b.checks.begin(), b.checks.end(),
                    [](const job::DeviceCheck& one, const job::DeviceCheck& other) {
                      return one.device == other.device && one.verdict == other.verdict;
                    });
}

}  // namespace

// A worker says all that it knows each time, also what somebody has forgiven since.
void Coordinator::NoteCheck(Node& node, const std::shared_ptr<const job::NodeCheck>& check) {
  std::vector<std::string> failed, passed;
  for (const job::DeviceCheck& one : check->devices) {
    if (!HasDevice(node, one.device) || IsKnown(node.check.get(), one)) continue;
    if (one.verdict == job::CheckVerdict::kFailed) {
      if (!node.failed_checks.insert(one.device).second) continue;
      failed.push_back(absl::StrCat("device ", one.device,
                                    " failed its check and gets nothing new: ", one.reason));
    } else if (one.verdict != job::CheckVerdict::kNone &&
               node.failed_checks.erase(one.device) != 0) {
      passed.push_back(absl::StrCat("device ", one.device, " has passed its check again"));
    }
  }
  node.check = Merged(node, *check);
  if (!HasVerdictsOf(node.stored, RecordOf(node))) StoreNode(node);
  PublishView(node);  // who reads of it in the log finds it there
  for (const std::string& text : failed) {
    Log(absl::StrCat("node=", node.name, " ", text));
    TellJobsOn({node.name}, "DeviceCheckFailed", text);
  }
  for (const std::string& text : passed) {
    Log(absl::StrCat("node=", node.name, " ", text));
    TellJobsOn({node.name}, "DeviceCheckPassed", text);
  }
  if (failed.empty() && passed.empty()) return;
  capacity_changed_ = true;
  if (passed.empty()) return;
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConsiderReturn(jobs_.at(id));
}

void Coordinator::ForgiveChecks(Node& node, const std::string& by) {
  if (node.failed_checks.empty()) return;
  Log(absl::StrCat("node=", node.name, " devices=", node.failed_checks.size(),
                   " that failed a check take jobs again", by.empty() ? "" : ", by ", by));
  node.failed_checks.clear();
  StoreNode(node);
  PublishView(node);
  capacity_changed_ = true;
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConsiderReturn(jobs_.at(id));
}

void Coordinator::StoreNode(Node& node) {
  node.stored = RecordOf(node);
  actions_.push_back(StoreRecord{++last_record_, {.time = now_, .body = node.stored}});
}

void Coordinator::RestoreNodes(const std::vector<JournalRecord>& records) {
  std::map<NodeName, const NodeMarked*> last;
  for (const JournalRecord& record : records) {
    if (const auto* marked = std::get_if<NodeMarked>(&record.body)) last[marked->node] = marked;
  }
  for (const auto& [name, marked] : last) {
    if (!marked->mark.has_value() && !marked->reserve.has_value() && marked->checks.empty())
      continue;
    Node& node = nodes_[name];
    node.name = name;
    node.disconnected_at = now_;
    node.stored = *marked;
    node.mark = node.shown_mark = marked->mark;
    node.reserve = node.shown_reserve = marked->reserve;
    if (node.Drains()) drained_.insert(name);
    if (node.reserve.has_value()) reserved_.insert(name);
    if (!marked->checks.empty())
      node.check = std::make_shared<job::NodeCheck>(job::NodeCheck{.devices = marked->checks});
    for (const job::DeviceCheck& one : marked->checks) {
      const bool let_back =
          std::count(marked->let_back.begin(), marked->let_back.end(), one.device) != 0;
      if (one.verdict == job::CheckVerdict::kFailed && !let_back)
        node.failed_checks.insert(one.device);
    }
    NoteDeadline(node);
    PublishView(node);
  }
}

}  // namespace phalanx::coordinator
