// tests/unit/coordinator/machine/harness.h: the machine with a store that commits when told to, and
// workers that do what a test says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "gtest/gtest.h"

namespace phalanx::coordinator {

inline absl::StatusOr<PlanSummary> FakePlan(const Document& document, const Placement& placement,
                                            const plan::MemoryLimits& limits, Epoch epoch) {
  if (document.text == "unplannable") return absl::InvalidArgumentError("stages do not fit");
  if (document.text == "needs 100 bytes a rank") {
    for (size_t rank = 0; rank < limits.devices.size(); ++rank) {
      if (limits.devices[rank] == 0 || limits.devices[rank] >= 100) continue;
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " needs 100 B"));
    }
  }
  const bool on_hosts = document.text == "needs 60 bytes of each host";
  for (size_t i = 0; on_hosts && i < limits.nodes.size(); ++i) {
    if (limits.nodes[i] == 0 || limits.nodes[i] >= 60) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(placement[i].node, " needs 60 B and has ", limits.nodes[i], " B"));
  }
  PlanSummary summary{.layout = {.epoch = epoch,
                                 .schedule = {.name = job::ScheduleName::k1F1B},
                                 .nodes = placement},
                      .digest = absl::StrCat("plan:", ToString(placement))};
  if (absl::StrContains(document.text, "copies to hosts"))
    summary.layout.modules.push_back({.state_home = job::StateHome::kHost, .state_copies = 2});
  if (on_hosts) summary.host_memory.assign(placement.size(), 60);
  if (document.text == "20 notes") {
    for (int note = 1; note <= 20; ++note) summary.notes.push_back(absl::StrCat("note ", note));
  }
  if (document.text == "last rank idle" || document.text == "a spare") {
    int32_t world = 0;
    for (const NodeDevices& entry : placement) world += static_cast<int32_t>(entry.devices.size());
    summary.layout.idle.push_back(Rank{world - 1});
  }
  return summary;
}

inline JobRequestPtr AJob(const std::string& name, int32_t devices,
                          const std::string& text = "text") {
  return std::make_shared<const JobRequest>(
      JobRequest{.document = {.text = text, .directory = "/d"},
                 .name = name,
                 .steps = 10,
                 .world = devices,
                 .devices = devices});
}

// Nobody falls silent while time passes.
inline CoordinatorOptions PatientOptions() {
  CoordinatorOptions options;
  options.heartbeat_timeout = absl::Hours(100);
  return options;
}

class Harness {
 public:
  static CoordinatorOptions Options() { return CoordinatorOptions(); }
  explicit Harness(CoordinatorOptions options = Options()) : options_(std::move(options)) {
    machine_.emplace(options_);
    Take(machine_->Recover(now_, {}));
  }

  // Feeds an event and, unless the store is held, the commit of what it stored.
  void Feed(const Event& event) {
    Step(event);
    if (!plans_held) AnswerPlans();
    if (!store_held) Commit();
  }
  void AnswerPlans(size_t count = std::numeric_limits<size_t>::max()) {
    for (size_t i = 0; i < count && !plans.empty(); ++i) {
      const ComputePlan order = std::move(plans.front());
      plans.erase(plans.begin());
      absl::StatusOr<PlanSummary> plan =
          FakePlan(order.request->document, order.placement, order.limits, order.epoch);
      if (plan.ok()) plan->layout.derivation = order.derivation;
      if (plan.ok()) plan->layout.products = order.products.value_or("");
      if (plan.ok() && order.layout.has_value()) Change(order, *plan);
      if (plan.ok() && absl::StrContains(order.request->document.text, "copies alone"))
        plan->needs_copies = !order.lost.empty();
      if (absl::StartsWith(order.request->document.text, "needs every rank") &&
          !order.lost.empty() && !order.any_rung)
        plan = absl::FailedPreconditionError("no replica of module language is left");
      if (absl::StrContains(order.request->document.text, "copies to hosts") &&
          !order.stateless.empty())
        plan = absl::DataLossError("what is lost has state that nobody else has");
      if (order.request->document.text == "fits whole" && !order.lost.empty())
        plan = absl::InvalidArgumentError("rank 0 needs 2 GiB");
      Step(PlanComputed{order.number, std::move(plan)});
    }
  }
  // The layout that the order names, without the ranks that are lost and with those that are back.
  static void Change(const ComputePlan& order, PlanSummary& plan) {
    plan.layout = **order.layout;
    const auto here = [&] {
      size_t devices = 0;
      for (const NodeDevices& entry : plan.layout.nodes) devices += entry.devices.size();
      return static_cast<int32_t>(devices - plan.layout.lost.size());
    };
    const int32_t before = here();
    plan.layout.epoch = std::max(order.epoch, plan.layout.epoch);
    plan::RankList& lost = plan.layout.lost;
    lost.insert(lost.end(), order.lost.begin(), order.lost.end());
    std::erase_if(lost, [&](Rank rank) {
      return std::find(order.returned.begin(), order.returned.end(), rank) != order.returned.end();
    });
    plan::Cluster cluster = plan::ClusterOf(plan.layout.nodes);
    for (const auto& [rank, device] : order.lent)
      cluster.devices[static_cast<size_t>(rank.value)] = device;
    plan.layout.nodes = plan::PlacementOf(cluster);
    if (order.request->document.text == "a spare") TakeSpare(order, plan.layout);
    std::sort(lost.begin(), lost.end());
    for (const Rank rank : lost) absl::StrAppend(&plan.digest, " without ", rank.value);
    if (order.slow.has_value() && order.slow != plan.layout.slow) {
      plan.layout.slow = *order.slow;
      for (const plan::SlowPlace& slow : *order.slow)
        absl::StrAppend(&plan.digest, " slow ", slow.place.value);
      if (order.request->document.text != "one replica")
        plan.dealt = {absl::StrCat("dealt anew with ", order.slow->size(), " slow")};
    }
    if (here() != before) plan.changes = {{"language", -1, before, here()}};
  }
  // The last place of all, for the first rank that is lost.
  static void TakeSpare(const ComputePlan& order, plan::Layout& layout) {
    const Rank spare{order.request->devices - 1};
    const auto has = [spare](const plan::RankList& ranks) {
      return std::find(ranks.begin(), ranks.end(), spare) != ranks.end();
    };
    if (order.lost.empty() || has(order.unfit) || has(layout.lost)) return;
    const Rank hit = order.lost.front();
    std::vector<NodeDevices> places;  // by rank
    for (const NodeDevices& entry : layout.nodes) {
      for (const int32_t device : entry.devices) places.push_back({entry.node, {device}});
    }
    std::swap(places[static_cast<size_t>(hit.value)], places[static_cast<size_t>(spare.value)]);
    layout.nodes.clear();
    for (const NodeDevices& place : places) {
      if (layout.nodes.empty() || layout.nodes.back().node != place.node) {
        layout.nodes.push_back(place);
      } else {
        layout.nodes.back().devices.push_back(place.devices.front());
      }
    }
    std::replace(layout.lost.begin(), layout.lost.end(), hit, spare);
    std::erase(layout.idle, spare);
  }
  void Commit() {
    while (stored_ < records.size()) CommitUpTo(records.size());
  }
  void CommitUpTo(size_t record) {
    stored_ = std::max(stored_, record);
    Step(RecordStored{stored_});
    if (!plans_held) AnswerPlans();
  }
  // Time passes, deadline by deadline.
  void Advance(absl::Duration duration) {
    const Instant end = now_ + duration;
    while (machine_->NextDeadline() <= end) {
      now_ = std::max(now_, machine_->NextDeadline());
      const Instant before = machine_->NextDeadline();
      Feed(DeadlineReached{});
      ASSERT_GT(machine_->NextDeadline(), before) << "a deadline that changes nothing";
    }
    now_ = end;
  }
  // Time passes in which the coordinator does not run.
  void Stall(absl::Duration duration) {
    now_ += duration;
    Feed(Stalled{duration});
  }
  // The coordinator dies and starts again on what is stored, its clock set by `clock_set`.
  void Restart(absl::Duration clock_set = absl::ZeroDuration()) {
    now_ += clock_set;
    records.resize(stored_);
    Clear();
    plans.clear();
    machine_.emplace(options_);
    Take(machine_->Recover(now_, records));
  }

  JobId Submit(const JobRequestPtr& request, const std::string& request_id = "",
               const absl::Status& refusal = absl::OkStatus()) {
    Feed(SubmitRequested{Token{++token_}, request, request_id, refusal});
    const auto answer = answers.find(token_);
    if (answer == answers.end() || !answer->second.ok()) return JobId{};
    return (*answer->second)->id;
  }
  // OK: it is to be deleted from the store once it is there.
  absl::Status Delete(JobId job) {
    Feed(DeleteRequested{Token{++token_}, job});
    const auto refused = refused_deletes.find(token_);
    return refused == refused_deletes.end() ? absl::OkStatus() : refused->second;
  }
  absl::Status Cancel(JobId job, bool checkpoint = false) {
    Feed(CancelRequested{Token{++token_}, job, checkpoint});
    return answers.at(token_).status();
  }
  // Answered, it may be, later: `injected`.
  void Inject(JobId job, const job::InjectedFault& fault) {
    Feed(InjectRequested{Token{++token_}, job, fault});
  }
  // Answered, it may be, later: `reached`.
  void Reach(const NodeName& from, const NodeName& to) {
    Feed(ReachRequested{Token{++token_}, from, to, "word"});
  }
  std::vector<std::string> Explain(JobId job) {
    Feed(ExplainRequested{Token{++token_}, job});
    return reasons;
  }

  SessionId Open(const NodeName& node, int32_t devices, uint64_t incarnation = 1,
                 std::vector<RunningAssignment> running = {}, uint64_t last_command_number = 0,
                 std::vector<int64_t> device_memory = {}, int64_t host_memory = 0) {
    const SessionId session{++session_};
    Feed(SessionOpened{session, WorkerHello{.node = node,
                                            .incarnation = Incarnation{incarnation},
                                            .last_command_number = last_command_number,
                                            .devices = devices,
                                            .device_memory = std::move(device_memory),
                                            .host_memory = host_memory,
                                            .running = std::move(running)}});
    return session;
  }
  // Of a worker whose ranks carry out layouts up to that derivation.
  SessionId OpenOf(int32_t derivation, const NodeName& node, int32_t devices,
                   uint64_t incarnation = 1) {
    const SessionId session{++session_};
    Feed(SessionOpened{session, WorkerHello{.node = node,
                                            .incarnation = Incarnation{incarnation},
                                            .devices = devices,
                                            .derivation = derivation}});
    return session;
  }
  // Another process of a node whose session has broken.
  SessionId Replace(const NodeName& node, int32_t devices, uint64_t incarnation) {
    Feed(SessionClosed{NodeNamed(node).session});
    return Open(node, devices, incarnation);
  }
  template <typename T>
  void Report(SessionId session, JobId job, int32_t rank, T report, int64_t epoch = 1) {
    Feed(RankReported{session, job, Epoch{epoch}, rank, std::move(report)});
  }

  // Commands of a kind sent to a session and not taken yet, in order.
  template <typename T>
  std::vector<std::pair<uint64_t, T>> Commands(SessionId session) {
    std::vector<std::pair<uint64_t, T>> found;
    for (const SendCommand& sent : commands) {
      if (sent.session != session) continue;
      if (const T* command = std::get_if<T>(&sent.command))
        found.emplace_back(sent.command_number, *command);
    }
    return found;
  }
  // Answers the newest command of a kind.
  template <typename T>
  void Answer(SessionId session, CommandFinished result = {}) {
    const auto found = Commands<T>(session);
    ASSERT_FALSE(found.empty());
    result.session = session;
    result.command_number = found.back().first;
    Feed(result);
  }
  void Prepare(SessionId session, const std::string& digest = "data") {
    Answer<PrepareData>(session, {.data_digest = digest});
  }
  void Ready(SessionId session, JobId job, int32_t first, int32_t end, int64_t epoch = 1) {
    for (int32_t rank = first; rank < end; ++rank) Report(session, job, rank, RankReady{}, epoch);
  }
  // A job on one node, training.
  JobId Run(SessionId session, const JobRequestPtr& request) {
    const JobId job = Submit(request);
    Prepare(session);
    Answer<Assign>(session);
    Ready(session, job, 0, request->devices);
    return job;
  }

  const JobState& State(JobId job) const { return machine_->jobs().at(job).state; }
  job::JobPhase Phase(JobId job) const { return State(job).phase; }
  // As told to the outside.
  std::optional<job::JobPhase> Published(JobId job) const {
    const auto it = views.find(job);
    if (it == views.end()) return std::nullopt;
    return it->second->phase;
  }
  const Node& NodeNamed(const NodeName& name) const { return machine_->nodes().at(name); }
  int32_t Free(const NodeName& name) const { return NodeNamed(name).FreeDevices(); }
  Coordinator& machine() { return *machine_; }
  Instant now() const { return now_; }
  void Clear() {
    commands.clear();
    closed.clear();
  }

  bool plans_held = false;         // plans are made when AnswerPlans is called
  std::vector<ComputePlan> plans;  // asked for and not answered
  std::vector<uint64_t> dropped_plans;
  bool store_held = false;
  std::vector<JournalRecord> records;  // stored or about to be
  std::vector<SendCommand> commands;
  std::map<SessionId, absl::Status> closed;
  std::map<JobId, JobViewPtr> views;
  std::map<JobId, std::vector<job::JobPhase>> phases;  // published, each once
  std::map<JobId, std::vector<JobEvent>> events;
  std::map<JobId, std::vector<IncidentPtr>> incidents;
  std::map<std::string, job::DataShape> data_shapes;
  std::map<uint64_t, absl::StatusOr<JobViewPtr>> answers;
  std::vector<absl::StatusOr<Injected>> injected;
  std::vector<absl::StatusOr<std::string>> reached;
  std::vector<absl::StatusOr<MarkedNode>> marked;
  std::map<JobId, QueueSpot> spots;
  std::map<NodeName, std::shared_ptr<const NodeView>> node_views;  // as told to the outside
  std::vector<std::string> reasons;
  std::vector<LogSource> sources;
  absl::Status refused_logs;
  std::vector<EndLogs> ended_logs;
  std::vector<SessionId> welcomed;
  std::vector<JobId> archived;  // to become entries among the ended jobs
  std::vector<JobId> deleted;   // entries to be deleted
  std::map<uint64_t, absl::Status> refused_deletes;
  size_t published_steps = 0, published_views = 0;

 private:
  // One event that came alone: the queue is looked at right behind it.
  void Step(const Event& event) {
    Take(machine_->Step(now_, event));
    if (machine_->NextDeadline() == absl::InfinitePast()) {
      Take(machine_->Step(now_, DeadlineReached{}));
    }
  }
  void Take(std::vector<Action> actions) {
    for (Action& action : actions) {
      if (auto* a = std::get_if<StoreRecord>(&action)) {
        EXPECT_EQ(a->record_number, records.size() + 1);
        records.push_back(std::move(a->record));
      } else if (auto* a = std::get_if<SendCommand>(&action)) {
        commands.push_back(std::move(*a));
      } else if (auto* a = std::get_if<ComputePlan>(&action)) {
        plans.push_back(std::move(*a));
      } else if (auto* a = std::get_if<DropPlan>(&action)) {
        dropped_plans.push_back(a->number);
      } else if (auto* a = std::get_if<CloseSession>(&action)) {
        closed[a->session] = a->status;
      } else if (auto* a = std::get_if<PublishJob>(&action)) {
        ++published_views;
        views[a->job->id] = a->job;
        auto& list = phases[a->job->id];
        if (list.empty() || list.back() != a->job->phase) list.push_back(a->job->phase);
      } else if (auto* a = std::get_if<PublishEvent>(&action)) {
        events[a->job].push_back(a->event);
      } else if (auto* a = std::get_if<PublishIncident>(&action)) {
        Keep(incidents[a->job], a->incident);
      } else if (auto* a = std::get_if<AnswerJob>(&action)) {
        answers.emplace(a->token.value, a->job);
      } else if (auto* a = std::get_if<AnswerQueue>(&action)) {
        spots = *a->spots;
      } else if (auto* a = std::get_if<AnswerNode>(&action)) {
        marked.push_back(a->node);
      } else if (auto* a = std::get_if<PublishNode>(&action)) {
        node_views[a->node->name] = a->node;
      } else if (auto* a = std::get_if<PublishDataShape>(&action)) {
        data_shapes[a->key] = a->shape;
      } else if (auto* a = std::get_if<RetractNode>(&action)) {
        node_views.erase(a->node);
      } else if (auto* a = std::get_if<AnswerInject>(&action)) {
        injected.push_back(a->injected);
      } else if (auto* a = std::get_if<AnswerReach>(&action)) {
        reached.push_back(a->fault);
      } else if (auto* a = std::get_if<AnswerExplain>(&action)) {
        reasons = a->reasons.ok() ? *a->reasons : std::vector<std::string>();
      } else if (auto* a = std::get_if<AnswerLogs>(&action)) {
        sources = a->sources.value_or(std::vector<LogSource>());
        refused_logs = a->sources.status();
      } else if (auto* a = std::get_if<EndLogs>(&action)) {
        ended_logs.push_back(*a);
      } else if (auto* a = std::get_if<ArchiveJob>(&action)) {
        archived.push_back(a->job);
      } else if (auto* a = std::get_if<DeleteEndedJob>(&action)) {
        deleted.push_back(a->job);
      } else if (auto* a = std::get_if<RefuseDelete>(&action)) {
        refused_deletes.emplace(a->token.value, a->status);
      } else if (std::holds_alternative<PublishStep>(action)) {
        ++published_steps;
      } else if (auto* a = std::get_if<SendWelcome>(&action)) {
        welcomed.push_back(a->session);
      }
    }
  }

  const CoordinatorOptions options_;
  std::optional<Coordinator> machine_;
  Instant now_ = absl::FromUnixSeconds(1'700'000'000);
  size_t stored_ = 0;
  uint64_t token_ = 0;
  uint64_t session_ = 0;
};

}  // namespace phalanx::coordinator
