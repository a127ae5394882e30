// A coordinator that dies, or is talked to by strangers, while a job trains.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

TEST(CoordinatorTest, KilledWhileRanksTrain_FindsThemAgain_AndNoStepIsLost) {
  const DataFolder data = MakeData();
  Cluster cluster;
  const JobOptions options{
      .steps = 400, .vision = "ranks: 2", .language = "ranks: 4, tp: 2, pp: 2", .validation = true};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 5);
  const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(job);
  ASSERT_EQ(ranks.size(), 6u);
  cluster.KillCoordinator();
  cluster.StartCoordinator();
  const v1::JobStatus later = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.last_step().step() > 30; });
  EXPECT_EQ(later.epoch(), 1);
  for (const auto& [rank, watch] : ranks) {
    EXPECT_TRUE(later.phase() == v1::JOB_PHASE_SUCCEEDED || !watch.HasEnded()) << "rank " << rank;
  }
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(ended.epoch(), 1);
  EXPECT_EQ(ended.last_step().step(), options.steps);
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/out"), options.steps), "");
}

// Connects, says `bytes` and hangs up.
void Say(const std::string& address, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << address;
  // The other side may hang up first.
  send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  close(fd);
}

TEST(CoordinatorTest, GarbageOnItsPorts_HarmsNothing) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job = cluster.Submit(Document(data, {.steps = 60})).id();
  cluster.AwaitStep(job, 1);
  Prng prng(5);
  for (int round = 0; round < 50; ++round) {
    std::string bytes(1 + prng.Below(5000), '\0');
    for (char& byte : bytes) byte = static_cast<char>(prng.Below(256));
    if (round % 3 == 1) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes;
    if (round % 3 == 2) bytes = "GET /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n" + bytes;
    Say(cluster.grpc(), bytes);
    Say(cluster.http(), bytes);
  }
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(ended.epoch(), 1);
  EXPECT_FALSE(cluster.coordinator().watch().HasEnded());
}

}  // namespace
}  // namespace phalanx::e2e
