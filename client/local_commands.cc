// The commands that need no server: validate and plan.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <thread>
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
#include "client/output.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/devices.h"
#include "core/job/job_reader.h"
#include "core/job/scalar.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/posix/beside.h"
#include "core/posix/file.h"
#include "core/schedule/preview.h"
#include "core/schedule/profile.h"
#include "core/schedule/search.h"
#include "core/wire/job_yaml.h"
#include "core/wire/plan_codec.h"
#include "core/wire/plan_json.h"
#include "core/wire/plan_table.h"
#include "core/wire/resolved_job.h"
#include "core/wire/search_text.h"

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

// Puts so many nodes, one after the other, into each failure domain; the last number goes on.
void SetDomains(const std::vector<int32_t>& domain_nodes, plan::Cluster* cluster) {
  if (domain_nodes.empty()) return;
  size_t domain = 0;
  int32_t nodes = 0;  // of the domain so far
  for (size_t i = 0; i < cluster->devices.size(); ++i) {
    if (i == 0 || cluster->devices[i].node != cluster->devices[i - 1].node) ++nodes;
    if (nodes > domain_nodes[std::min(domain, domain_nodes.size() - 1)]) {
      ++domain;
      nodes = 1;
    }
    cluster->devices[i].domain = absl::StrCat("domain-", domain);
  }
}

// What a flag says in bytes; 0: it was not given.
absl::StatusOr<int64_t> MemoryOf(absl::string_view flag, const std::optional<std::string>& size) {
  if (!size.has_value()) return 0;
  const std::optional<int64_t> bytes = job::ParseSize(*size);
  if (bytes.value_or(0) > 0) return *bytes;
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " \"", *size, "\": must be a whole number of bytes above 0, such as 80Gi"));
}

// Whether samples with so many images or sounds (batch.items of `spec`) fit the context.
absl::Status CheckItems(const job::JobSpec& spec, bool of_flag) {
  const int64_t items = spec.batch.items;
  const int64_t context = spec.modules[static_cast<size_t>(spec.language)].architecture.context;
  std::vector<Violation> violations;
  for (size_t i = 0; i < spec.modules.size() && items > 1 && context > 0; ++i) {
    const int64_t positions = spec.PositionsOfItem(static_cast<int32_t>(i));
    if (positions == 0 || items * positions <= context) continue;
    violations.push_back({.field = of_flag ? "--items" : "spec.batch.items",
                          .value = absl::StrCat(items),
                          .rule = absl::StrCat("a sample has room for ", context / positions,
                                               ": one of ", spec.modules[i].name, " takes ",
                                               positions, " of its ", context, " positions")});
  }
  return violations.empty() ? absl::OkStatus() : ViolationsStatus(violations);
}

// All that is wrong with --lost of a job of so many ranks.
absl::Status CheckLost(const std::vector<int32_t>& lost, int32_t world) {
  std::vector<Violation> violations;
  std::set<int32_t> seen;
  for (const int32_t rank : lost) {
    std::string rule;
    if (rank < 0 || rank >= world) {
      rule = absl::StrCat("must be a rank of the job, below ", world);
    } else if (!seen.insert(rank).second) {
      rule = "is named twice";
    }
    if (!rule.empty())
      violations.push_back(
          {.field = "--lost", .value = absl::StrCat(rank), .rule = std::move(rule)});
  }
  return violations.empty() ? absl::OkStatus() : ViolationsStatus(violations);
}

// The same of each device, and of each node of a cluster of equal ones.
plan::MemoryLimits LimitsOf(const plan::Cluster& cluster, int64_t device, int64_t host) {
  std::set<NodeName> nodes;
  for (const plan::Device& one : cluster.devices) nodes.insert(one.node);
  return {.devices = std::vector<int64_t>(cluster.devices.size(), device),
          .nodes = std::vector<int64_t>(nodes.size(), host)};
}

// Whether the command line names devices.
bool Predicts(const PlanOptions& options) {
  return options.device_kind.has_value() || options.device_profile.has_value();
}

// What --search, a prediction and domains do not go with, or need.
absl::Status CheckSearch(const PlanOptions& options) {
  const auto other = [](absl::string_view flag, absl::string_view rule) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", rule));
  };
  if (!options.domain_nodes.empty() && options.nodes.empty())
    return other("--domain-nodes", "needs --nodes");
  if (!options.search) {
    constexpr absl::string_view kNeeds = "needs --search";
    if (options.devices.has_value()) return other("--devices", kNeeds);
    if (options.write.has_value()) return other("--write", kNeeds);
    if (options.items.has_value() && !Predicts(options))
      return other("--items", "needs --search, --device-kind or --device-profile");
    return absl::OkStatus();
  }
  constexpr absl::string_view kNot = "does not go with --search";
  if (!options.lost.empty()) return other("--lost", kNot);
  if (!options.domain_nodes.empty()) return other("--domain-nodes", kNot);
  if (options.host_memory.has_value()) return other("--host-memory", kNot);
  const PictureFiles& pictures = options.pictures;
  if (!pictures.svg.empty() || !pictures.trace.empty() || !pictures.dot.empty())
    return other("a picture", kNot);
  if (options.devices.has_value() && !options.nodes.empty())
    return other("--devices", "does not go with --nodes, which says how many there are");
  return absl::OkStatus();
}

// Of nodes of so many devices where the command line does not say.
constexpr int32_t kNodeDevices = 8;

// Of each node, as a search counts with it.
int32_t NodeDevicesOf(const PlanOptions& options, const plan::Cluster& cluster) {
  if (options.nodes.empty()) return kNodeDevices;
  return static_cast<int32_t>(std::count_if(
      cluster.devices.begin(), cluster.devices.end(),
      [&](const auto& device) { return device.node == cluster.devices.front().node; }));
}

// Far more than a profile has.
constexpr int64_t kProfileBytesMax = 16 << 20;

// Errors: InvalidArgument for a kind or a file that there is not, and for what is no profile.
absl::StatusOr<schedule::DeviceProfile> ProfileOf(const PlanOptions& options) {
  if (!options.device_profile.has_value()) {
    return schedule::FindProfile(
        options.device_kind.value_or(std::string(schedule::kNominalDevice)));
  }
  const std::string where = absl::StrCat("--device-profile: ", LineText(*options.device_profile));
  absl::StatusOr<std::string> text = ReadWholeFile(*options.device_profile, kProfileBytesMax);
  if (!text.ok()) return Annotate(text.status(), where);
  absl::StatusOr<schedule::DeviceProfile> profile = schedule::ReadProfile(*text);
  if (!profile.ok()) return Annotate(profile.status(), where);
  return profile;
}

schedule::SearchOptions SearchOptionsOf(const PlanOptions& options, const plan::Cluster& cluster,
                                        int64_t device_memory,
                                        const schedule::DeviceProfile& profile, int32_t items) {
  schedule::SearchOptions search{.device_memory = device_memory,
                                 .profile = profile,
                                 .items = items,
                                 .threads = {std::thread::hardware_concurrency(), RunBeside}};
  search.devices = options.devices.value_or(static_cast<int32_t>(cluster.devices.size()));
  search.node_devices = NodeDevicesOf(options, cluster);
  return search;
}

int PrintSearch(const schedule::SearchResult& result, const schedule::SearchOptions& search,
                Format format, Io& io) {
  switch (format) {
    case Format::kJson:
      io.out << wire::SearchJson(result, search);
      break;
    case Format::kYaml: {
      const absl::StatusOr<job::Tree> tree = wire::ParseYaml(wire::SearchJson(result, search));
      if (!tree.ok()) return Fail(tree.status(), io);
      PrintTree(*tree, Format::kYaml, io.out);
      break;
    }
    case Format::kName:
      io.out << wire::LayoutText(result.best.front().spec) << "\n";
      break;
    default:
      io.out << wire::SearchTable(result, search);
  }
  return kSuccess;
}

int SearchPlan(const PlanOptions& options, const JobFile& file,
               const schedule::SearchOptions& search, Io& io) {
  const absl::StatusOr<schedule::SearchResult> result = [&] {
    const LateNote note(io, "searching: laying the job out and simulating steps ...",
                        options.note_delay);
    return schedule::SearchLayouts(file.job.spec, search);
  }();
  if (!result.ok()) return Fail(result.status(), io);
  if (options.write.has_value()) {
    const absl::StatusOr<std::string> text =
        wire::WithLayoutOf(file.document.text(), result->best.front().spec, {});
    if (!text.ok()) return Fail(text.status(), io);
    const absl::Status written = WriteOutput("--write", *options.write, *text);
    if (!written.ok()) {
      Fail(written, io);
      return kCannotCreate;
    }
  }
  return PrintSearch(*result, search, options.format, io);
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
  if (const absl::Status laid = CheckOpenLayout(*file, io); !laid.ok()) return Fail(laid, io);
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
    Fail(usage, io);
    return kUsage;
  }
  if (const absl::Status usage = CheckSearch(options); !usage.ok()) {
    Fail(usage, io);
    return kUsage;
  }
  absl::StatusOr<JobFile> file = LoadJobFile(options.file, job::Purpose::kPlan);
  if (!file.ok()) return FailFile(file.status(), io);
  int32_t& items = file->job.spec.batch.items;
  items = options.items.value_or(items);
  absl::StatusOr<plan::Cluster> cluster = ClusterOf(options.nodes, file->job.spec);
  if (!cluster.ok()) {
    Fail(cluster.status(), io);
    return kUsage;
  }
  SetDomains(options.domain_nodes, &*cluster);
  if (options.search || Predicts(options)) {  // else nothing counts with them
    const absl::Status fit = CheckItems(file->job.spec, options.items.has_value());
    if (!fit.ok() && !options.items.has_value()) return FailFile(fit, io);
    if (!fit.ok()) {
      Fail(fit, io);
      return kUsage;
    }
  }
  const auto device_memory = MemoryOf("--device-memory", options.device_memory);
  const auto host_memory = MemoryOf("--host-memory", options.host_memory);
  for (const absl::Status& usage : {device_memory.status(), host_memory.status()}) {
    if (usage.ok()) continue;
    Fail(usage, io);
    return kUsage;
  }
  const absl::StatusOr<schedule::DeviceProfile> profile = ProfileOf(options);
  if (!profile.ok() && options.device_profile.has_value()) {
    const int code = FailFile(profile.status(), io);
    return absl::IsInvalidArgument(profile.status()) ? static_cast<int>(kBadJobFile) : code;
  }
  if (!profile.ok()) {
    Fail(Annotate(profile.status(), "--device-kind"), io);
    return kUsage;
  }
  if (options.search) {
    return SearchPlan(options, *file,
                      SearchOptionsOf(options, *cluster, *device_memory, *profile, items), io);
  }
  const absl::StatusOr<schedule::Preview> laid = [&]() -> absl::StatusOr<schedule::Preview> {
    const LateNote note(io, "planning: laying the job out and simulating a step ...",
                        options.note_delay);
    ASSIGN_OR_RETURN(
        const wire::ResolvedJob resolved,
        wire::Resolve(file->document.text(), file->job, job::Purpose::kPlan,
                      {.threads = {std::thread::hardware_concurrency(), RunBeside},
                       .node_devices = NodeDevicesOf(options, *cluster),
                       .device_memory = *device_memory,
                       .costs = {.profile = *profile,
                                 .why_nominal = Predicts(options) ? "" : "no --device-kind"}}));
    plan::RankList lost;
    for (const int32_t rank : options.lost) lost.push_back(Rank{rank});
    const plan::MemoryLimits limits = LimitsOf(*cluster, *device_memory, *host_memory);
    const schedule::BytesBeside beside = schedule::BesideOf(*profile);
    const job::JobSpec& spec = resolved.job.spec;
    RETURN_IF_ERROR(CheckLost(options.lost, spec.World()));
    ASSIGN_OR_RETURN(schedule::Preview preview,
                     schedule::PreviewJob(spec, *cluster, limits, lost, beside));
    if (!resolved.note.empty()) preview.plan.notes.push_back(resolved.note);
    if (!Predicts(options)) return preview;
    const auto predict = [&](const plan::Plan& plan) {
      return schedule::PredictStep(plan, *profile, items, *device_memory);
    };
    ASSIGN_OR_RETURN(preview.prediction, predict(preview.plan));
    if (preview.loss.has_value()) {
      ASSIGN_OR_RETURN(const schedule::Preview healthy,
                       schedule::PreviewJob(spec, *cluster, limits, {}, beside));
      ASSIGN_OR_RETURN(const schedule::Prediction before, predict(healthy.plan));
      preview.loss->step_ratio = preview.prediction->step / before.step;
    }
    return preview;
  }();
  if (!laid.ok()) return Fail(laid.status(), io);
  const wire::PlanFigures figures = wire::FiguresOf(*laid);
  const absl::Status drawn =
      WritePictures(options.pictures, laid->plan, figures, laid->simulation.timeline, io);
  if (!drawn.ok()) {
    Fail(drawn, io);
    return kCannotCreate;
  }
  return TakesStandardOutput(options.pictures) ? kSuccess
                                               : PrintPlan(laid->plan, figures, options.format, io);
}

}  // namespace phalanx::client
