// The closed list of failures, and docs/failures.md, which is written from it.
#include "core/job/failure.h"

#include <csignal>
#include <fstream>
#include <iterator>
#include <set>

#include "core/base/accused.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "tests/support/paths.h"

namespace phalanx::job {
namespace {

TEST(FailureTest, Table_HasEveryKindOnceInOrder) {
  std::set<absl::string_view> names;
  int32_t number = 0;
  for (const FailureTraits& failure : AllFailures()) {
    EXPECT_EQ(static_cast<int32_t>(failure.kind), ++number);
    EXPECT_EQ(FailureKindOf(number), failure.kind);
    EXPECT_EQ(ParseFailureKind(failure.name), failure.kind);
    EXPECT_TRUE(names.insert(failure.name).second) << failure.name;
    EXPECT_FALSE(failure.meaning.empty() || failure.next.empty()) << failure.name;
  }
  EXPECT_EQ(FailureKindOf(0), std::nullopt);
  EXPECT_EQ(FailureKindOf(number + 1), std::nullopt);
  EXPECT_EQ(ParseFailureKind("Gremlins"), std::nullopt);
}

TEST(FailureTest, RankKilled_AdviceIsThatOfItsSignal) {
  const auto speaks_of_memory = [](int32_t signal) {
    return NextAfter(FailureKind::kRankKilled, signal).find("memory") != absl::string_view::npos;
  };
  EXPECT_TRUE(speaks_of_memory(SIGKILL));
  for (int32_t signal : {SIGHUP, SIGTERM, SIGUSR1, SIGXCPU}) {
    EXPECT_FALSE(speaks_of_memory(signal)) << signal;
  }
  EXPECT_NE(NextAfter(FailureKind::kRankKilled, SIGXCPU).find("ulimit -t"),
            absl::string_view::npos);
  for (const FailureTraits& failure : AllFailures()) {
    EXPECT_EQ(NextAfter(failure.kind, 0), failure.next) << failure.name;
  }
  EXPECT_EQ(NextAfter(FailureKind::kRankCrashed, SIGSEGV),
            TraitsOf(FailureKind::kRankCrashed).next);
}

TEST(FailureTest, JobThatTrainsOn_IsNotToBeSubmittedAgain) {
  for (const FailureTraits& failure : AllFailures()) {
    for (const int32_t signal : {0, SIGKILL, SIGUSR1, SIGXCPU}) {
      const std::string next = NextWhereItTrainsOn(failure.kind, signal);
      EXPECT_EQ(next.find("submit the job again"), std::string::npos) << next;
      EXPECT_EQ(next.find("submit it again"), std::string::npos) << next;
      EXPECT_FALSE(next.empty()) << failure.name;
    }
  }
  EXPECT_EQ(NextWhereItTrainsOn(FailureKind::kPeerLost, 0),
            "check the network between the two nodes");
}

TEST(FailureTest, KindInAnError_OutlivesAnnotation) {
  const absl::Status status =
      WithKind(FailureKind::kOutputUnavailable, absl::UnavailableError("no space"));
  EXPECT_EQ(KindOf(Annotate(status, "step 7")), FailureKind::kOutputUnavailable);
}

TEST(FailureTest, ErrorThatAccusesAPeer_IsAPeersLoss) {
  const absl::Status status = Accusing(Rank{3}, absl::DeadlineExceededError("nothing in 2 min"));
  EXPECT_EQ(KindOf(Annotate(status, "forward")), FailureKind::kPeerLost);
  EXPECT_EQ(AccusedIn(Annotate(status, "forward")), Rank{3});
  EXPECT_EQ(AccusedIn(absl::UnavailableError("gone")), std::nullopt);
}

TEST(FailureTest, ErrorWithoutAKind_IsTheRanksOwn_UnlessAPeerIsGone) {
  EXPECT_EQ(KindOf(absl::UnavailableError("")), FailureKind::kPeerLost);
  EXPECT_EQ(KindOf(absl::AbortedError("")), FailureKind::kPeerLost);
  // A damaged index, an unknown schedule, a frame that is too large, a daemon that does not read.
  for (const absl::Status& status :
       {absl::DataLossError(""), absl::InvalidArgumentError(""), absl::ResourceExhaustedError(""),
        absl::DeadlineExceededError(""), absl::FailedPreconditionError(""),
        absl::InternalError("")}) {
    EXPECT_EQ(KindOf(status), FailureKind::kRankError) << status;
  }
}

TEST(FailureTest, Reference_IsWhatTheTableSays) {
  std::ifstream file(tests::SourceDir() + "/docs/failures.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, FailureReference())
      << "run: build/release/bin/phalanx-job-reference failures > docs/failures.md";
}

}  // namespace
}  // namespace phalanx::job
