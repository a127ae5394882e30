#include "tests/sim/scale/light_cluster.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/runtime/planning.h"

namespace phalanx::scale {
namespace {

using coordinator::Event;
using coordinator::RankReported;
using coordinator::SessionId;

// Node names are "node-17".
int32_t NumberOf(const NodeName& name) {
  int32_t number = 0;
  if (absl::SimpleAtoi(name.substr(name.find('-') + 1), &number)) return number;
  std::abort();
}

std::vector<bool> WorkOf(const plan::Layout& layout, size_t ranks) {
  std::vector<bool> works(ranks, true);
  for (const plan::RankList* without : {&layout.lost, &layout.idle}) {
    for (const Rank rank : *without) works[static_cast<size_t>(rank.value)] = false;
  }
  return works;
}

}  // namespace

LightCluster::LightCluster(LightOptions options)
    : options_(std::move(options)),
      host_(timeline_, {.heartbeat_interval = options_.heartbeat_timeout,
                        .heartbeat_timeout = options_.heartbeat_timeout}),
      nodes_(static_cast<size_t>(options_.workload.nodes)),
      devices_(static_cast<size_t>(options_.workload.devices())) {
  host_.send = [this](const coordinator::SendCommand& order) { OnCommand(order); };
  host_.publish = [this](const coordinator::JobView& view) { OnView(view); };
}

std::string LightCluster::NameOf(int32_t node) { return absl::StrCat("node-", node); }

void LightCluster::Open(int32_t node) {
  Node& process = nodes_[static_cast<size_t>(node)];
  process.session = ++sessions_;
  process.incarnation = sessions_;
  session_nodes_.push_back(node);
  const auto devices = options_.workload.devices_per_node;
  host_.Feed(coordinator::SessionOpened{
      SessionId{process.session},
      {.node = NameOf(node),
       .incarnation = Incarnation{process.incarnation},
       .device_kind = job::DeviceKind::kGpu,
       .devices = devices,
       .device_memory =
           std::vector<int64_t>(static_cast<size_t>(devices), options_.workload.device_bytes),
       .host_memory = options_.workload.node_bytes}});
}

void LightCluster::Register() {
  for (int32_t node = 0; node < options_.workload.nodes; ++node) Open(node);
}

void LightCluster::Train() {
  const std::vector<int32_t> replicas = ReplicasOfJobs(options_.workload);
  jobs_.reserve(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i) {
    const std::string text = Document(options_.workload, options_.policy, absl::StrCat("large-", i),
                                      replicas[i], options_.workload.samples);
    const auto request = coordinator::ReadRequest({.text = text, .directory = "/jobs"});
    if (!request.ok()) {
      std::fprintf(stderr, "%s%s\n", text.c_str(), request.status().ToString().c_str());
      std::abort();
    }
    Job& job = jobs_.emplace_back();
    job.id = JobId{static_cast<int64_t>(i) + 1};
    job.yardstick = std::make_unique<Yardstick>(SpecOf(text));
    job.tally.ranks = (*request)->world;
    host_.Submit(*request);
  }
  const auto all_train = [this] {
    return std::all_of(jobs_.begin(), jobs_.end(),
                       [](const Job& job) { return job.start.step() > 0; });
  };
  while (!all_train() && timeline_.RunNext()) continue;
}

void LightCluster::Run(absl::Duration duration) {
  bool over = false;
  timeline_.After(duration, [&over] { over = true; });
  while (!over) timeline_.RunNext();
}

void LightCluster::Break(const std::vector<Outage>& outages) {
  for (const Outage& outage : outages) Fail(outage);
}

void LightCluster::Suffer(Field& field) {
  timeline_.After(field.UntilNext(), [this, &field] { FailNext(field); });
}

void LightCluster::FailNext(Field& field) {
  Fail(field.Next());
  Suffer(field);
}

void LightCluster::Heartbeats() {
  for (const Node& node : nodes_)
    host_.Feed(coordinator::HeartbeatReceived{.session = SessionId{node.session}});
}

double LightCluster::FailedShare() const {
  int32_t ranks = 0;
  for (const Job& job : jobs_) ranks += job.tally.ranks;
  return static_cast<double>(out_) / ranks;
}

// --- What the coordinator says.

void LightCluster::OnCommand(const coordinator::SendCommand& order) {
  using namespace coordinator;  // NOLINT: the many kinds of command
  const int32_t node = session_nodes_[order.session.value - 1];
  if (nodes_[static_cast<size_t>(node)].session != order.session.value) return;
  if (std::holds_alternative<PrepareData>(order.command))
    return OnPrepare(node, order.command_number);
  Finish(node, order.command_number);
  if (const auto* assign = std::get_if<Assign>(&order.command)) return OnAssign(node, *assign);
  if (const auto* begin = std::get_if<BeginEpoch>(&order.command)) return OnBegin(node, *begin);
}

void LightCluster::Finish(int32_t node, uint64_t number, bool with_data) {
  host_.Feed(
      coordinator::CommandFinished{.session = SessionId{nodes_[static_cast<size_t>(node)].session},
                                   .command_number = number,
                                   .data_digest = with_data ? kDataDigest : ""});
}

// A process can be warmed up on a device once that is back.
void LightCluster::OnPrepare(int32_t node, uint64_t number) {
  Instant ready = timeline_.now();
  const int32_t count = options_.workload.devices_per_node;
  for (int32_t device = node * count; device < (node + 1) * count; ++device) {
    const Device& each = devices_[static_cast<size_t>(device)];
    if (each.out && !each.hardware) ready = std::max(ready, each.back);
  }
  if (ready == timeline_.now()) return Finish(node, number, true);
  const uint64_t session = nodes_[static_cast<size_t>(node)].session;
  timeline_.At(ready, [this, node, number, session] {
    if (nodes_[static_cast<size_t>(node)].session == session) Finish(node, number, true);
  });
}

void LightCluster::OnAssign(int32_t node, const coordinator::Assign& order) {
  Job* job = Find(order.job);
  if (job == nullptr || order.epoch < job->assigned) return;
  if (order.epoch > job->assigned) Enter(*job, order);
  const int32_t count = options_.workload.devices_per_node;
  for (int32_t index = node * count; index < (node + 1) * count; ++index) {
    Device& device = devices_[static_cast<size_t>(index)];
    if (device.job < 0 || &jobs_[static_cast<size_t>(device.job)] != job) continue;
    const auto rank = static_cast<size_t>(device.rank);
    // Also a process that has no work in the next epoch leaves the one before.
    const bool leaves = order.goes_on && device.process && job->worked[rank];
    if (leaves) {
      Report(*job, device.rank, job->begun,
             coordinator::RankQuiet{.known = job->start, .context_ok = true});
    }
    if (!job->works[rank]) {
      device.process = false;
    } else if (device.out) {
      ReportOutage(*job, device.rank, order.epoch);
    } else {
      device.process = true;
      if (!order.goes_on) Report(*job, device.rank, order.epoch, coordinator::RankReady{});
    }
  }
}

void LightCluster::OnBegin(int32_t node, const coordinator::BeginEpoch& order) {
  Job* job = Find(order.job);
  if (job == nullptr || order.epoch != job->assigned) return;
  if (job->begun < order.epoch) {
    job->start = order.start;
    Begin(*job);
  }
  const int32_t count = options_.workload.devices_per_node;
  for (int32_t index = node * count; index < (node + 1) * count; ++index) {
    const Device& device = devices_[static_cast<size_t>(index)];
    if (device.job < 0 || &jobs_[static_cast<size_t>(device.job)] != job) continue;
    if (job->works[static_cast<size_t>(device.rank)] && device.process)
      Report(*job, device.rank, order.epoch, coordinator::RankReady{});
  }
}

void LightCluster::OnView(const coordinator::JobView& view) {
  Job* job = Find(view.id);
  if (job == nullptr) return;
  if (view.phase == job::JobPhase::kRunning && job->begun == Epoch{}) Begin(*job);
  if (job::IsTerminal(view.phase) && job->tally.ended.empty()) {
    Tally(*job);
    job->trains = false;
    job->tally.ended = view.reason;
  }
}

// --- What ranks do.

LightCluster::Job* LightCluster::Find(JobId id) {
  const auto index = static_cast<size_t>(id.value - 1);
  return index < jobs_.size() ? &jobs_[index] : nullptr;
}

template <typename Body>
void LightCluster::Report(const Job& job, int32_t rank, Epoch epoch, Body body) {
  const int32_t node = NodeOf(job.devices[static_cast<size_t>(rank)]);
  host_.Feed(RankReported{.session = SessionId{nodes_[static_cast<size_t>(node)].session},
                          .job = job.id,
                          .epoch = epoch,
                          .rank = rank,
                          .report = std::move(body)});
}

void LightCluster::ReportOutage(const Job& job, int32_t rank, Epoch epoch) {
  const Device& device = devices_[static_cast<size_t>(job.devices[static_cast<size_t>(rank)])];
  if (!device.hardware) return Report(job, rank, epoch, coordinator::RankExited{.exit_code = 1});
  Report(job, rank, epoch,
         coordinator::RankError{.kind = job::FailureKind::kDeviceFailed, .message = "XID 79"});
}

void LightCluster::PlaceDevices(Job& job, const plan::Layout& layout) {
  const auto index = static_cast<int32_t>(&job - jobs_.data());
  for (const plan::NodeDevices& entry : layout.nodes) {
    for (const int32_t device : entry.devices) {
      const int32_t at = NumberOf(entry.node) * options_.workload.devices_per_node + device;
      devices_[static_cast<size_t>(at)].job = index;
      devices_[static_cast<size_t>(at)].rank = static_cast<int32_t>(job.devices.size());
      job.devices.push_back(at);
    }
  }
}

// Ranks leave the epoch that runs: the step that they are in is lost.
void LightCluster::Enter(Job& job, const coordinator::Assign& order) {
  if (job.devices.empty()) PlaceDevices(job, *order.layout);
  job.assigned = order.epoch;
  job.layout = order.layout;
  job.works = WorkOf(*order.layout, job.devices.size());
  if (!job.trains) return;
  Tally(job);
  job.trains = false;
  job.tally.broken_off += absl::ToDoubleSeconds(timeline_.now() - job.step_since);
}

void LightCluster::Begin(Job& job) {
  job.begun = job.assigned;
  job.worked = job.works;
  job.rate = job.yardstick->Measure(*job.layout);
  job.reporter =
      static_cast<int32_t>(std::find(job.works.begin(), job.works.end(), true) - job.works.begin());
  job.rate_since = job.step_since = timeline_.now();
  job.trains = true;
  job.safe = false;
  ++job.tally.changes;
  timeline_.After(absl::Seconds(job.rate.step), [this, &job, timer = ++job.timer] {
    if (job.trains && job.timer == timer) DoStep(job);
  });
}

void LightCluster::DoStep(Job& job) {
  const int64_t step = job.start.step() + 1;
  job.start.decision = coordinator::StepDecision{.step = step};
  job.start.updates = step;
  job.step_since = timeline_.now();
  ++job.tally.steps;
  const int32_t node = NodeOf(job.devices[static_cast<size_t>(job.reporter)]);
  host_.Feed(RankReported{
      .session = SessionId{nodes_[static_cast<size_t>(node)].session},
      .job = job.id,
      .epoch = job.begun,
      .rank = job.reporter,
      .report = coordinator::StepReport{.step = step, .seconds = job.rate.step, .epoch = job.begun},
      .decided = job.start});
  if (!std::exchange(job.safe, true)) {
    for (int32_t rank = 0; rank < job.tally.ranks; ++rank) {
      if (job.worked[static_cast<size_t>(rank)])
        Report(job, rank, job.begun, coordinator::RankSafe{});
    }
  }
  timeline_.After(absl::Seconds(job.rate.step), [this, &job, timer = job.timer] {
    if (job.trains && job.timer == timer) DoStep(job);
  });
}

void LightCluster::Tally(Job& job) {
  if (!job.trains) return;
  const double seconds = absl::ToDoubleSeconds(timeline_.now() - job.rate_since);
  job.rate_since = timeline_.now();
  job.tally.seconds += seconds;
  job.tally.work_lost += seconds * (1 - job.rate.work);
  job.tally.step_lost += seconds * (1 - job.yardstick->healthy_step() / job.rate.step);
}

void LightCluster::Measure() {
  for (Job& job : jobs_) {
    job.tally = {.ranks = job.tally.ranks, .ended = job.tally.ended};
    job.rate_since = timeline_.now();
    job.step_since = std::max(job.step_since, timeline_.now());
  }
}

std::vector<JobTally> LightCluster::Tallies() {
  std::vector<JobTally> tallies;
  for (Job& job : jobs_) {
    Tally(job);
    tallies.push_back(job.tally);
  }
  return tallies;
}

// --- What fails.

void LightCluster::Fail(const Outage& outage) {
  Device& device = devices_[static_cast<size_t>(outage.device)];
  if (device.out || device.job < 0) return;
  device.out = true;
  device.hardware = outage.hardware;
  device.back = timeline_.now() + outage.lasts;
  device.process = false;
  ++out_;
  ++failures_;
  const int32_t node = NodeOf(outage.device);
  if (outage.hardware) {
    timeline_.At(device.back, [this, node, index = outage.device] {
      if (devices_[static_cast<size_t>(index)].out) Repair(node);
    });
  } else {
    timeline_.At(device.back, [this, index = outage.device, back = device.back] {
      Device& again = devices_[static_cast<size_t>(index)];
      if (!again.out || again.back != back) return;
      again.out = false;
      --out_;
    });
  }
  Job& job = jobs_[static_cast<size_t>(device.job)];
  const auto rank = static_cast<size_t>(device.rank);
  if (job.works.empty() || !job.works[rank]) return;
  ReportOutage(job, device.rank, job.assigned);
}

// All its devices are in order again, and its daemon is another process: what ran there is gone.
void LightCluster::Repair(int32_t node) {
  const int32_t count = options_.workload.devices_per_node;
  for (int32_t index = node * count; index < (node + 1) * count; ++index) {
    Device& device = devices_[static_cast<size_t>(index)];
    device.process = false;
    if (std::exchange(device.out, false)) --out_;
  }
  host_.Feed(coordinator::SessionClosed{SessionId{nodes_[static_cast<size_t>(node)].session}});
  Open(node);
}

}  // namespace phalanx::scale
