// A rank process in a thread; the test is its daemon, and rank 1.
#include "worker/rank/rank_process.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/mutex.h"
#include "core/plan/plan.h"
#include "core/posix/unique_fd.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"
#include "gtest/gtest.h"
#include "tests/support/job_text.h"
#include "worker/comm/links.h"

namespace phalanx::rank {
namespace {

constexpr int64_t kNumberOfJob = 7;

class RankProcessTest : public testing::Test {
 protected:
  RankProcessTest() {
    const auto read = wire::ReadJobFile(job_, job::Purpose::kSubmit);
    EXPECT_TRUE(read.ok()) << read.status();
    plan_ = *plan::MakePlan(read->spec, plan::MakeCluster(1, 2), Epoch{1});
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    rank_end_ = std::make_unique<channel::FrameSocket>(ends[0]);
    daemon_end_ = std::make_unique<channel::FrameSocket>(ends[1]);
    reader_ = std::thread([this] { Read(); });
    process_ = std::make_unique<RankProcess>(*rank_end_);
    running_ = std::thread([this] { exit_code_ = process_->Run(); });
  }
  ~RankProcessTest() override {
    Join();
    process_ = nullptr;
    rank_end_->Shutdown();
    reader_.join();
  }
  // What the process returns.
  int Join() {
    if (running_.joinable()) running_.join();
    return exit_code_;
  }

  // An epoch of two ranks, for rank 0.
  v1::ToRank Order(int64_t epoch, bool beside) const {
    v1::ToRank order;
    v1::RunEpoch& run = *order.mutable_run();
    v1::Assign& assign = *run.mutable_assign();
    assign.set_job(kNumberOfJob);
    assign.set_epoch(epoch);
    assign.mutable_document()->set_text(job_);
    wire::ToProto(plan_.layout, assign.mutable_layout());
    assign.set_plan_digest(plan_.digest);
    run.set_rank(0);
    run.set_device_kind("cpu");
    run.set_address("127.0.0.1");
    run.set_threads(1);
    run.set_beside(beside);
    return order;
  }
  void Send(const v1::ToRank& order) {
    const absl::Status sent = daemon_end_->Send(order, absl::Seconds(20));
    EXPECT_TRUE(sent.ok()) << sent;
  }
  using Such = std::function<bool(const v1::RankReport&)>;
  // The first such report; one that is empty: there was none in that time.
  v1::RankReport Await(const Such& such, comm::Deadline deadline) {
    const MutexLock lock(&mu_);
    for (bool expired = false;; expired = said_changed_.WaitUntil(&mu_, deadline)) {
      for (const v1::RankReport& report : said_) {
        if (such(report)) return report;
      }
      if (expired) return {};
    }
  }
  // Returns when the process is in the epoch: only then does it make communicators for a loss.
  void AwaitInside(int64_t epoch) {
    v1::ToRank order;
    v1::PrepareStandby& wanted = *order.mutable_prepare_standby();
    wanted.set_job(kNumberOfJob);
    wanted.set_epoch(epoch);
    wanted.set_set("standby/x");
    wire::ToProto(plan_.layout, wanted.mutable_layout());
    wanted.set_plan_digest(plan_.digest);
    wanted.set_attempt(1);
    const auto begun = [](const v1::RankReport& report) {
      return absl::StartsWith(report.rendezvous().key(), "standby/x/");
    };
    const comm::Deadline deadline = comm::DeadlineIn(absl::Seconds(20));
    while (std::chrono::steady_clock::now() < deadline) {
      Send(order);
      if (Await(begun, comm::DeadlineIn(absl::Milliseconds(10))).has_rendezvous()) return;
    }
    ADD_FAILURE() << "epoch " << epoch << " was not begun";
  }

  // How rank 1 meets rank 0 in an epoch.
  class Table final : public comm::Rendezvous {
   public:
    Table(RankProcessTest& test, int64_t epoch) : test_(test), epoch_(epoch) {}
    absl::Status Put(const std::string& key, const std::string& value) override {
      v1::ToRank order;
      order.mutable_rendezvous()->set_job(kNumberOfJob);
      order.mutable_rendezvous()->set_epoch(epoch_);
      (*order.mutable_rendezvous()->mutable_entries())[key] = value;
      test_.Send(order);
      return absl::OkStatus();
    }
    absl::StatusOr<std::string> Get(const std::string& key, comm::Deadline deadline) override {
      const v1::RankReport report = test_.Await(
          [&](const v1::RankReport& said) {
            return said.epoch() == epoch_ && said.rendezvous().key() == key;
          },
          deadline);
      if (report.has_rendezvous()) return report.rendezvous().value();
      return absl::DeadlineExceededError(key);
    }

   private:
    RankProcessTest& test_;
    const int64_t epoch_;
  };

 private:
  void Read() {
    v1::ToDaemon message;
    while (daemon_end_->Receive(&message, absl::InfiniteDuration()).ok()) {
      if (!message.has_report()) continue;
      {
        const MutexLock lock(&mu_);
        said_.push_back(message.report());
      }
      said_changed_.SignalAll();
    }
  }

  const std::string job_ = support::JobText({.ranks = 2});
  plan::Plan plan_;
  std::unique_ptr<channel::FrameSocket> rank_end_, daemon_end_;
  Mutex mu_;
  CondVar said_changed_;
  std::vector<v1::RankReport> said_ ABSL_GUARDED_BY(mu_);
  std::thread reader_;
  std::unique_ptr<RankProcess> process_;
  int exit_code_ = -1;
  std::thread running_;
};

// Whether the other end has not closed it. What it says is passed over.
bool IsOpen(int fd) {
  std::array<char, 4096> bytes;
  ssize_t got = 0;
  do {
    got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  } while (got > 0);
  return got < 0 && errno == EAGAIN;
}

// Rank 1 is connected in the epoch that is given up, and silent: to leave it takes two seconds, in
// which nobody would train.
TEST_F(RankProcessTest, EpochThatReplacesOneThatConnects_BeginsBeforeThatHasEnded) {
  Send(Order(1, /*beside=*/true));  // waits for rank 1, for ever
  AwaitInside(1);
  Send(Order(2, /*beside=*/true));
  Table table(*this, 2);
  auto links = comm::ConnectLinks(1, {0}, table, {.setup_timeout = absl::Seconds(20)});
  EXPECT_TRUE(links.ok()) << links.status();
  if (links.ok()) {
    const int link = links->at(0).get();
    pollfd said{link, POLLIN, 0};
    EXPECT_EQ(poll(&said, 1, 20'000), 1) << "it has the connection, and says what it awaits";
    v1::ToRank third = Order(3, /*beside=*/false);
    third.mutable_run()->mutable_assign()->set_plan_digest("another plan");  // so it fails at once
    Send(third);
    const v1::RankReport begun =
        Await([](const v1::RankReport& report) { return report.epoch() == 3; },
              comm::DeadlineIn(absl::Seconds(20)));
    EXPECT_TRUE(begun.has_error()) << begun.ShortDebugString();
    EXPECT_TRUE(IsOpen(link)) << "the epoch before was waited for";
    links->clear();
  } else {
    Send([] {
      v1::ToRank quit;
      quit.mutable_quit();
      return quit;
    }());
  }
  EXPECT_EQ(Join(), 1);
}

}  // namespace
}  // namespace phalanx::rank
