#include "tests/fuzz/status/jobs.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/incident.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/wire/ended_codec.h"
#include "tests/support/job_text.h"

namespace phalanx::fuzz {
namespace {

using coordinator::EndedJob;
using coordinator::EndedState;
using coordinator::Incident;
using coordinator::IncidentPtr;
using coordinator::JobEvent;
using coordinator::JobRequest;
using coordinator::JobView;
using job::JobPhase;

const Instant kBegin = absl::FromUnixSeconds(1'700'000'000);

std::string Document(const std::string& name) {
  return support::JobText({.name = name, .ranks = 2, .tp = 2});
}

JobView View(int64_t id, JobPhase phase, const std::string& name, const std::string& text) {
  auto request = std::make_shared<JobRequest>();
  request->name = name;
  request->document = {.text = text, .directory = "/d"};
  request->labels = {{"team", "a"}};
  request->steps = 10;
  request->world = request->devices = 2;
  return {.id = JobId{id},
          .request = request,
          .phase = phase,
          .reason = absl::StrCat("because of ", kMarkup),
          .submitted = kBegin};
}

JobView Training(int64_t id, const std::string& name, const std::string& text) {
  JobView view = View(id, JobPhase::kRunning, name, text);
  view.epoch = Epoch{2};
  view.started = kBegin + absl::Seconds(1);
  view.last_step = {.step = 7, .loss = 1.5, .tokens = 512, .seconds = 0.25, .epoch = Epoch{2}};
  view.placement = plan::Placement{{.node = "n", .devices = {0, 1}}};
  view.plan_digest = "digest";
  return view;
}

IncidentPtr AnIncident(int64_t number, Incident::Kind kind) {
  Incident incident{.number = number,
                    .kind = kind,
                    .from = Epoch{1},
                    .to = Epoch{2},
                    .detected = kBegin + absl::Seconds(2),
                    .cause = {.kind = job::FailureKind::kRankKilled,
                              .rank = 1,
                              .node = "n",
                              .signal = 9,
                              .message = std::string(kMarkup),
                              .time = kBegin + absl::Seconds(2)},
                    .device = 1,
                    .evidence = {absl::StrCat("rank 1 said ", kMarkup)},
                    .decided_step = 6,
                    .steps_redone = 1};
  (kind == Incident::Kind::kLoss ? incident.lost : incident.returned) = {1};
  for (size_t phase = 0; phase < Incident::kPhases; ++phase) {
    const auto begin = static_cast<int64_t>(phase) * 1000;
    incident.phases[phase] = {.begin = begin, .end = begin + 1500, .slowest = 0};
  }
  return std::make_shared<const Incident>(std::move(incident));
}

JobEvent AnEvent(int64_t number) {
  return {.number = number, .time = kBegin, .type = "Told", .message = std::string(kMarkup)};
}

std::shared_ptr<coordinator::EndedJobs> EndedJobs() {
  EndedState ended;
  ended.view = View(kEnded, JobPhase::kFailed, "ended", Document("ended"));
  ended.view.ended = kBegin + absl::Seconds(9);
  ended.events = {AnEvent(1)};
  ended.incidents = {AnIncident(1, Incident::Kind::kLoss)};
  ended.curve = {{.step = 1, .loss = 2}, {.step = 2, .loss = 1}};
  coordinator::MemoryBackend store(std::make_shared<coordinator::MemoryDisk>());
  const absl::Status taken = store.Commit({.ended = {{.job = JobId{kDamaged},
                                                      .name = "damaged",
                                                      .phase = JobPhase::kFailed,
                                                      .ended = kBegin,
                                                      .summary = "no summary is so",
                                                      .details = "nor are details"},
                                                     {.job = JobId{kEnded},
                                                      .name = "ended",
                                                      .phase = JobPhase::kFailed,
                                                      .ended = *ended.view.ended,
                                                      .summary = EncodeSummary(ended),
                                                      .details = EncodeDetails(ended)}}});
  if (!taken.ok()) std::abort();
  return store.ended_jobs();
}

}  // namespace

void Fill(coordinator::Board& board) {
  board.Connect(EndedJobs());
  const auto publish = [&board](JobView view) {
    board.Publish(coordinator::PublishJob{std::make_shared<const JobView>(std::move(view))});
  };
  publish(Training(kTrains, "trains", Document("trains")));
  publish(View(kWaits, JobPhase::kQueued, "waits", Document("waits")));
  publish(Training(kUnreadable, "unreadable", "kind: SomethingElse\n"));
  const JobId trains{kTrains};
  for (int64_t number = 1; number <= 2; ++number) {
    board.Publish(coordinator::PublishEvent{trains, AnEvent(number)});
    board.Publish(coordinator::PublishStep{trains, {.step = number, .loss = 2, .seconds = 0.25}});
  }
  board.Publish(coordinator::PublishIncident{trains, AnIncident(1, Incident::Kind::kLoss)});
  board.Publish(coordinator::PublishIncident{trains, AnIncident(2, Incident::Kind::kReturn)});
  board.Publish(coordinator::PublishNode{std::make_shared<const coordinator::NodeView>(
      coordinator::NodeView{.name = "n",
                            .connected = true,
                            .device_jobs = {trains, trains, JobId{}},
                            .last_heartbeat = kBegin,
                            .labels = {{"rack", "1"}},
                            .version = std::string(kMarkup)})});
}

}  // namespace phalanx::fuzz
