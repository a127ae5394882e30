#include "tests/oracle/processes/world.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan/plan.h"
#include "phalanx/v1/rank.pb.h"
#include "tests/oracle/processes/held_file.h"
#include "tests/oracle/processes/rank_main.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "worker/channel/frame_socket.h"

namespace phalanx::oracle {
namespace {

// In the place of daemon and coordinator: what one rank announces goes to all.
class Exchange {
 public:
  // A descriptor for the next rank's process to inherit. The caller closes it.
  int AddRank() {
    int ends[2];
    support::Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
                     "cannot make a socket pair");
    fcntl(ends[1], F_SETFD, 0);
    channels_.push_back(std::make_unique<channel::FrameSocket>(ends[0]));
    return ends[1];
  }
  // No rank is added after it.
  void Start() {
    for (const auto& channel : channels_) {
      threads_.emplace_back([this, &channel] { Serve(*channel); });
    }
  }
  ~Exchange() {
    for (const auto& channel : channels_) channel->Shutdown();
  }

 private:
  // Until the rank's end closes.
  void Serve(channel::FrameSocket& channel) {
    v1::ToDaemon message;
    while (channel.Receive(&message, absl::InfiniteDuration()).ok()) {
      const auto& announced = message.report().rendezvous();
      v1::ToRank passed;
      passed.mutable_rendezvous()->set_job(kJob);
      passed.mutable_rendezvous()->set_epoch(kEpoch);
      (*passed.mutable_rendezvous()->mutable_entries())[announced.key()] = announced.value();
      // A rank that is gone needs no word; its exit code tells.
      for (const auto& other : channels_) other->Send(passed, support::kPatience).IgnoreError();
    }
  }

  std::vector<std::unique_ptr<channel::FrameSocket>> channels_;
  std::vector<std::jthread> threads_;  // last: joined first
};

}  // namespace

std::vector<TrainedStep> TrainInProcesses(const job::JobSpec& spec, const std::string& program,
                                          const std::string& name) {
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{kEpoch});
  if (!plan.ok()) throw std::runtime_error(plan.status().ToString());
  const std::string folder = support::MakeFolder("processes"), mark = support::NewMark();
  const auto output = [&folder](int32_t rank) { return absl::StrCat(folder, "/rank-", rank); };
  std::vector<std::unique_ptr<support::Process>> processes;
  {
    Exchange exchange;
    for (int32_t rank = 0; rank < plan->world; ++rank) {
      const int channel = exchange.AddRank();
      const std::string log = output(rank) + ".log";
      processes.push_back(std::make_unique<support::Process>(
          std::vector<std::string>{program, "--rank", name, absl::StrCat(rank),
                                   absl::StrCat(channel), output(rank)},
          mark, log, log));
      close(channel);
    }
    exchange.Start();
    for (int32_t rank = 0; rank < plan->world; ++rank) {
      EXPECT_EQ(processes[static_cast<size_t>(rank)]->WaitExitCode(), 0)
          << "rank " << rank << ": " << support::ReadText(output(rank) + ".log");
    }
  }
  std::vector<std::string> outputs;
  for (int32_t rank = 0; rank < plan->world; ++rank) outputs.push_back(output(rank));
  return PutTogetherHeld(*plan, spec.steps, outputs);
}

}  // namespace phalanx::oracle
