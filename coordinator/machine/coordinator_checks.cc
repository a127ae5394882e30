// What checks of devices that no rank uses have found: a device that failed one gets nothing new.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

// The device's check of then is the one that is known already.
bool IsKnown(const job::NodeCheck* before, const job::DeviceCheck& check) {
  if (before == nullptr) return false;
  return std::any_of(before->devices.begin(), before->devices.end(),
                     [&check](const job::DeviceCheck& other) {
                       return other.device == check.device && other.time == check.time;
                     });
}

// With what was known before of devices that are kept out, where nothing is said of them now: by a
// new process of the worker, which has not checked them yet.
std::shared_ptr<const job::NodeCheck> WithReasons(std::shared_ptr<const job::NodeCheck> check,
                                                  const job::NodeCheck* before,
                                                  const std::set<int32_t>& failed) {
  if (before == nullptr) return check;
  const auto speaks = [](const job::NodeCheck& all, int32_t device) {
    return std::any_of(all.devices.begin(), all.devices.end(), [device](const auto& one) {
      return one.device == device && one.verdict != job::CheckVerdict::kNone;
    });
  };
  auto whole = std::make_shared<job::NodeCheck>(*check);
  for (const job::DeviceCheck& old : before->devices) {
    if (!failed.contains(old.device) || speaks(*check, old.device)) continue;
    std::erase_if(whole->devices,
                  [&old](const job::DeviceCheck& one) { return one.device == old.device; });
    whole->devices.push_back(old);
  }
  std::stable_sort(whole->devices.begin(), whole->devices.end(),
                   [](const auto& a, const auto& b) { return a.device < b.device; });
  return whole;
}

}  // namespace

// A worker says all that it knows each time, also what somebody has forgiven since.
void Coordinator::NoteCheck(Node& node, std::shared_ptr<const job::NodeCheck> check) {
  std::vector<std::string> failed, passed;
  for (const job::DeviceCheck& one : check->devices) {
    const bool exists =
        one.device >= 0 && static_cast<size_t>(one.device) < node.device_jobs.size();
    if (!exists || IsKnown(node.check.get(), one)) continue;
    if (one.verdict == job::CheckVerdict::kFailed) {
      if (!node.failed_checks.insert(one.device).second) continue;
      failed.push_back(absl::StrCat("device ", one.device,
                                    " failed its check and gets nothing new: ", one.reason));
    } else if (one.verdict != job::CheckVerdict::kNone &&
               node.failed_checks.erase(one.device) != 0) {
      passed.push_back(absl::StrCat("device ", one.device, " has passed its check again"));
    }
  }
  node.check = WithReasons(std::move(check), node.check.get(), node.failed_checks);
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
  PublishView(node);
  capacity_changed_ = true;
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConsiderReturn(jobs_.at(id));
}

}  // namespace phalanx::coordinator
