// `phalanx logs` of a job that has lost a rank: which lines each flag shows.
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Lines = std::vector<std::string>;

// In the order of their bytes: ranks write at the same time.
Lines LinesOf(const std::string& text) {
  Lines lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::sort(lines.begin(), lines.end());
  return lines;
}

Lines With(const Lines& lines, const std::string& what) {
  Lines found;
  for (const std::string& line : lines) {
    if (absl::StrContains(line, what)) found.push_back(line);
  }
  return found;
}

Lines Logs(const Cluster& cluster, std::vector<std::string> flags) {
  std::vector<std::string> arguments = {"logs", "hit"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const support::Finished logs = cluster.Phalanx(arguments);
  EXPECT_EQ(logs.exit_code, 0) << logs.talk;
  EXPECT_EQ(logs.talk, "");
  return LinesOf(logs.out);
}

// "[3] 2026-11-26T12:00:00.123Z ..." of --timestamps; "-": no time is known.
std::string StampOf(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
  return words.size() < 2 ? "" : words[1];
}

// Rank 3, the second replica of the language module, is killed in epoch 1; the others train on in
// epoch 2, and the job is cancelled. A follower was there all the time.
class LogsTest : public testing::Test {
 protected:
  void Run() {
    const JobOptions options{.name = "hit",
                             .steps = kForEver,
                             .vision = "ranks: 2",
                             .language = "ranks: 2",
                             .batch = 29,
                             .recovery = "{rejoin: manual}"};
    job_ = cluster_.Submit(Document(data_, options)).id();
    const std::string out = folder_ + "/followed";
    const support::Process follower(
        {support::Program("phalanx"), "--server", cluster_.grpc(), "logs", "hit", "-f"},
        support::NewMark(), out, folder_ + "/talk");
    support::AwaitText(out, "epoch=1 rank=3 layout: ", follower);
    cluster_.AwaitStep(job_, 3);
    kill(cluster_.Ranks(job_).at(3).pid(), SIGKILL);
    support::AwaitText(out, "epoch=2 rank=0 layout: ", follower);
    cluster_.Await(job_,
                   [](const v1::JobStatus& status) { return status.last_step().epoch() > 1; });
    cluster_.Cancel(job_);
    cluster_.AwaitEnd(job_);
    ASSERT_TRUE(follower.watch().AwaitEnd()) << "it ends with the job";
    followed_ = LinesOf(support::ReadText(out));
    ASSERT_EQ(cluster_.Get(job_).epoch(), 2) << cluster_.WorkerLog();
  }

  const DataFolder data_ = MakeSmallData();
  const std::string folder_ = support::MakeFolder("e2e-logs");
  Cluster cluster_{{.devices = 4}};
  int64_t job_ = 0;
  Lines followed_;
};

TEST_F(LogsTest, OfAJobThatLostARank_ShowWhatEachFlagAsksFor) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const Lines all = Logs(cluster_, {});
  EXPECT_EQ(followed_, all) << "each line once, over both epochs";
  for (const char* first : {"[0] ", "[1] ", "[2] ", "[3] "})
    EXPECT_THAT(all, Contains(StartsWith(first)));

  const Lines language = Logs(cluster_, {"--module", "language"});
  EXPECT_THAT(language, Contains(StartsWith("[2] ")));
  EXPECT_THAT(language, Contains(StartsWith("[3] ")));
  EXPECT_THAT(language, Each(testing::AnyOf(StartsWith("[2] "), StartsWith("[3] "))));

  // What a rank says of its place, once an epoch.
  const Lines before = With(Logs(cluster_, {"--previous"}), " layout: ");
  EXPECT_THAT(before, Contains(HasSubstr("epoch=1 rank=3 ")));
  EXPECT_THAT(before, Each(HasSubstr("epoch=1 ")));
  EXPECT_EQ(before.size(), 4u);
  EXPECT_THAT(With(before, "epoch=2 "), IsEmpty());
  const Lines after = With(Logs(cluster_, {"--epoch", "2"}), " layout: ");
  EXPECT_THAT(after, Contains(HasSubstr("epoch=2 rank=0 ")));
  EXPECT_THAT(after, Each(Not(HasSubstr("epoch=1 "))));
  EXPECT_THAT(after, Each(Not(StartsWith("[3] "))));
}

TEST_F(LogsTest, SinceATime_IsWhatWasWrittenFromThenOn) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const Lines all = Logs(cluster_, {"--timestamps"});
  const Lines second = With(all, "epoch=2 rank=0 layout: ");
  ASSERT_FALSE(second.empty());
  const std::string since = StampOf(second.front());
  ASSERT_THAT(since, testing::MatchesRegex("20[0-9-]+T[0-9:.]+Z"));
  Lines expected;
  for (const std::string& line : all) {
    // Stamps are of one length, so that their order is that of the times.
    if (const std::string stamp = StampOf(line); stamp == "-" || stamp >= since)
      expected.push_back(line);
  }
  EXPECT_LT(expected.size(), all.size());
  EXPECT_EQ(Logs(cluster_, {"--timestamps", "--since", since}), expected);
  EXPECT_EQ(Logs(cluster_, {"--timestamps", "--since", "24h"}), all);
  EXPECT_THAT(Logs(cluster_, {}), Each(Not(HasSubstr(since)))) << "without --timestamps";
}

TEST(LogsOfReturnsTest, EachLine_IsOfTheEpochThatItNames) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 3});
  const int64_t job =
      cluster.Submit(Document(data, {.name = "hit", .steps = kForEver, .language = "ranks: 2"}))
          .id();
  cluster.AwaitStep(job, 3);
  kill(cluster.Ranks(job).at(2).pid(), SIGKILL);
  cluster.Await(job, [](const v1::JobStatus& status) { return status.last_step().epoch() > 2; });
  cluster.Cancel(job);
  cluster.AwaitEnd(job);
  EXPECT_THAT(Logs(cluster, {"--epoch", "2"}), Contains(HasSubstr("rank=2 is warm after ")));
  for (const std::string epoch : {"1", "2", "3"}) {
    const Lines named = With(Logs(cluster, {"--rank", "2", "--epoch", epoch}), " epoch=");
    EXPECT_THAT(named, Not(IsEmpty()));
    EXPECT_THAT(named, Each(HasSubstr(" epoch=" + epoch + " ")));
  }
}

}  // namespace
}  // namespace phalanx::e2e
