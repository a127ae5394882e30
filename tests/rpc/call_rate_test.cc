// How often one person may call, and how much a worker may send.
#include "coordinator/rpc/call_rate.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

TEST_F(AccessTest, PersonWhoCallsTooOften_IsToldWhenToAskAgain_AndOthersNoticeNothing) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.rate = {.calls_per_second = 0.001, .calls_at_once = 3};
  });
  Be("vera", "viewer");
  const std::string list = "/phalanx.v1.JobService/ListJobs";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Call(channel, list).ok()) << i;
  const grpc::Status refused = Call(channel, list);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(),
            "vera calls more often than 0.001 times a second; ask again in 1 s");
  EXPECT_THAT(refused.error_details(), HasSubstr("google.rpc.RetryInfo"));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  request.set_job("job-1");
  v1::WatchJobResponse response;
  const auto watch = jobs->WatchJob(&context, request);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const std::string check = "/grpc.health.v1.Health/Check";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Call(channel, check).ok()) << "is counted apart";
  const grpc::Status too_often = Call(channel, check);
  EXPECT_EQ(too_often.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(too_often.error_message(),
            "vera calls more often than 0.001 times a second; ask again in 1 s");
  Be("sam", "submitter");
  EXPECT_TRUE(Call(channel, list).ok());
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  worker.Join("here", 1);
}

// Sessions, uploads and what nodes ask of the authority have rates of their own.
TEST_F(AccessTest, EachMethod_CountsAgainstWhoCallsIt) {
  server_.reset();
  Open([this](ServerOptions& options) {
    LetNodesJoin(options, support::MakeFolder("rates") + "/join-tokens");
    options.rate = {.calls_per_second = 0.001, .calls_at_once = 1};
  });
  int tried = 0;
  for (const std::string& path : Methods()) {
    const std::string method = path.substr(path.rfind('/') + 1);
    if (absl::StrContains(path, "WorkerService") || method == "Join" ||
        method == "RenewCertificate") {
      continue;
    }
    SCOPED_TRACE(path);
    Be(absl::StrCat("calls-", method), "operator");
    EXPECT_NE(Call(channel, path).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    const grpc::Status again = Call(channel, path);
    EXPECT_EQ(again.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << again.error_message();
    ++tried;
  }
  EXPECT_GT(tried, 20);
}

TEST(CallRateTest, Store_FillsAtItsRate_UpToItsSize) {
  CallRate rate({.calls_per_second = 2, .calls_at_once = 4});
  const Caller vera = Identity{"vera", Role::kViewer};
  const SteadyTime start;
  const auto taken = [&](absl::Duration since, const Caller& caller) {
    int calls = 0;
    while (calls < 100 && rate.Take(caller, start + absl::ToChronoNanoseconds(since)).ok()) ++calls;
    return calls;
  };
  EXPECT_EQ(taken(absl::ZeroDuration(), vera), 4);
  EXPECT_EQ(taken(absl::Milliseconds(400), vera), 0);
  EXPECT_EQ(taken(absl::Milliseconds(500), vera), 1);
  EXPECT_EQ(taken(absl::Hours(1), vera), 4);
  EXPECT_EQ(taken(absl::Hours(1), Identity{"vera", Role::kWorker}), 4)
      << "a node is another caller";
  EXPECT_EQ(taken(absl::Hours(1), std::nullopt), 100) << "in plaintext";
}

TEST(CallRateTest, AtTheBound_FullStoresMakeRoom) {
  CallRate rate({.calls_per_second = 1, .calls_at_once = 1, .callers_max = 2});
  const SteadyTime start;
  for (const char* name : {"a", "b"})
    EXPECT_TRUE(rate.Take(Identity{name, Role::kViewer}, start).ok());
  const Caller third = Identity{"c", Role::kViewer};
  EXPECT_TRUE(absl::IsResourceExhausted(rate.Take(third, start)));
  EXPECT_TRUE(rate.Take(third, start + std::chrono::seconds(1)).ok());
}

// Bytes of uploads: what was read is taken, whatever there is.
TEST(CallerStoresTest, WhoeverHasSpentTooMuch_WaitsUntilItsStoreHasFilled) {
  CallerStores stores({.per_second = 100, .size = 800});
  const Caller here = Identity{"here", Role::kWorker}, there = Identity{"there", Role::kWorker};
  const SteadyTime start;
  const auto take = [&](const Caller& caller, int64_t bytes, absl::Duration since) {
    return stores.Spend(caller, static_cast<double>(bytes),
                        start + absl::ToChronoNanoseconds(since));
  };
  EXPECT_EQ(take(here, 800, absl::ZeroDuration()), absl::ZeroDuration()) << "at once";
  EXPECT_EQ(take(here, 50, absl::ZeroDuration()), absl::Milliseconds(500));
  EXPECT_EQ(take(here, 0, absl::Milliseconds(300)), absl::Milliseconds(200));
  EXPECT_EQ(take(there, 800, absl::Milliseconds(300)), absl::ZeroDuration()) << "somebody else";
  EXPECT_EQ(take(here, 0, absl::Milliseconds(500)), absl::ZeroDuration());
  EXPECT_EQ(take(here, 900, absl::Hours(1)), absl::Seconds(1)) << "no more than its size is kept";
  EXPECT_EQ(take(std::nullopt, 1'000'000, absl::Hours(1)), absl::ZeroDuration()) << "in plaintext";
  EXPECT_EQ(CallerStores({}).Spend(here, 1'000'000, start), absl::ZeroDuration()) << "no limit";
}

TEST(CallerStoresTest, OneMoreThanCanBeCounted_WaitsASecondAtATime) {
  CallerStores stores({.per_second = 1, .size = 1, .callers_max = 1});
  const Caller here = Identity{"here", Role::kWorker}, there = Identity{"there", Role::kWorker};
  const SteadyTime start;
  EXPECT_EQ(stores.Spend(here, 1, start), absl::ZeroDuration());
  EXPECT_EQ(stores.Spend(there, 0, start), absl::Seconds(1));
  EXPECT_EQ(stores.Spend(there, 0, start + std::chrono::seconds(1)), absl::ZeroDuration());
}

}  // namespace
}  // namespace phalanx::coordinator
