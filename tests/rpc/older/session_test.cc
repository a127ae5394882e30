// Daemons of the release before, as they were recorded, in front of this release's coordinator.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/rpc/fixture.h"
#include "tests/rpc/older/protocol.h"
#include "tests/rpc/older/recording.h"

namespace phalanx::coordinator {
namespace {

using older::Frame;
using older::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kRequest[] = "phalanx.v1.OpenSessionRequest";
constexpr char kResponse[] = "phalanx.v1.OpenSessionResponse";

// For whoever adds to a command: without it the release before has to do right, or a coordinator
// has to leave it out for workers of that protocol version (coordinator/wire/session_codec.h).
TEST(OlderProtocolTest, OfCommands_TheReleaseBeforeKnowsAllButWhatIsNamedHere) {
  EXPECT_THAT(
      older::Protocol().UnreadByOlder(kResponse),
      ElementsAre(
          // Its ranks write without asking whether another epoch has begun, as before.
          "phalanx.v1.Assign.fence",
          // Nobody waits for a worker that does not know it.
          "phalanx.v1.Assign.keepers",
          // Of a daemon whose folders are of owners: that of before knows no such folders.
          "phalanx.v1.Assign.owner",
          // Answered by a refusal, which says that the worker is to be upgraded.
          "phalanx.v1.Command.try_peer",
          // As Assign.keepers.
          "phalanx.v1.CopiesSource.keepers",
          // An operator brings it about by hand; a daemon that does not know it does nothing.
          "phalanx.v1.FAULT_KIND_MUTE",
          // The same.
          "phalanx.v1.FAULT_KIND_THROW",
          // It sends what is there by then, as it always did.
          "phalanx.v1.FetchLogs.ended",
          // Left out where some node of the job does not say that its ranks have the table.
          "phalanx.v1.Layout.products",
          // Why samples are dealt as they are: ranks go by the speeds, which they know.
          "phalanx.v1.Layout.slow",
          // Left out where some worker of the job is of that release.
          "phalanx.v1.NodeDevices.domain",
          // As Assign.owner.
          "phalanx.v1.PrepareData.owner",
          // Between a daemon and its ranks, which are of one release.
          "phalanx.v1.WriteIncident.folders"));
}

TEST(OlderProtocolTest, OfWhatDaemonsOfTheReleaseBeforeSay_AllIsKnown) {
  EXPECT_THAT(older::Protocol().UnreadByThis(kRequest), IsEmpty());
}

// A recorded daemon: says what it said, once it was told what it had been told.
class RecordedDaemon {
 public:
  RecordedDaemon(const std::shared_ptr<grpc::Channel>& channel, older::Protocol& protocol)
      : protocol_(protocol), worker_(channel) {}

  void Say(v1::OpenSessionRequest request) {
    if (request.has_command_result()) {
      const auto number = numbers_.find(request.command_result().command_number());
      if (number == numbers_.end()) return;  // answered when the command came
      request.mutable_command_result()->set_command_number(number->second);
    }
    EXPECT_TRUE(worker_.Write(request));
  }
  // Waits until it has been told as much.
  void Hear(const v1::OpenSessionResponse& recorded) {
    while (!Heard(recorded)) {
      const std::optional<v1::OpenSessionResponse> response = Read();
      ASSERT_TRUE(response.has_value()) << "instead of " << recorded.ShortDebugString();
      if (response->has_welcome()) {
        welcome_ = true;
      } else if (IsAnsweredAtOnce(response->command())) {
        for (const auto& [key, value] : response->command().rendezvous().entries())
          keys_.emplace(response->command().rendezvous().epoch(), key);
        worker_.Done(response->command());
      } else {
        told_.push_back(response->command());
      }
    }
  }
  void End() { worker_.Break(); }
  const older::FieldNames& unknown() const { return unknown_; }

 private:
  std::optional<v1::OpenSessionResponse> Read() {
    std::optional<v1::OpenSessionResponse> response = worker_.Read();
    if (response.has_value())
      unknown_.merge(protocol_.UnknownIn(kResponse, response->SerializeAsString()));
    return response;
  }
  // Which rendezvous come together, and when an incident is written, depends on the moment.
  static bool IsAnsweredAtOnce(const v1::Command& command) {
    return command.has_rendezvous() || command.has_write_incident();
  }
  bool Heard(const v1::OpenSessionResponse& response) {
    if (!response.has_command()) return welcome_;  // a goodbye ends the session anyhow
    const v1::Command& recorded = response.command();
    for (const auto& [key, value] : recorded.rendezvous().entries()) {
      if (!keys_.contains({recorded.rendezvous().epoch(), key})) return false;
    }
    if (IsAnsweredAtOnce(recorded)) return true;
    for (auto told = told_.begin(); told != told_.end(); ++told) {
      if (told->command_case() != recorded.command_case()) continue;
      EXPECT_EQ(told->assign().epoch(), recorded.assign().epoch());
      EXPECT_EQ(told->begin_epoch().begins().decision().step(),
                recorded.begin_epoch().begins().decision().step());
      numbers_[recorded.command_number()] = told->command_number();
      told_.erase(told);
      return true;
    }
    return false;
  }

  older::Protocol& protocol_;
  FakeWorker worker_;
  bool welcome_ = false;
  std::vector<v1::Command> told_;                   // and not looked for yet
  std::set<std::pair<int64_t, std::string>> keys_;  // epochs and keys of rendezvous
  std::map<uint64_t, uint64_t> numbers_;            // of commands: recorded, and now
  older::FieldNames unknown_;
};

class OlderSessionTest : public RpcTest {
 protected:
  template <typename Message>
  static Message Parsed(const Frame& frame) {
    Message message;
    EXPECT_TRUE(message.ParseFromString(frame.bytes));
    return message;
  }
  void Replay(const Frame& frame) {
    switch (frame.kind) {
      case Kind::kRequest:
        if (frame.session == daemons_.size())
          daemons_.push_back(std::make_unique<RecordedDaemon>(channel, protocol_));
        return Say(frame.session, Parsed<v1::OpenSessionRequest>(frame));
      case Kind::kResponse:
        return daemons_.at(frame.session)->Hear(Parsed<v1::OpenSessionResponse>(frame));
      case Kind::kEnd:
        AwaitStep();
        return daemons_.at(frame.session)->End();
      case Kind::kSubmit: {
        MustSubmit(Parsed<v1::SubmitJobRequest>(frame).document().text());
        return;
      }
      case Kind::kCancel: {
        AwaitStep();
        grpc::ClientContext context;
        SetDeadline(context);
        v1::CancelJobResponse response;
        const auto request = Parsed<v1::CancelJobRequest>(frame);
        EXPECT_TRUE(jobs->CancelJob(&context, request, &response).ok());
        return;
      }
    }
  }

  void Say(uint8_t session, const v1::OpenSessionRequest& request) {
    if (request.rank_report().has_step()) step_ = request.rank_report().step();
    daemons_.at(session)->Say(request);
  }
  // What was said is known, whoever said it.
  void AwaitStep() {
    Await("job-1", [&](const v1::JobStatus& job) {
      const bool reached =
          job.last_step().epoch() == step_.epoch() && job.last_step().step() == step_.step();
      return job.phase() == v1::JOB_PHASE_CANCELLED ||
             (reached && job.phase() == v1::JOB_PHASE_RUNNING);
    });
  }

  older::Protocol protocol_;
  v1::StepReport step_;  // the last that was said
  std::vector<std::unique_ptr<RecordedDaemon>> daemons_;
};

// Three nodes train, one is lost, the job goes on without it and is cancelled with a checkpoint.
TEST_F(OlderSessionTest, RecordedDaemons_AreServedAsTheyWere_WithCommandsThatTheyKnow) {
  for (const Frame& frame : older::RecordedFrames()) {
    Replay(frame);
    if (HasFatalFailure()) return;
  }
  ASSERT_EQ(daemons_.size(), 3u);
  for (const auto& daemon : daemons_)
    EXPECT_THAT(daemon->unknown(), ElementsAre("phalanx.v1.Assign: 15"));  // the fence
  const v1::JobStatus job = Get("job-1");
  EXPECT_EQ(job.phase(), v1::JOB_PHASE_CANCELLED) << job.reason();
  EXPECT_EQ(job.epoch(), 2);
  EXPECT_GT(job.last_checkpoint().step(), 0);
  EXPECT_EQ(job.last_checkpoint().step(), job.last_step().step());
}

}  // namespace
}  // namespace phalanx::coordinator
