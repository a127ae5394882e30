// Which step is measured, and the file it goes to.
#include "worker/rank/trace_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/specs.h"

namespace phalanx::rank {
namespace {

using ::testing::HasSubstr;

job::JobSpec Traced(int64_t steps) {
  job::JobSpec spec = support::AJob().Module("language", support::Llama());
  spec.steps = steps;
  spec.trace = true;
  return spec;
}

TEST(TraceStepTest, LastButOne_WhereThereIsOneBehindAWarmOne) {
  EXPECT_EQ(TraceStep(Traced(500)), 499);
  EXPECT_EQ(TraceStep(Traced(3)), 2);
  EXPECT_EQ(TraceStep(Traced(2)), 2);
  EXPECT_EQ(TraceStep(Traced(1)), 1);
  job::JobSpec silent = Traced(500);
  silent.trace = false;
  EXPECT_EQ(TraceStep(silent), 0);
}

TEST(WriteTraceTest, OlderFile_IsReplacedWhole) {
  const auto plan = plan::MakePlan(Traced(9), plan::MakeCluster(1, 1), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string folder = support::MakeFolder("trace");
  std::ofstream(folder + "/trace.json") << "an older one";
  const absl::StatusOr<std::string> path = WriteTrace(folder, *plan, {});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, folder + "/trace.json");
  std::ifstream file(*path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("\"step\":8"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "no draft";
}

TEST(WriteTraceTest, FolderThatIsNotThere_IsNamed) {
  const auto plan = plan::MakePlan(Traced(9), plan::MakeCluster(1, 1), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status status = WriteTrace("/nowhere", *plan, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/trace.json: No such file"));
}

}  // namespace
}  // namespace phalanx::rank
