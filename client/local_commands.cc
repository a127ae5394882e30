// The commands that need no server: validate and plan.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/child.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/late_note.h"
#include "core/base/status.h"
#include "core/job/devices.h"
#include "core/job/job_reader.h"
#include "core/job/scalar.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/schedule/preview.h"
#include "core/wire/job_yaml.h"
#include "core/wire/plan_codec.h"
#include "core/wire/plan_json.h"
#include "core/wire/plan_table.h"

namespace phalanx::client {
namespace {

// "4x8" -> 4 nodes of 8 devices.
absl::StatusOr<plan::Cluster> ClusterOf(const std::string& nodes, const job::JobSpec& spec) {
  if (nodes.empty()) return plan::MakeCluster(1, job::DevicesOf(spec));
  const std::vector<std::string> parts = absl::StrSplit(nodes, 'x');
  int32_t count = 0, devices = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &count) ||
      !absl::SimpleAtoi(parts[1], &devices) || count < 1 || devices < 1 ||
      int64_t{count} * devices > plan::kWorldMax) {
    return absl::OutOfRangeError(absl::StrCat("--nodes ", nodes,
                                              ": must be NODESxDEVICES, such as "
                                              "4x8, with at most ",
                                              plan::kWorldMax, " devices"));
  }
  return plan::MakeCluster(count, devices);
}

// What a flag says in bytes; 0: it was not given.
absl::StatusOr<int64_t> MemoryOf(absl::string_view flag, const std::optional<std::string>& size) {
  if (!size.has_value()) return 0;
  const std::optional<int64_t> bytes = job::ParseSize(*size);
  if (bytes.value_or(0) > 0) return *bytes;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " \"", *size, "\": must be a number of bytes, such as 80Gi"));
}

// The same of each device, and of each node of a cluster of equal ones.
plan::MemoryLimits LimitsOf(const plan::Cluster& cluster, int64_t device, int64_t host) {
  std::set<NodeName> nodes;
  for (const plan::Device& one : cluster.devices) nodes.insert(one.node);
  return {.devices = std::vector<int64_t>(cluster.devices.size(), device),
          .nodes = std::vector<int64_t>(nodes.size(), host)};
}

int PrintPlan(const plan::Plan& plan, const wire::PlanFigures& figures, Format format, Io& io) {
  switch (format) {
    case Format::kJson:
      io.out << wire::PlanJson(wire::ToProto(plan, figures));
      break;
    case Format::kYaml: {
      const absl::StatusOr<job::Tree> tree =
          wire::ParseYaml(wire::PlanJson(wire::ToProto(plan, figures)));
      if (!tree.ok()) {
        io.talk << "error: this plan is too large for yaml: use -o json\n";
        return kFailure;
      }
      PrintTree(*tree, Format::kYaml, io.out);
      break;
    }
    case Format::kName:
      io.out << plan.digest << "\n";
      break;
    default:
      io.out << wire::PlanTable(plan, figures);
  }
  return kSuccess;
}

}  // namespace

int Validate(const ValidateOptions& options, Io& io) {
  const absl::StatusOr<JobFile> file = LoadJobFile(options.file, job::Purpose::kSubmit);
  if (!file.ok()) return FailFile(file.status(), io);
  for (const std::string& warning : file->job.warnings) io.talk << "warning: " << warning << "\n";
  if (options.check_data) {
    if (options.file == "-") {
      io.talk << "error: --check-data needs a file: paths are relative to its folder\n";
      return kUsage;
    }
    const absl::StatusOr<int> code =
        RunAndWait({options.worker, "--check-data", AbsolutePath(options.file)});
    if (!code.ok()) return Fail(code.status(), io);
    if (*code != 0) return *code;
  }
  if (options.format == Format::kJson || options.format == Format::kYaml) {
    PrintTree(job::WriteJobSpec(file->job.spec), options.format, io.out);
  } else if (options.format == Format::kName) {
    io.out << file->job.spec.name << "\n";
  } else {
    io.talk << options.file << " is valid\n";
  }
  return kSuccess;
}

int Plan(const PlanOptions& options, Io& io) {
  if (const absl::Status usage = CheckPictures(options.pictures, options.format); !usage.ok()) {
    io.talk << "error: " << usage.message() << "\n";
    return kUsage;
  }
  const absl::StatusOr<JobFile> file = LoadJobFile(options.file, job::Purpose::kPlan);
  if (!file.ok()) return FailFile(file.status(), io);
  const job::JobSpec& spec = file->job.spec;
  const absl::StatusOr<plan::Cluster> cluster = ClusterOf(options.nodes, spec);
  if (!cluster.ok()) {
    io.talk << "error: " << cluster.status().message() << "\n";
    return kUsage;
  }
  const auto device_memory = MemoryOf("--device-memory", options.device_memory);
  const auto host_memory = MemoryOf("--host-memory", options.host_memory);
  for (const absl::Status& usage : {device_memory.status(), host_memory.status()}) {
    if (usage.ok()) continue;
    io.talk << "error: " << usage.message() << "\n";
    return kUsage;
  }
  const absl::StatusOr<schedule::Preview> laid = [&] {
    const LateNote note(io, "planning: laying the job out and simulating a step ...",
                        options.note_delay);
    plan::RankList lost;
    for (const int32_t rank : options.lost) lost.push_back(Rank{rank});
    return schedule::PreviewJob(spec, *cluster, LimitsOf(*cluster, *device_memory, *host_memory),
                                lost);
  }();
  if (!laid.ok()) return Fail(laid.status(), io);
  const wire::PlanFigures figures = wire::FiguresOf(*laid);
  const absl::Status drawn =
      WritePictures(options.pictures, laid->plan, figures, laid->simulation.timeline, io);
  if (!drawn.ok()) {
    io.talk << "error: " << drawn.message() << "\n";
    return kCannotCreate;
  }
  return TakesStandardOutput(options.pictures) ? kSuccess
                                               : PrintPlan(laid->plan, figures, options.format, io);
}

}  // namespace phalanx::client
