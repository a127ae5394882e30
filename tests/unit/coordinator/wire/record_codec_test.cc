#include "coordinator/wire/record_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/machine/incident.h"
#include "coordinator/machine/job_state.h"
#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/ended_codec.h"
#include "coordinator/wire/seal.h"
#include "core/job/failure.h"
#include "phalanx/v1/journal.pb.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Instant kTime = absl::FromUnixMicros(1'700'000'000'123'456);

JobRequestPtr FullRequest() {
  return std::make_shared<const JobRequest>(
      JobRequest{.document = {.text = "kind: TrainingJob\n", .directory = "/home/me"},
                 .name = "a",
                 .labels = {{"team", "x"}, {"tier", "y"}},
                 .node_selector = {{"zone", "b"}},
                 .output = "/home/me/runs",
                 .warnings = {"spec.recovery: not in force yet"},
                 .layout_note = "parallel: auto became language dp6 on 0-5",
                 .data_key = "0123456789abcdef",
                 .submitted_digest = "fedcba9876543210",
                 .steps = 300,
                 .corrupt_max = 5,
                 .time_limit = absl::Milliseconds(90'500),
                 .checkpoints = true,
                 .recovers = true,
                 .begins_anew = true,
                 .relieves = true,
                 .standby = true,
                 .priority = 2,
                 .preemptible = true,
                 .world = 6,
                 .devices = 8,
                 .device_kind = job::DeviceKind::kGpu,
                 .lost = {Rank{3}, Rank{5}},
                 .owner = "sam"});
}

plan::Layout FullLayout() {
  return {.epoch = Epoch{1},
          .derivation = 3,
          .schedule = {.name = job::ScheduleName::kInterleaved, .chunks = 2, .encoder_chunks = 3},
          .micro = 2,
          .modules = {{.layers = {3, 2},
                       .changes = {{.dp = 1, .pp = 0, .ranks = {Rank{5}, Rank{4}}},
                                   {.dp = 2, .pp = 1, .ranks = {}}},
                       .speeds = {4, 3},
                       .state_home = job::StateHome::kMirror,
                       .state_copies = 2},
                      {.layers = {1},
                       .state_home = job::StateHome::kHost,
                       .state_copies = 2,
                       .recompute = job::Recompute::kSelective,
                       .admitted_homes = plan::HomeChoice{job::StateHome::kMirror, 3}}},
          .nodes = {{"n", {0, 2}}, {"m", {1}}},
          .lost = {Rank{6}},
          .idle = {Rank{2}, Rank{7}},
          .data_digest = "data",
          .slow = {{Rank{1}, 700'000}}};
}

Incident FullIncident() {
  Incident incident{.number = 3,
                    .kind = Incident::Kind::kLoss,
                    .from = Epoch{1},
                    .to = Epoch{3},
                    .detected = kTime,
                    .cause = {job::FailureKind::kRankKilled, 2, "n", 9, 0, "message", kTime},
                    .device_kind = job::DeviceKind::kGpu,
                    .device = 1,
                    .confidence = Incident::Confidence::kLikely,
                    .evidence = {"one", "two"},
                    .lost = {2},
                    .returned = {4, 5},
                    .changes = {{"vision", -1, 4, 3}, {"language", 1, 2, 1}},
                    .decided_step = 6,
                    .steps_redone = 2,
                    .standby = true,
                    .not_safe = "no room"};
  for (size_t i = 0; i < Incident::kPhases; ++i) {
    const auto time = static_cast<int64_t>(10 * i);
    incident.phases[i] = {.begin = time, .end = time + 5, .slowest = static_cast<int32_t>(i)};
  }
  incident[Incident::Phase::kSafeAgain].end.reset();
  return incident;
}

std::vector<CurvePoint> Points() {
  return {{.step = 1, .loss = 6.5, .tokens_per_second = 3000}, {.step = 5, .loss = 0.25}};
}

std::vector<JournalRecord> OneOfEach() {
  const auto of = [](decltype(JournalRecord::body) body) {
    return JournalRecord{.time = kTime, .job = JobId{7}, .body = std::move(body)};
  };
  const StepReport step{.step = 5,
                        .loss = 0.1,
                        .gradient_norm = 2,
                        .learning_rate = 1e-3,
                        .tokens = 640,
                        .counted_tokens = 600,
                        .seconds = 0.2,
                        .epoch = Epoch{1},
                        .skipped = true,
                        .corrupt_samples = 1};
  return {
      of(JobSubmitted{FullRequest(), "request"}),
      of(EpochPlanned{FullLayout(),
                      "plan",
                      CheckpointSource{"/c/step-3", "manifest", 3},
                      {5, 1 << 30},
                      Epoch{},
                      false,
                      "standby/1/a",
                      true,
                      true,
                      true}),
      of(PhaseChanged{job::JobPhase::kStarting, "starts", std::nullopt}),
      of(PhaseChanged{job::JobPhase::kRunning, "trains", std::nullopt}),
      of(EventRecorded{"CorruptSample", "a.tar: 7", Epoch{1}}),
      of(StepReached{step, std::nullopt, Points()}),
      of(CheckpointWritten{Epoch{1}, 4, 2, "parts", 1 << 20, 1.5}),
      of(CheckpointEnded{Epoch{1}, 4, "/c/step-4", ""}),
      of(CheckpointWritten{Epoch{1}, 5, 1, "more parts"}),
      of(CheckpointEnded{Epoch{1}, 5, "", "No space left on device"}),
      of(CheckpointWritten{Epoch{1}, 6, 1, "last parts", 3, 0.25}),
      of(Evaluated{
          {.loss = 0.5, .counted_tokens = 3, .uniform_loss = 6, .captions = {{"s", "t", "d"}}}}),
      of(IncidentNoted{std::make_shared<const Incident>(FullIncident())}),
      of(EndWished{.queues = true, .lost = {Rank{1}, Rank{3}}}),
      of(EndWished{job::FailureKind::kNodeStopped, "n"}),
      of(RanksSucceeded{Epoch{1}, {0, 2}, 6}),
      of(PhaseChanged{
          job::JobPhase::kFailed, "killed",
          FailureCause{job::FailureKind::kRankKilled, 2, "n", 9, 0, "message", kTime}})};
}

// Everything that a record says is in the state or in the events it brings about.
JobState Replay(const std::vector<JournalRecord>& records, std::vector<JobEvent>& events) {
  JobState state;
  for (const JournalRecord& record : records) {
    state.id = record.job;
    for (JobEvent& event : state.Apply(record)) events.push_back(std::move(event));
  }
  return state;
}

TEST(FailureCodecTest, KindsOfTheWire_AreThoseOfTheTable) {
  const google::protobuf::EnumDescriptor& kinds = *v1::FailureKind_descriptor();
  ASSERT_EQ(static_cast<size_t>(kinds.value_count()), job::AllFailures().size() + 1);
  for (const job::FailureTraits& failure : job::AllFailures()) {
    const auto* value = kinds.FindValueByNumber(static_cast<int>(failure.kind));
    ASSERT_NE(value, nullptr) << failure.name;
    const std::string flat = absl::StrReplaceAll(value->name(), {{"FAILURE_KIND_", ""}, {"_", ""}});
    EXPECT_EQ(flat, absl::AsciiStrToUpper(failure.name));
  }
}

TEST(FailureCodecTest, CauseOfAJournalBeforeKinds_IsReadByItsName) {
  v1::FailureCause old;
  old.set_cause("NodeLost");
  EXPECT_EQ(FromProto(old).kind, job::FailureKind::kNodeLost);
  old.set_cause("SomethingElse");
  EXPECT_EQ(FromProto(old).kind, job::FailureKind::kRankError);
}

TEST(RecordCodecTest, EveryRecord_ComesBackAsItWas) {
  const std::vector<JournalRecord> records = OneOfEach();
  std::vector<JournalRecord> decoded;
  for (const JournalRecord& record : records)
    decoded.push_back(*DecodeRecord(EncodeRecord(record, 7), 7));
  std::vector<JobEvent> events, decoded_events;
  const JobState before = Replay(records, events), after = Replay(decoded, decoded_events);
  EXPECT_EQ(events, decoded_events);
  EXPECT_EQ(*before.request, *after.request);
  EXPECT_EQ(before.request_id, after.request_id);
  EXPECT_EQ(before.phase, after.phase);
  EXPECT_EQ(before.reason, after.reason);
  EXPECT_EQ(before.epoch, after.epoch);
  EXPECT_EQ(*before.layout, *after.layout);
  EXPECT_EQ(before.plan_digest, after.plan_digest);
  EXPECT_EQ(after.host_memory, (std::vector<int64_t>{5, 1 << 30}));
  EXPECT_EQ(after.standby, "standby/1/a");
  EXPECT_TRUE(after.beside);
  EXPECT_TRUE(after.ends);
  EXPECT_TRUE(after.by_choice);
  EXPECT_EQ(before.submitted, after.submitted);
  EXPECT_EQ(before.ended, after.ended);
  EXPECT_EQ(before.stored_step, after.stored_step);
  EXPECT_EQ(before.evaluation, after.evaluation);
  EXPECT_EQ(before.failure, after.failure);
  EXPECT_EQ(before.succeeded, after.succeeded);
  EXPECT_EQ(before.ended_step, 6);
  EXPECT_EQ(after.ended_step, 6);
  ASSERT_TRUE(after.ending.has_value());
  EXPECT_EQ(after.ending->wish.failure, job::FailureKind::kNodeStopped);
  EXPECT_EQ(after.ending->wish.node, "n");
  EXPECT_EQ(after.ending->since, kTime);
  EXPECT_EQ(before.checkpoint, after.checkpoint);
  EXPECT_EQ(before.checkpoint_step, after.checkpoint_step);
  EXPECT_EQ(before.publishing, after.publishing);
  EXPECT_EQ(before.last_checkpoint, after.last_checkpoint);
  ASSERT_EQ(after.incidents.size(), 1u);
  EXPECT_EQ(*after.incidents[0], FullIncident());
}

// By it a request id answers for a job that has ended.
TEST(RecordCodecTest, DigestOfARequest_IsOfItsDocumentAsItWasGiven) {
  JobRequest request = *FullRequest();
  const std::string digest = DigestOf(request);
  request.document.text = "laid out otherwise";
  EXPECT_EQ(DigestOf(request), digest);
  request.submitted_digest = "another";
  EXPECT_NE(DigestOf(request), digest);
  request.submitted_digest.clear();  // nothing was left to the planner
  const std::string written = DigestOf(request);
  request.document.text = "another";
  EXPECT_NE(DigestOf(request), written);
}

TEST(RecordCodecTest, EpochThatGoesOn_ComesBackAsItWas) {
  const EpochStart start{.decision = StepDecision{.verdict = StepDecision::Verdict::kSkipped,
                                                  .step = 6,
                                                  .loss = 1,
                                                  .gradient_norm = 2,
                                                  .gradient_scale = 3,
                                                  .counted_tokens = 4,
                                                  .corrupt_samples = 5,
                                                  .tokens = 6,
                                                  .images = 7,
                                                  .sounds = 8},
                         .updates = 5,
                         .skipped_in_a_row = 1};
  plan::Layout second = FullLayout();
  second.epoch = Epoch{2};
  EpochStart seventh = start;
  seventh.decision->step = 7;
  const auto again = [](decltype(JournalRecord::body) body) {
    const JournalRecord record{.time = kTime, .job = JobId{7}, .body = std::move(body)};
    return *DecodeRecord(EncodeRecord(record, 7), 7);
  };
  std::vector<JournalRecord> records = {
      OneOfEach()[0], OneOfEach()[1],
      again(EpochPlanned{.layout = second, .state_epoch = Epoch{1}}),
      again(EpochBegan{Epoch{2}, start}), again(StepReached{StepReport{.step = 7}, seventh})};
  std::vector<JobEvent> events;
  const JobState state = Replay(records, events);
  EXPECT_TRUE(state.goes_on());
  EXPECT_EQ(state.state_epoch, Epoch{1});
  EXPECT_EQ(state.start, start);
  EXPECT_EQ(state.decided, seventh);
}

TEST(RecordCodecTest, EpochFromCopies_IsReplayed) {
  const EpochStart start{.decision = StepDecision{.step = 4}, .updates = 4};
  const auto again = [](decltype(JournalRecord::body) body) {
    const JournalRecord record{.time = kTime, .job = JobId{7}, .body = std::move(body)};
    return *DecodeRecord(EncodeRecord(record, 7), 7);
  };
  plan::Layout layout{.epoch = Epoch{2}, .schedule = {.name = job::ScheduleName::k1F1B}};
  layout.modules.push_back({.state_home = job::StateHome::kHost, .state_copies = 2});
  plan::Layout next = layout;
  next.epoch = Epoch{3};
  std::vector<JournalRecord> records = {
      OneOfEach()[0], OneOfEach()[1], again(EpochPlanned{.layout = layout, .plan_digest = "plan"}),
      again(EpochPlanned{.layout = next, .state_epoch = Epoch{2}, .from_copies = true}),
      again(EpochBegan{Epoch{3}, start, Epoch{2}, {Rank{4}, Rank{8}}})};
  std::vector<JobEvent> events;
  const JobState state = Replay(records, events);
  EXPECT_TRUE(state.from_copies);
  EXPECT_EQ(state.copies_epoch, Epoch{2});
  EXPECT_EQ(state.copies_keepers, (plan::RankList{Rank{4}, Rank{8}}));
  ASSERT_NE(state.copied.Find(Epoch{2}), nullptr);
  EXPECT_EQ(state.copied.Find(Epoch{2})->plan_digest, "plan");
  EXPECT_EQ(state.copied.Find(Epoch{2})->last_step, 4);
}

TEST(RecordCodecTest, WhoLeavesInOrder_IsReplayed) {
  const auto again = [](decltype(JournalRecord::body) body) {
    const JournalRecord record{.time = kTime, .job = JobId{7}, .body = std::move(body)};
    return *DecodeRecord(EncodeRecord(record, 7), 7);
  };
  const JournalRecord suspends = again(EndWished{.queues = true, .suspends = true});
  EXPECT_TRUE(std::get<EndWished>(suspends.body).suspends);
  const JournalRecord preempted = again(EndWished{.queues = true, .preempted_by = JobId{9}});
  EXPECT_EQ(std::get<EndWished>(preempted.body).preempted_by, JobId{9});
  EXPECT_FALSE(std::get<EndWished>(preempted.body).AfterHold());
  EXPECT_TRUE(std::get<EndWished>(again(EndWished{.queues = true}).body).AfterHold());
  for (const bool in_order : {true, false}) {
    const JournalRecord queued =
        again(PhaseChanged{job::JobPhase::kQueued, "", std::nullopt, in_order});
    EXPECT_EQ(std::get<PhaseChanged>(queued.body).in_order, in_order);
  }
  for (const bool suspended : {true, false}) {
    const JournalRecord changed = again(SuspensionChanged{suspended, "olga"});
    EXPECT_EQ(std::get<SuspensionChanged>(changed.body).by, "olga");
    EXPECT_EQ(std::get<SuspensionChanged>(changed.body).suspended, suspended);
  }
  const JournalRecord drained = again(EndWished{.node = "a", .queues = true});
  EXPECT_EQ(std::get<EndWished>(drained.body).node, "a");
  const JournalRecord cancelled = again(EndWished{.by = "sam"});
  EXPECT_EQ(std::get<EndWished>(cancelled.body).by, "sam");
  EXPECT_FALSE(std::get<EndWished>(drained.body).AfterHold());
}

TEST(RecordCodecTest, StartThatIsBrokenOff_IsKnownAsSuch) {
  const JournalRecord record{
      .time = kTime,
      .job = JobId{7},
      .body = PhaseChanged{job::JobPhase::kQueued, "suspended on request", std::nullopt, true}};
  const JournalRecord again = *DecodeRecord(EncodeRecord(record, 7), 7);
  EXPECT_TRUE(std::get<PhaseChanged>(again.body).in_order);
}

TEST(RecordCodecTest, MarkOfANode_ComesBackAsItWas) {
  const NodeMark mark{.drains = true, .reason = "new fan", .by = "ops", .since = kTime};
  for (const std::optional<NodeMark>& each :
       {std::optional<NodeMark>(mark), std::optional<NodeMark>()}) {
    const JournalRecord record{.time = kTime, .body = NodeMarked{"a", each}};
    const JournalRecord again = *DecodeRecord(EncodeRecord(record, 7), 7);
    EXPECT_EQ(again.job, JobId{});
    EXPECT_EQ(std::get<NodeMarked>(again.body).node, "a");
    EXPECT_EQ(std::get<NodeMarked>(again.body).mark, each);
  }
}

TEST(RecordCodecTest, ChecksOfANode_ComeBackAsTheyWere) {
  const std::vector<job::DeviceCheck> checks = {{.device = 0,
                                                 .verdict = job::CheckVerdict::kSlow,
                                                 .reason = "copies: 20 MB/s",
                                                 .time = kTime},
                                                {.device = 3,
                                                 .verdict = job::CheckVerdict::kFailed,
                                                 .reason = "memory: wrong",
                                                 .time = kTime + absl::Nanoseconds(7),
                                                 .memory_bytes = 1 << 24,
                                                 .peer = 2}};
  const JournalRecord record{.time = kTime,
                             .body = NodeMarked{.node = "a", .checks = checks, .let_back = {3}}};
  const JournalRecord again = *DecodeRecord(EncodeRecord(record, 7), 7);
  EXPECT_EQ(std::get<NodeMarked>(again.body).mark, std::nullopt);
  EXPECT_EQ(std::get<NodeMarked>(again.body).checks, checks);
  EXPECT_THAT(std::get<NodeMarked>(again.body).let_back, ElementsAre(3));
}

TEST(RecordCodecTest, RecordOfANodeBeforeThereWereChecks_HasNone) {
  v1::JournalRecord before;
  before.mutable_node_marked()->set_node("a");
  before.mutable_node_marked()->mutable_mark()->set_reason("new fan");
  const absl::StatusOr<JournalRecord> read = DecodeRecord(Seal(before.SerializeAsString(), 7), 7);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<NodeMarked>(read->body).mark->reason, "new fan");
  EXPECT_THAT(std::get<NodeMarked>(read->body).checks, IsEmpty());
  EXPECT_THAT(std::get<NodeMarked>(read->body).let_back, IsEmpty());
}

TEST(RecordCodecTest, ReserveMarkOfANode_ComesBackAsItWas) {
  const ReserveMark reserve{.reason = "spares", .by = "ops", .since = kTime};
  const NodeMark mark{.reason = "new fan", .since = kTime};
  for (const NodeMarked& body :
       {NodeMarked{"a", std::nullopt, reserve}, NodeMarked{"a", mark, reserve}}) {
    const JournalRecord record{.time = kTime, .body = body};
    const JournalRecord again = *DecodeRecord(EncodeRecord(record, 7), 7);
    EXPECT_EQ(std::get<NodeMarked>(again.body).mark, body.mark);
    EXPECT_EQ(std::get<NodeMarked>(again.body).reserve, reserve);
  }
}

TEST(RecordCodecTest, DeviceTimeOfAnOwner_ComesBackAsItWas) {
  const JournalRecord record{.time = kTime, .body = DeviceTimeUsed{"alice", 1234.5}};
  const JournalRecord again = *DecodeRecord(EncodeRecord(record, 7), 7);
  EXPECT_EQ(again.time, kTime);
  EXPECT_EQ(std::get<DeviceTimeUsed>(again.body).owner, "alice");
  EXPECT_EQ(std::get<DeviceTimeUsed>(again.body).device_seconds, 1234.5);
}

TEST(RecordCodecTest, StartThatNoneCanBe_IsRefused) {
  v1::JournalRecord record;
  record.mutable_epoch_began()->mutable_begins()->mutable_decision()->set_step(3);
  EXPECT_THAT(DecodeUnsealedRecord(record.SerializeAsString()).status().message(),
              HasSubstr("epoch_began.begins"));
}

TEST(RecordCodecTest, EpochFromBeforeLayouts_KeepsItsDevices) {
  v1::JournalRecord old;
  old.set_job(1);
  v1::EpochPlanned& planned = *old.mutable_epoch_planned();
  planned.set_epoch(2);
  planned.set_plan_digest("plan");
  planned.set_data_digest("data");
  v1::NodeDevices& node = *planned.mutable_placement()->add_nodes();
  node.set_node("n");
  node.add_devices(3);
  const absl::StatusOr<JournalRecord> record = DecodeUnsealedRecord(old.SerializeAsString());
  ASSERT_TRUE(record.ok()) << record.status();
  const auto& epoch = std::get<EpochPlanned>(record->body);
  const plan::Layout expected{.epoch = Epoch{2}, .nodes = {{"n", {3}}}, .data_digest = "data"};
  EXPECT_EQ(*epoch.layout, expected);
  EXPECT_EQ(epoch.plan_digest, "plan");
  EXPECT_TRUE(epoch.host_memory.empty()) << "nothing is charged";
  const auto again = DecodeRecord(EncodeRecord(*record, 9), 9);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*std::get<EpochPlanned>(again->body).layout, expected);
}

TEST(RecordCodecTest, LayoutOfAnUnknownSchedule_IsRefusedByName) {
  v1::JournalRecord record;
  record.mutable_epoch_planned()->mutable_layout()->set_schedule("dual_pipe");
  EXPECT_THAT(DecodeUnsealedRecord(record.SerializeAsString()).status().message(),
              ::testing::HasSubstr("layout: schedule is \"dual_pipe\""));
}

TEST(RecordCodecTest, SameRecord_SameBytes) {
  EXPECT_EQ(EncodeRecord(OneOfEach()[0], 3), EncodeRecord(OneOfEach()[0], 3));
}

TEST(RecordCodecTest, BytesThatAreNoRecord_AreRefused) {
  EXPECT_EQ(DecodeRecord("\xFF\xFF\xFF", 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeRecord("", 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeRecord(Seal("\xFF\xFF", 1), 1).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RecordCodecTest, AnyFlippedBit_IsFound) {
  std::string bytes = EncodeRecord(OneOfEach()[1], 7);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeRecord(bytes, 7).ok()) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  EXPECT_TRUE(DecodeRecord(bytes, 7).ok());
}

TEST(RecordCodecTest, RecordUnderAnotherNumber_IsFound) {
  const absl::Status status = DecodeRecord(EncodeRecord(OneOfEach()[1], 7), 8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("checksum"));
}

TEST(RecordCodecTest, NewerSchema_IsRefusedByName) {
  const absl::Status status = DecodeRecord(Seal("of the future", 7, kStoreSchema + 1), 7).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("has schema version ", kStoreSchema + 1,
                                                       "; this coordinator knows ", kStoreSchema)));
}

TEST(RecordCodecTest, TruncatedRecord_NeverCrashes) {
  for (const JournalRecord& record : OneOfEach()) {
    const std::string bytes = EncodeRecord(record, 7);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeRecord(bytes.substr(0, size), 7).ok());
    }
  }
}

TEST(EndedCodecTest, EndedJob_ComesBackAsItWas) {
  const std::vector<JournalRecord> records = OneOfEach();
  std::vector<JournalRecord> ending(records.begin(), records.end());
  const std::optional<EndedState> ended = ReplayEnded(JobId{7}, ending);
  ASSERT_TRUE(ended.has_value());
  const JobViewPtr view = *DecodeSummary(EncodeSummary(*ended), JobId{7});
  const EndedDetails details = *DecodeDetails(EncodeDetails(*ended), JobId{7});
  EXPECT_EQ(view->phase, job::JobPhase::kFailed);
  EXPECT_EQ(view->failure, ended->view.failure);
  EXPECT_EQ(view->last_step, ended->view.last_step);
  EXPECT_EQ(view->submitted, kTime);
  EXPECT_EQ(view->ended, kTime);
  EXPECT_EQ(*view->placement, *ended->view.placement);
  EXPECT_EQ(view->request->labels, FullRequest()->labels);
  EXPECT_EQ(view->request->warnings, FullRequest()->warnings);
  EXPECT_EQ(details.document, FullRequest()->document);
  EXPECT_EQ(details.events, ended->events);
  EXPECT_EQ(*details.evaluation, *ended->evaluation);
  ASSERT_EQ(details.incidents.size(), 1u);
  EXPECT_EQ(*details.incidents[0], FullIncident());
  EXPECT_EQ(details.curve, Points());
}

TEST(RecordCodecTest, CurveOfAStep_ComesBackAsItWas) {
  const JournalRecord record{.time = kTime,
                             .job = JobId{7},
                             .body = StepReached{StepReport{.step = 5}, std::nullopt, Points()}};
  const JournalRecord again = *DecodeRecord(EncodeRecord(record, 7), 7);
  EXPECT_EQ(std::get<StepReached>(again.body).curve, Points());
}

TEST(RecordCodecTest, CurveThatIsNone_LeavesOutWhatIsWrong) {
  v1::Curve uneven;
  uneven.add_steps(1);
  EXPECT_TRUE(FromProto(uneven).empty());
  v1::Curve unordered;
  ToProto({{.step = 0}, {.step = 2, .loss = 1}, {.step = 2, .loss = 3}, {.step = 1}}, &unordered);
  EXPECT_EQ(FromProto(unordered), (std::vector<CurvePoint>{{.step = 2, .loss = 1}}));
}

TEST(EndedCodecTest, JobThatHasNotEnded_IsNone) {
  const std::vector<JournalRecord> records = OneOfEach();
  EXPECT_FALSE(ReplayEnded(JobId{7}, absl::MakeSpan(records).first(3)).has_value());
}

}  // namespace
}  // namespace phalanx::coordinator
