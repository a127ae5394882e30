// What the coordinator's program answers to those who probe it, as its pages have it.
#include "coordinator/program/serving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/store/memory_backend.h"
#include "tests/rpc/fixture.h"
#include "tests/rpc/plain_http.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kOk[] = "HTTP/1.1 200 ";

std::unique_ptr<Serving> Serve(DriverOptions driver) {
  auto serving = Serving::Start({.driver = std::move(driver)}, {},
                                std::make_unique<MemoryBackend>(std::make_shared<MemoryDisk>()));
  EXPECT_TRUE(serving.ok()) << serving.status();
  return *std::move(serving);
}

TEST(ServingTest, DriverThatHangs_IsNotLive) {
  const auto serving = Serve({.silence_max = absl::ZeroDuration()});
  for (const char* path : {"/livez", "/healthz", "/readyz"}) {
    EXPECT_THAT(Get(serving->http_port(), path),
                AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("the driver has not run for ")))
        << path;
  }
}

TEST(ServingTest, DriverThatRuns_IsLive) {
  const auto serving = Serve({});
  EXPECT_THAT(Get(serving->http_port(), "/livez?verbose"),
              AllOf(StartsWith(kOk), EndsWith("[+]driver ok\nlivez check passed\n")));
}

// What it logs holds it up, as a full pipe would.
TEST(ServingTest, DriverThatHangsForAWhile_IsLiveAgain) {
  absl::Notification goes_on;
  DriverOptions driver;
  driver.silence_max = absl::Seconds(2);
  driver.log = [&goes_on](const std::string&) { goes_on.WaitForNotification(); };
  const auto serving = Serve(std::move(driver));
  const absl::Cleanup end = [&goes_on] {
    if (!goes_on.HasBeenNotified()) goes_on.Notify();
  };
  FakeWorker node(grpc::CreateChannel(absl::StrCat("127.0.0.1:", serving->grpc_port()),
                                      grpc::InsecureChannelCredentials()));
  node.SayHello(FakeWorker::Hello("n1", 1, 1));
  const auto becomes = [&serving](const std::string& begin) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    std::string answer;
    do {
      answer = Get(serving->http_port(), "/livez");
    } while (!answer.starts_with(begin) && absl::Now() < deadline);
    return answer;
  };
  EXPECT_THAT(becomes("HTTP/1.1 503 "), HasSubstr("the driver has not run for 2s"));
  goes_on.Notify();
  EXPECT_THAT(becomes(kOk), StartsWith(kOk));
}

}  // namespace
}  // namespace phalanx::coordinator
