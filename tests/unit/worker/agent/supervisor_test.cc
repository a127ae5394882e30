// Processes that a node is told to start.
#include "worker/agent/supervisor.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"

namespace phalanx::agent {
namespace {

// Also where nobody asked it to look at the job's paths before.
TEST(SupervisorTest, NodeThatIsOnlyRead_StartsNothing) {
  const std::string folder = support::MakeFolder("supervisor");
  AssignCommand assign{.job = JobId{7}, .epoch = Epoch{1}};
  assign.document.text = support::ReadFile(tests::SourceDir() + "/examples/emoji-captions.yaml");
  const StartProcess order{.process = ProcessNumber{1},
                           .job = JobId{7},
                           .epoch = Epoch{1},
                           .assign = std::make_shared<AssignCommand>(assign)};
  LogActivity activity;
  Supervisor supervisor({.program = "/bin/true", .state = folder, .folders = {.read = {folder}}},
                        activity);
  EXPECT_EQ(
      supervisor.Carry(order).status,
      absl::FailedPreconditionError("jobs write nothing on this node: it has no --write-folder"));
  EXPECT_EQ(supervisor.size(), 0u);
}

}  // namespace
}  // namespace phalanx::agent
