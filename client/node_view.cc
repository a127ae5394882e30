#include "client/node_view.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/doctor_nodes.h"
#include "client/format.h"
#include "core/base/terminal_text.h"
#include "core/job/node_check.h"
#include "core/plan/memory_fit.h"
#include "core/wire/check_codec.h"

namespace phalanx::client {
namespace {

bool HasFailed(const v1::NodeStatus& node, int32_t device) {
  return std::count(node.failed_devices().begin(), node.failed_devices().end(), device) != 0;
}

// The verdict, and in words what became of the device.
std::string CheckText(const v1::NodeStatus& node, const job::DeviceCheck* check, int32_t device) {
  const bool failed = check != nullptr && check->verdict == job::CheckVerdict::kFailed;
  const std::string verdict = check == nullptr || check->verdict == job::CheckVerdict::kNone
                                  ? "-"
                                  : std::string(job::ToString(check->verdict));
  if (HasFailed(node, device)) return failed ? verdict : absl::StrCat(verdict, ", failed a rank");
  return failed ? absl::StrCat(verdict, ", takes jobs again") : verdict;
}

std::string Details(const job::DeviceCheck* check) {
  if (check == nullptr) return "";
  const std::string figures = job::FiguresOf(*check);
  if (check->reason.empty()) return figures;
  return figures.empty() ? check->reason : absl::StrCat(check->reason, " (", figures, ")");
}

// A node that has not spoken to its coordinator has none, but for those that are known to have
// failed.
std::set<int32_t> DevicesOf(const v1::NodeStatus& node) {
  std::set<int32_t> devices(node.failed_devices().begin(), node.failed_devices().end());
  for (int32_t device = 0; device < node.devices(); ++device) devices.insert(device);
  return devices;
}

template <typename Field>
std::string Of(const Field& field, int32_t device, const char* unit) {
  const bool known = device < field.size() && field.Get(device) > 0;
  return known ? absl::StrCat(field.Get(device), unit) : "-";
}

// A line for each thing that is not as it should be.
void PrintMachine(const v1::NodeStatus& node, absl::Time now, std::ostream& out) {
  if (!node.has_examination()) return;
  bool sound = true;
  for (const job::Finding& finding : FindingsOf(node)) {
    if (!job::IsTrouble(finding)) continue;
    sound = false;
    PrintField("Machine",
               absl::StrCat(finding.check, ": ", job::ToString(finding.verdict), ": ",
                            finding.found, finding.next.empty() ? "" : "; ", finding.next),
               out);
  }
  const std::string age = FormatAge(now - ToTime(node.examination().received()));
  if (sound) PrintField("Machine", absl::StrCat("nothing is wrong, as of ", age, " ago"), out);
}

// "gpu, NVIDIA H200".
std::string KindText(const v1::NodeStatus& node) {
  std::set<std::string> kinds(node.device_names().begin(), node.device_names().end());
  kinds.erase("");
  if (kinds.empty()) return node.device_kind();
  return absl::StrCat(node.device_kind(), ", ", absl::StrJoin(kinds, ", "));
}

}  // namespace

std::string UsedMemoryText(int64_t used, int64_t bytes) {
  if (used <= 0 && bytes <= 0) return "-";
  return absl::StrCat(used >= 0 ? plan::FormatBytes(used) : "-", "/",
                      bytes > 0 ? plan::FormatBytes(bytes) : "-");
}

std::string NodeState(const v1::NodeStatus& node) {
  const auto* state = v1::NodeStatus::State_descriptor()->FindValueByNumber(node.state());
  std::string how = state == nullptr ? "Unknown" : EnumWord(*state);
  if (!node.refused().empty()) absl::StrAppend(&how, ": ", node.refused());
  const auto append = [&how](const char* what, const auto& decided) {
    absl::StrAppend(&how, ", ", what, decided.by().empty() ? "" : " by ", decided.by(), ": ",
                    decided.reason());
  };
  if (!node.unfit().empty()) absl::StrAppend(&how, ", gets nothing new: ", node.unfit());
  if (node.has_mark()) append(node.mark().drains() ? "drained" : "cordoned", node.mark());
  if (node.has_reserve()) append("reserved", node.reserve());
  return how;
}

int64_t FreeDevices(const v1::NodeStatus& node) {
  int64_t free = 0;
  for (int32_t device = 0; device < node.devices(); ++device) {
    const bool used = device < node.device_jobs_size() && node.device_jobs(device) != 0;
    free += used || HasFailed(node, device) ? 0 : 1;
  }
  return free;
}

void DescribeNode(const v1::NodeStatus& node, absl::Time now, std::ostream& out) {
  PrintField("Name", node.name(), out);
  PrintField("State", LineText(NodeState(node)), out);
  PrintField("Kind", KindText(node), out);
  PrintField("Devices", absl::StrCat(node.devices(), ", ", FreeDevices(node), " free"), out);
  if (node.host_memory() > 0) PrintField("Host memory", plan::FormatBytes(node.host_memory()), out);
  if (node.has_last_heartbeat()) {
    PrintField("Heartbeat", absl::StrCat(FormatAge(now - ToTime(node.last_heartbeat())), " ago"),
               out);
  }
  std::vector<std::string> labels;
  for (const auto& [key, value] : node.labels()) labels.push_back(absl::StrCat(key, "=", value));
  std::sort(labels.begin(), labels.end());
  PrintField("Labels", absl::StrJoin(labels, ", "), out);
  PrintField("Version", node.version(), out);
  PrintMachine(node, now, out);
  const job::NodeCheck checks =
      wire::FromProto(node.check(), std::max(node.devices(), node.check().devices_size()));
  const std::string loopback = job::FiguresOf(checks.loopback);
  PrintField("Loopback",
             absl::StrCat(loopback, loopback.empty() || checks.loopback.reason.empty() ? "" : ", ",
                          checks.loopback.reason),
             out);
  for (const v1::SlowDevice& slow : node.slow_devices()) {
    PrintField(
        "Slow",
        absl::StrFormat("device %d: %.2f times as long for the work of rank %d of job-%d as "
                        "%s, since %s ago (phalanx why job-%d)",
                        slow.device(), slow.ratio(), slow.rank(), slow.job(),
                        slow.others() == 1 ? "the other one with the same" : "others with the same",
                        FormatAge(now - ToTime(slow.since())), slow.job()),
        out);
  }
  Table table({"DEVICE", "JOB", "MEMORY", "TEMPERATURE", "CHECK", "AGE", "DETAILS"});
  for (const int32_t device : DevicesOf(node)) {
    const auto found =
        std::find_if(checks.devices.begin(), checks.devices.end(),
                     [device](const job::DeviceCheck& one) { return one.device == device; });
    const job::DeviceCheck* check = found == checks.devices.end() ? nullptr : &*found;
    const int64_t used =
        device < node.device_used_memory_size() ? node.device_used_memory(device) : -1;
    const int64_t memory = device < node.device_memory_size() ? node.device_memory(device) : 0;
    const int64_t job = device < node.device_jobs_size() ? node.device_jobs(device) : 0;
    table.Add({absl::StrCat(device), job == 0 ? "-" : absl::StrCat("job-", job),
               UsedMemoryText(used, memory), Of(node.device_temperatures(), device, " C"),
               CheckText(node, check, device),
               check == nullptr ? "-" : FormatAge(now - check->time), Details(check)});
  }
  table.Print(out);
}

}  // namespace phalanx::client
