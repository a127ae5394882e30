#include "coordinator/runtime/planning.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/runtime/plan_products.h"
#include "coordinator/wire/ended_codec.h"
#include "core/base/digest.h"
#include "core/base/path.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/devices.h"
#include "core/job/directory.h"
#include "core/plan/dealt_anew.h"
#include "core/plan/digest_text.h"
#include "core/plan/kept_state.h"
#include "core/plan/layout_change.h"
#include "core/plan/loss.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/plan/preparation.h"
#include "core/posix/beside.h"
#include "core/schedule/admission.h"
#include "core/schedule/device_kinds.h"
#include "core/schedule/preview.h"
#include "core/wire/job_yaml.h"
#include "core/wire/plan_codec.h"
#include "core/wire/resolved_job.h"

namespace phalanx::coordinator {
namespace {

// Of one plan; several may be planned at once.
constexpr size_t kSearchThreadsMax = 4;

// Empty: nothing of any.
std::vector<int64_t> HostMemoryOfNodes(const plan::Plan& plan) {
  std::vector<int64_t> bytes;
  if (!plan::TakesHostMemory(plan)) return bytes;
  for (const plan::HostEstimate& node : plan::HostMemoryOf(plan, plan::EstimateMemory(plan)))
    bytes.push_back(node.total());
  return bytes;
}

// Why a loss may cost state: "module vision: its optimizer state has one home"; empty: all has
// more.
std::string SingleHomeOf(const plan::Plan& plan) {
  for (const plan::ModulePlan& module : plan.modules) {
    const auto m = static_cast<size_t>(module.index);
    if (!module.TrainsWeights() || m >= plan.layout.modules.size()) continue;
    if (plan.layout.modules[m].state_copies >= 2) continue;
    return absl::StrCat("module ", plan.spec.modules[m].name,
                        ": its optimizer state has one home under this layout");
  }
  return "";
}

PlanSummary SummaryOf(plan::Plan plan, std::vector<plan::LayoutChange> changes = {}) {
  std::vector<int64_t> host_memory = HostMemoryOfNodes(plan);
  std::string single_home = SingleHomeOf(plan);
  return PlanSummary{.layout = std::move(plan.layout),
                     .digest = std::move(plan.digest),
                     .notes = std::move(plan.notes),
                     .host_memory = std::move(host_memory),
                     .changes = std::move(changes),
                     .single_home = std::move(single_home)};
}

// OK where everybody has the work and the device that they had, and no state has a home less: it is
// samples alone that may be dealt otherwise.
absl::Status CheckPaced(const plan::Layout& before, const plan::Layout& next) {
  const auto keeps = [](const plan::ModuleLayout& from, const plan::ModuleLayout& to) {
    return from.lowered == to.lowered && from.changes == to.changes &&
           from.state_home == to.state_home && from.state_copies <= to.state_copies;
  };
  const bool same = before.nodes == next.nodes && before.lost == next.lost &&
                    before.idle == next.idle &&
                    std::equal(before.modules.begin(), before.modules.end(), next.modules.begin(),
                               next.modules.end(), keeps);
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "with samples dealt otherwise ranks would have other work, or state fewer homes");
}

// The plan of the order's layout with other slow places. A device that idles takes over after
// losses, from ranks that nobody has made ready; not here.
absl::StatusOr<PlanSummary> PlanPaced(const job::JobSpec& spec, const ComputePlan& order) {
  ASSIGN_OR_RETURN(const plan::Plan running, plan::Expand(spec, **order.layout));
  ASSIGN_OR_RETURN(
      plan::Plan next,
      schedule::AdmitAfter(running, {.spares = false, .slow = order.slow}, order.limits));
  RETURN_IF_ERROR(CheckPaced(running.layout, next.layout));
  std::vector<std::string> dealt = plan::ToWords(plan::DealtAnew(running, next));
  next.layout.epoch = std::max(order.epoch, (*order.layout)->epoch);
  PlanSummary summary = SummaryOf(std::move(next));
  summary.dealt = std::move(dealt);
  return summary;
}

bool Has(const std::vector<job::Rung>& ladder, job::Rung rung) {
  return std::find(ladder.begin(), ladder.end(), rung) != ladder.end();
}

bool HasLabels(const NodeView& node, const std::map<std::string, std::string>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&node](const auto& one) {
    const auto label = node.labels.find(one.first);
    return label != node.labels.end() && label->second == one.second;
  });
}

// What all connected nodes have that the job may use, as far as it is known.
wire::SearchedDevices DevicesOf(const job::JobSpec& spec, const std::vector<NodeView>& nodes) {
  const job::DeviceKind kind = spec.resources.device;
  const std::map<std::string, std::string> selector = job::NodeSelectorOf(spec);
  wire::SearchedDevices devices;
  std::set<std::string> names;
  bool first = true;
  for (const NodeView& node : nodes) {
    if (!node.connected || node.device_kind != kind || node.device_jobs.empty()) continue;
    if (!HasLabels(node, selector)) continue;
    const auto count = static_cast<int32_t>(node.device_jobs.size());
    devices.node_devices = first ? count : std::min(devices.node_devices, count);
    first = false;
    for (const int64_t memory : node.device_memory) {
      if (memory <= 0) continue;
      devices.device_memory =
          devices.device_memory == 0 ? memory : std::min(devices.device_memory, memory);
    }
    names.insert(node.device_names.begin(), node.device_names.end());
    if (node.device_names.size() < node.device_jobs.size()) names.insert("");
  }
  if (kind == job::DeviceKind::kCpu) {
    devices.costs.why_nominal = "slots on CPU have no profile";
  } else {
    devices.costs = schedule::CostsOfDevices(names);
  }
  return devices;
}

// Tells training sets, and what the modules make of their samples, from each other.
std::string DataKeyOf(const job::JobSpec& spec, const std::string& directory) {
  if (!spec.data.has_value()) return "";
  job::JobSpec part;
  part.data = spec.data;
  part.data->validation.clear();
  part.edges = spec.edges;
  part.language = spec.language;
  for (const job::Module& module : spec.modules) {
    job::Module& bare = part.modules.emplace_back();
    bare.name = module.name;
    bare.architecture = module.architecture;
  }
  return Digest(absl::StrCat(directory, "\n", job::ActedText(part)));
}

// Where it leaves layouts to the planner, these are chosen and written into it.
struct Resolved {
  wire::ResolvedJob job;
  std::string data_key;  // of one that was laid out
};
absl::StatusOr<Resolved> Resolve(const Document& document, job::ReadJob read, job::Purpose purpose,
                                 NodesSource nodes, DataShapeSource data, GoOn go_on) {
  Resolved resolved;
  wire::SearchedDevices devices;
  std::optional<job::DataShape> shape;
  if (read.spec.HasOpenLayout()) {
    devices = DevicesOf(read.spec, nodes());
    devices.threads = {std::min<size_t>(std::thread::hardware_concurrency(), kSearchThreadsMax),
                       RunBeside};
    resolved.data_key = DataKeyOf(read.spec, document.directory);
    if (!resolved.data_key.empty()) shape = data(resolved.data_key);
  }
  ASSIGN_OR_RETURN(resolved.job, wire::Resolve(document.text, std::move(read), purpose, devices,
                                               shape, std::move(go_on)));
  return resolved;
}

// Refuses a job of products in FP8 on GPUs where there are nodes of GPUs and all of them say that
// theirs have none. Where none is known yet, or one has not said, the job waits in the queue.
void CheckFp8(const job::JobSpec& spec, Fp8Source fp8, std::vector<Violation>& violations) {
  // A job of other products may name the label in its own selector.
  if (spec.linear != job::LinearFormat::kFp8 || spec.resources.device != job::DeviceKind::kGpu)
    return;
  Fp8Nodes nodes = fp8();
  if (nodes.without == 0 || nodes.without < nodes.gpu_nodes) return;
  if (nodes.names.size() < nodes.without) nodes.names.push_back("...");
  violations.push_back(
      {.field = "spec.precision.linear",
       .value = "fp8",
       .rule =
           absl::StrCat("needs GPUs of compute capability 9.0 or later, which ",
                        nodes.without == 1 ? "the node of GPUs has not (" : "no node of GPUs has (",
                        absl::StrJoin(nodes.names, ", "),
                        "); write `linear: compute`, or add a node that has them")});
}

// Whether some rung of it is that training goes on after a loss.
bool GoesOn(const std::vector<job::Rung>& ladder) {
  return Has(ladder, job::Rung::kShrink) || Has(ladder, job::Rung::kDropReplica) ||
         Has(ladder, job::Rung::kRestart) || Has(ladder, job::Rung::kWait);
}

// What an order asks of the state of its layout before anything is planned.
absl::Status CheckState(const job::JobSpec& spec, const ComputePlan& order) {
  if (!order.standby && order.stateless.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::Expand(spec, **order.layout));
  if (order.standby) {
    for (const Rank rank : order.lost) RETURN_IF_ERROR(plan::MayBeLost(plan, rank));
  }
  return plan::CheckStateBeside(plan, order.stateless);
}

// Of a job that has no layout yet.
absl::StatusOr<plan::Plan> FirstPlan(const job::JobSpec& spec, const ComputePlan& order) {
  const schedule::BytesBeside beside = schedule::BesideOfDevices(order.device_names);
  ASSIGN_OR_RETURN(plan::Plan plan, schedule::AdmitJob(spec, plan::ClusterOf(order.placement),
                                                       order.limits, order.epoch, beside));
  if (std::exchange(plan.layout.derivation, order.derivation) != order.derivation) {
    ASSIGN_OR_RETURN(plan::Plan again, plan::Expand(spec, std::move(plan.layout)));
    again.notes = std::move(plan.notes);
    again.lowering_notes = plan.lowering_notes;
    plan = std::move(again);
  }
  if (TakesProducts(spec)) plan::TakeProducts(order.products.value_or(""), plan);
  if (order.request->lost.empty()) return plan;
  return schedule::AdmitWithout(plan, order.request->lost, order.limits, beside);
}

// Of a job that goes on from `plan`, which gets the ladder of the order.
absl::StatusOr<plan::Plan> PlanAfter(const job::JobSpec& spec, plan::Plan& plan,
                                     const ComputePlan& order) {
  plan::Change change{.lost = order.lost, .unfit = order.unfit};
  for (const Rank rank : order.returned) {
    const auto loan = order.lent.find(rank);
    change.returned.emplace(rank, loan == order.lent.end() ? plan.DeviceOf(rank) : loan->second);
  }
  if (!order.any_rung) return schedule::AdmitAfter(plan, change, order.limits);
  plan.spec.recovery.ladder = job::AllRungs();
  ASSIGN_OR_RETURN(plan::Plan next, schedule::AdmitAfter(plan, change, order.limits));
  return plan::Expand(spec, std::move(next.layout));  // ranks make it of the document as it is
}

// What an order asks of the state of ranks that train, once it is planned. `from`: of its layout.
absl::Status CheckKept(const ComputePlan& order, const plan::Plan& from, const plan::Plan& next) {
  if (!order.kept.has_value()) return absl::OkStatus();
  const plan::Layout& kept = *order.kept->layout;
  if (kept == **order.layout) return plan::CheckStateIsKept(from, next, order.kept->mirrored);
  ASSIGN_OR_RETURN(const plan::Plan trains, plan::Expand(from.spec, kept));
  return plan::CheckStateIsKept(trains, next, order.kept->mirrored);
}

}  // namespace

absl::StatusOr<ReadSubmit> ReadDocument(Document document, plan::RankList lost, Fp8Source fp8) {
  RETURN_IF_ERROR(job::CheckDirectory(document.directory));
  ASSIGN_OR_RETURN(job::ReadJob job, wire::ReadJobFile(document.text, job::Purpose::kSubmit));
  std::vector<Violation> violations;
  CheckFp8(job.spec, fp8, violations);
  RETURN_IF_ERROR(ViolationsStatus(violations));
  return ReadSubmit{std::move(document), std::move(lost), std::move(job)};
}

absl::StatusOr<JobRequestPtr> RequestOf(ReadSubmit submit, NodesSource nodes, DataShapeSource data,
                                        GoOn go_on) {
  Document& document = submit.document;
  plan::RankList& lost = submit.lost;
  ASSIGN_OR_RETURN(Resolved resolved,
                   Resolve(document, std::move(submit.job), job::Purpose::kSubmit, nodes, data,
                           std::move(go_on)));
  std::string submitted_digest;
  if (resolved.job.text != document.text) submitted_digest = DigestOf(document, lost);
  document.text = std::move(resolved.job.text);
  job::ReadJob& read = resolved.job.job;
  const job::JobSpec& spec = read.spec;
  const int32_t devices = job::DevicesOf(spec);
  if (!lost.empty()) {  // which ranks a job can do without does not depend on where they are
    ASSIGN_OR_RETURN(const plan::Plan plan,
                     plan::MakePlan(spec, plan::MakeCluster(1, devices), Epoch{1}));
    RETURN_IF_ERROR(plan::LayoutAfter(plan, {.lost = lost, .spares = false}).status());
  }
  const bool has_spares = devices > spec.World();
  const bool recovers =
      GoesOn(spec.recovery.ladder) || (has_spares && Has(spec.recovery.ladder, job::Rung::kSpare));
  JobRequest request{.name = spec.name,
                     .labels = spec.labels,
                     .node_selector = job::NodeSelectorOf(spec),
                     .output = ResolvePath(document.directory, spec.output),
                     .warnings = std::move(read.warnings),
                     .layout_note = std::move(resolved.job.note),
                     .data_key = std::move(resolved.data_key),
                     .submitted_digest = std::move(submitted_digest),
                     .steps = spec.steps,
                     .corrupt_max = spec.data.has_value() ? spec.data->corrupt_max : 0,
                     .time_limit = spec.time_limit.value_or(absl::InfiniteDuration()),
                     .checkpoints = spec.checkpoint.has_value(),
                     .recovers = recovers,
                     .waits = Has(spec.recovery.ladder, job::Rung::kWait),
                     .restarts = Has(spec.recovery.ladder, job::Rung::kRestart),
                     .begins_anew = spec.WritesCheckpointsOnTheWay(),
                     .rejoins = spec.recovery.rejoin == job::Rejoin::kAuto,
                     .borrows = Has(spec.recovery.ladder, job::Rung::kSpare),
                     .relieves = spec.recovery.slow_devices == job::SlowDevices::kFewerSamples,
                     .standby = recovers && spec.recovery.standby == job::Standby::kAuto &&
                                devices <= plan::kPreparedDevicesMax,
                     .hold = spec.recovery.hold,
                     .budget = spec.recovery.budget,
                     .priority = spec.priority,
                     .preemptible = spec.preemptible,
                     .world = spec.World(),
                     .devices = devices,
                     .device_kind = spec.resources.device,
                     .lost = std::move(lost)};
  request.document = std::move(document);
  return std::make_shared<const JobRequest>(std::move(request));
}

absl::StatusOr<JobRequestPtr> ReadRequest(Document document, plan::RankList lost, NodesSource nodes,
                                          DataShapeSource data, Fp8Source fp8) {
  ASSIGN_OR_RETURN(ReadSubmit read, ReadDocument(std::move(document), std::move(lost), fp8));
  return RequestOf(std::move(read), nodes, data);
}

JobRequestPtr RequestAsSubmitted(Document document, plan::RankList lost) {
  JobRequest request;
  request.submitted_digest = DigestOf(document, lost);
  request.document = std::move(document);
  request.lost = std::move(lost);
  return std::make_shared<const JobRequest>(std::move(request));
}

JobRequestPtr RequestBeforeSearch(const ReadSubmit& read) {
  JobRequest request = *RequestAsSubmitted(read.document, read.lost);
  request.name = read.job.spec.name;
  request.labels = read.job.spec.labels;
  request.priority = read.job.spec.priority;
  return std::make_shared<const JobRequest>(std::move(request));
}

absl::StatusOr<PlanSummary> PlanJobOf(const ComputePlan& ordered) {
  ComputePlan order = ordered;
  const JobRequest& request = *order.request;
  ASSIGN_OR_RETURN(const job::ReadJob read,
                   wire::ReadJobFile(request.document.text, job::Purpose::kAccepted));
  LeaveRoomForProducts(read.spec, order);
  if (order.slow.has_value()) return PlanPaced(read.spec, order);
  RETURN_IF_ERROR(CheckState(read.spec, order));
  plan::Plan plan;
  std::vector<plan::LayoutChange> changes;
  bool needs_copies = false;
  if (order.layout.has_value()) {
    ASSIGN_OR_RETURN(plan, plan::Expand(read.spec, **order.layout));
    if (order.lost.empty() && order.returned.empty()) {
      RETURN_IF_ERROR(plan::CheckMemory(plan, order.limits));
    } else {
      ASSIGN_OR_RETURN(plan::Plan next, PlanAfter(read.spec, plan, order));
      RETURN_IF_ERROR(CheckKept(order, plan, next));
      changes = plan::ChangesBetween(plan, next);
      needs_copies = plan::NeedsCopies(plan, order.lost);
      plan = std::move(next);
    }
    KeepProducts(order, plan);
    plan.layout.epoch = std::max(order.epoch, (*order.layout)->epoch);
  } else {
    ASSIGN_OR_RETURN(plan, FirstPlan(read.spec, order));
    if (!request.layout_note.empty()) plan.notes.push_back(request.layout_note);
  }
  PlanSummary summary = SummaryOf(std::move(plan), std::move(changes));
  summary.needs_copies = needs_copies;
  return summary;
}

void FillLayouts(std::vector<JournalRecord>& records) {
  std::map<JobId, JobRequestPtr> live;
  for (const JournalRecord& record : records) {
    if (const auto* submitted = std::get_if<JobSubmitted>(&record.body)) {
      live[record.job] = submitted->request;
    } else if (const auto* changed = std::get_if<PhaseChanged>(&record.body)) {
      if (job::IsTerminal(changed->phase)) live.erase(record.job);
    }
  }
  for (JournalRecord& record : records) {
    auto* planned = std::get_if<EpochPlanned>(&record.body);
    const auto job = live.find(record.job);
    if (planned == nullptr || job == live.end() || !planned->layout->modules.empty()) continue;
    absl::StatusOr<PlanSummary> plan = PlanJobOf({.request = job->second,
                                                  .placement = planned->layout->nodes,
                                                  .epoch = planned->layout->epoch});
    if (!plan.ok()) continue;
    plan->layout.data_digest = planned->layout->data_digest;
    *planned = {.layout = std::move(plan->layout),
                .plan_digest = std::move(plan->digest),
                .host_memory = std::move(plan->host_memory)};
  }
}

absl::StatusOr<v1::Plan> PreviewPlan(const Document& document, absl::Span<const Rank> lost,
                                     const std::vector<NodeView>& nodes, DataShapeSource data,
                                     GoOn go_on) {
  ASSIGN_OR_RETURN(job::ReadJob read, wire::ReadJobFile(document.text, job::Purpose::kPlan));
  const JobRequest request{.node_selector = job::NodeSelectorOf(read.spec),
                           .devices = job::DevicesOf(read.spec),
                           .device_kind = read.spec.resources.device};
  NodeTable empty;
  int64_t devices = 0;
  for (const NodeView& view : nodes) {
    Node node{.name = view.name,
              .session = SessionId{view.connected ? 1u : 0u},
              .device_kind = view.device_kind,
              .device_jobs = std::vector<JobId>(view.device_jobs.size()),
              .device_memory = view.device_memory,
              .device_names = view.device_names,
              .host_memory = view.host_memory,
              .labels = view.labels,
              .draining = view.draining,
              .reserve = view.reserve,
              .suspect = view.suspect};
    if (node.TakesJobs() && Matches(node, request)) devices += node.FreeDevices();
    empty.emplace(view.name, std::move(node));
  }
  const std::optional<Placement> placement = ChoosePlacement(empty, {}, request);
  if (!placement.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job needs ", request.devices,
                     " devices; the connected nodes that match have ", devices));
  }
  ASSIGN_OR_RETURN(const Resolved resolved,
                   Resolve(
                       document, std::move(read), job::Purpose::kPlan, [&nodes] { return nodes; },
                       data, std::move(go_on)));
  ASSIGN_OR_RETURN(
      schedule::Preview preview,
      schedule::PreviewJob(resolved.job.job.spec, plan::ClusterOf(*placement),
                           LimitsOf(empty, *placement, JobId{}), lost,
                           schedule::BesideOfDevices(DeviceNamesOf(empty, *placement))));
  const std::string& note = resolved.job.note;
  if (!note.empty()) preview.plan.notes.push_back(note);
  return wire::ToProto(preview.plan, wire::FiguresOf(preview));
}

}  // namespace phalanx::coordinator
