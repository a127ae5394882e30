// This release's daemon in front of what a coordinator of the release before told one.
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "tests/rpc/older/recording.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"

namespace phalanx::agent {
namespace {

constexpr uint8_t kHere = 0;  // the session of node "here"

std::vector<v1::Command> CommandsToHere() {
  std::vector<v1::Command> commands;
  for (const older::Frame& frame : older::RecordedFrames()) {
    v1::OpenSessionResponse response;
    if (frame.session != kHere || frame.kind != older::Kind::kResponse) continue;
    EXPECT_TRUE(response.ParseFromString(frame.bytes));
    if (response.has_command()) commands.push_back(response.command());
  }
  return commands;
}

// By the number of the command.
std::map<uint64_t, v1::CommandResult> ResultsOfHere() {
  std::map<uint64_t, v1::CommandResult> results;
  for (const older::Frame& frame : older::RecordedFrames()) {
    v1::OpenSessionRequest request;
    if (frame.session != kHere || frame.kind != older::Kind::kRequest) continue;
    EXPECT_TRUE(request.ParseFromString(frame.bytes));
    if (request.has_command_result())
      results[request.command_result().command_number()] = request.command_result();
  }
  return results;
}

// The data of now, made as that of the recording was.
void UseData(const std::string& folder, v1::Command& command) {
  if (command.has_prepare_data())
    command.mutable_prepare_data()->mutable_document()->set_directory(folder);
  if (command.has_assign()) command.mutable_assign()->mutable_document()->set_directory(folder);
  if (command.has_write_incident()) command.mutable_write_incident()->set_output(folder + "/out");
}

TEST(OlderCoordinatorTest, RecordedCommands_AreCarriedOutAsTheyWere) {
  const std::string folder = support::MakeFolder("older-data");
  support::WriteShards(folder, older::DataOptions());
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  coordinator.AwaitHello();
  const std::map<uint64_t, v1::CommandResult> recorded = ResultsOfHere();
  std::vector<int64_t> epochs;
  for (v1::Command& command : CommandsToHere()) {
    UseData(folder, command);
    const uint64_t number = command.command_number();  // they are numbered without gaps
    ASSERT_EQ(coordinator.Send(command), number);
    const v1::CommandResult result = coordinator.AwaitResult(number);
    EXPECT_EQ(result.code(), recorded.at(number).code()) << result.message() << "\n"
                                                         << command.ShortDebugString();
    EXPECT_EQ(result.data_digest(), recorded.at(number).data_digest());
    if (!command.has_assign()) continue;
    epochs.push_back(command.assign().epoch());
    coordinator.AwaitReport([&](const v1::RankReport& report) {
      return report.event().type() == "Up" && report.epoch() == epochs.back();
    });
  }
  EXPECT_THAT(epochs, testing::ElementsAre(1, 2));
  // The last command has ended them.
  const v1::RankReport exit =
      coordinator.AwaitReport([](const v1::RankReport& report) { return report.has_exited(); });
  EXPECT_TRUE(exit.exited().expected());
}

}  // namespace
}  // namespace phalanx::agent
