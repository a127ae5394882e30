#include "client/top.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_view.h"
#include "client/node_list.h"
#include "client/node_view.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/plan/memory_fit.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {
namespace {

constexpr int32_t kJobsMax = 100;
constexpr int32_t kDevicesShownMax = 256;
// To the first line; what is left of a line; what is left below.
constexpr char kHome[] = "\x1b[H", kEndLine[] = "\x1b[K\n", kEndScreen[] = "\x1b[J";

struct Sample {
  std::vector<v1::NodeStatus> nodes;
  std::vector<v1::JobStatus> jobs;  // live, newest first
};

absl::StatusOr<Sample> Take(Connection& connection) {
  Sample sample;
  ASSIGN_OR_RETURN(sample.nodes, ListNodes(connection, false));
  v1::ListJobsRequest request;
  for (const v1::JobPhase phase :
       {v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_STARTING, v1::JOB_PHASE_RUNNING}) {
    request.add_phases(phase);
  }
  request.set_page_size(kJobsMax);
  v1::ListJobsResponse jobs;
  RETURN_IF_ERROR(connection.Call(&v1::JobService::Stub::ListJobs, request, &jobs));
  sample.jobs.assign(jobs.jobs().begin(), jobs.jobs().end());
  return sample;
}

// Of the last step; 0: it has done none.
double TokensPerSecond(const v1::JobStatus& job) {
  const v1::StepReport& step = job.last_step();
  return step.seconds() > 0 ? static_cast<double>(step.tokens()) / step.seconds() : 0;
}

int64_t BusyDevices(const v1::NodeStatus& node) {
  return std::count_if(node.device_jobs().begin(), node.device_jobs().end(),
                       [](int64_t job) { return job != 0; });
}

std::string JobsOf(const v1::NodeStatus& node) {
  std::set<int64_t> jobs(node.device_jobs().begin(), node.device_jobs().end());
  jobs.erase(0);
  if (jobs.empty()) return "-";
  return absl::StrJoin(jobs, " ",
                       [](std::string* out, int64_t job) { absl::StrAppend(out, "job-", job); });
}

// Of all devices; in use where that is known of each.
std::string DeviceMemory(const v1::NodeStatus& node) {
  int64_t used = node.device_used_memory().empty() ? -1 : 0, bytes = 0;
  for (const int64_t device : node.device_memory()) bytes += device;
  for (const int64_t device : node.device_used_memory())
    used = used < 0 || device < 0 ? -1 : used + device;
  return UsedMemoryText(used, bytes);
}

// Of the warmest device.
std::string Temperature(const v1::NodeStatus& node) {
  int32_t warmest = 0;
  for (const int32_t degrees : node.device_temperatures()) warmest = std::max(warmest, degrees);
  return warmest > 0 ? absl::StrCat(warmest, " C") : "-";
}

// A line for each device.
void PrintDevices(const std::vector<v1::NodeStatus>& nodes, std::ostream& out) {
  Table table({"NODE", "DEVICE", "JOB", "MEMORY", "TEMPERATURE"});
  int64_t left = kDevicesShownMax;
  for (const v1::NodeStatus& node : nodes) {
    for (int32_t device = 0; device < node.devices(); ++device) {
      if (--left < 0) continue;
      const int64_t job = device < node.device_jobs_size() ? node.device_jobs(device) : 0;
      const int64_t used =
          device < node.device_used_memory_size() ? node.device_used_memory(device) : -1;
      const int64_t bytes = device < node.device_memory_size() ? node.device_memory(device) : 0;
      const int32_t degrees =
          device < node.device_temperatures_size() ? node.device_temperatures(device) : 0;
      table.Add({node.name(), absl::StrCat(device), job == 0 ? "-" : absl::StrCat("job-", job),
                 UsedMemoryText(used, bytes), degrees > 0 ? absl::StrCat(degrees, " C") : "-"});
    }
  }
  out << "\n";
  table.Print(out);
  if (left < 0) out << "... and " << -left << " more\n";
}

void PrintTables(const Sample& sample, const std::string& server, absl::Time now,
                 std::ostream& out) {
  int64_t devices = 0, busy = 0;
  double tokens = 0;
  for (const v1::NodeStatus& node : sample.nodes) {
    devices += node.devices();
    busy += BusyDevices(node);
  }
  Table jobs({"JOB", "NAME", "STATE", "STEP", "LOSS", "TOKENS/S", "RANKS", "EPOCH"});
  for (const v1::JobStatus& job : sample.jobs) {
    const double speed = job.phase() == v1::JOB_PHASE_RUNNING ? TokensPerSecond(job) : 0;
    tokens += speed;
    jobs.Add({JobName(job), job.name(), PhaseWord(job.phase()),
              absl::StrCat(job.last_step().step(), "/", job.steps()),
              job.has_last_step() ? FormatLoss(job.last_step().loss()) : "-",
              speed > 0 ? FormatCount(speed) : "-", absl::StrCat(job.world()),
              absl::StrCat(job.epoch())});
  }
  Table nodes({"NODE", "STATE", "KIND", "BUSY", "DEVICE MEMORY", "WARMEST", "HEARTBEAT", "JOBS"});
  for (const v1::NodeStatus& node : sample.nodes) {
    const auto* state = v1::NodeStatus::State_descriptor()->FindValueByNumber(node.state());
    nodes.Add({node.name(), state == nullptr ? "Unknown" : EnumWord(*state), node.device_kind(),
               absl::StrCat(BusyDevices(node), "/", node.devices()), DeviceMemory(node),
               Temperature(node),
               node.has_last_heartbeat() ? FormatAge(now - ToTime(node.last_heartbeat())) : "-",
               JobsOf(node)});
  }
  out << TerminalText(server) << "  "
      << absl::FormatTime("%Y-%m-%d %H:%M:%S", now, absl::LocalTimeZone()) << "  " << busy << " of "
      << devices << " devices busy  " << FormatCount(tokens) << " tokens/s\n\n";
  jobs.Print(out);
  if (sample.jobs.size() == static_cast<size_t>(kJobsMax)) out << "... the newest so many\n";
  out << "\n";
  nodes.Print(out);
}

void PrintOnce(const Sample& sample, Format format, std::ostream& out) {
  if (format == Format::kName) {
    for (const v1::JobStatus& job : sample.jobs) out << JobName(job) << "\n";
    return;
  }
  job::Tree tree = ToTree("jobs", sample.jobs);
  job::Tree nodes = ToTree("nodes", sample.nodes);
  std::move(nodes.entries.begin(), nodes.entries.end(), std::back_inserter(tree.entries));
  PrintTree(tree, format, out);
}

}  // namespace

int Top(Connection& connection, const TopOptions& options, Stopper& stopper, Io& io) {
  const bool drawn = options.format == Format::kTable || options.format == Format::kWide;
  if (drawn && !options.terminal) {
    io.talk << "error: top redraws a terminal, and standard output is none: -o json prints one "
               "sample\n";
    return kUsage;
  }
  do {
    const absl::StatusOr<Sample> sample = Take(connection);
    if (!sample.ok()) return FailCall(sample.status(), io);
    if (!drawn) {
      PrintOnce(*sample, options.format, io.out);
      return kSuccess;
    }
    std::ostringstream text;
    PrintTables(*sample, connection.server(), absl::Now(), text);
    if (options.format == Format::kWide) PrintDevices(sample->nodes, text);
    io.out << kHome << absl::StrReplaceAll(text.str(), {{"\n", kEndLine}}) << kEndScreen
           << std::flush;
  } while (io.out && !stopper.Pause(options.interval));
  return kSuccess;
}

}  // namespace phalanx::client
