#include "tests/oracle/processes/rank_main.h"

#include <ATen/Parallel.h>

#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan/plan.h"
#include "tests/oracle/processes/held_file.h"
#include "tests/oracle/training/harness.h"
#include "tests/support/process.h"
#include "worker/channel/frame_socket.h"
#include "worker/comm/communicator.h"
#include "worker/rank/channel_rendezvous.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

template <typename T>
T Value(absl::StatusOr<T> value, absl::string_view what) {
  if (!value.ok()) throw std::runtime_error(absl::StrCat(what, ": ", value.status().ToString()));
  return *std::move(value);
}

// Passes on what the other ranks have announced, for as long as it lives.
class Announcements {
 public:
  Announcements(channel::FrameSocket& channel, rank::ChannelRendezvous& rendezvous)
      : channel_(channel), reader_([&channel, &rendezvous] {
          v1::ToRank message;
          while (channel.Receive(&message, absl::InfiniteDuration()).ok())
            rendezvous.Deliver(message.rendezvous());
          rendezvous.Abort(absl::UnavailableError("the test is gone"));
        }) {}
  ~Announcements() {
    channel_.Shutdown();
    reader_.join();
  }

 private:
  channel::FrameSocket& channel_;
  std::thread reader_;
};

}  // namespace

void RunRank(const job::JobSpec& spec, int32_t rank, int channel, const std::string& output) {
  at::set_num_threads(1);
  const plan::Plan plan =
      Value(plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{kEpoch}), "plan");
  channel::FrameSocket socket(channel);
  rank::ChannelRendezvous rendezvous(socket, kJob, kEpoch, rank);
  const Announcements announcements(socket, rendezvous);
  comm::Communicators communicators = Value(
      comm::ConnectGloo(
          plan::Communicators(plan), Rank{rank}, plan.world, rendezvous,
          {.setup_timeout = support::kPatience / 2, .operation_timeout = support::kPatience / 2}),
      "connect");
  const std::unique_ptr<train::SampleSource> source = MakeData(DataShapeOf(spec));
  const auto state = Value(
      train::TrainingState::Create(plan, Rank{rank}, {.compute = train::ComputeType(spec.compute)}),
      "state");
  const auto trainer = Value(
      train::Trainer::Create(plan, Rank{rank}, communicators, *source, *state, {}, {}), "trainer");
  const absl::Status prepared = trainer->Prepare();
  if (!prepared.ok()) throw std::runtime_error(prepared.ToString());
  std::vector<HeldStep> steps;
  for (int64_t step = 1; step <= spec.steps; ++step) {
    HeldStep& held = steps.emplace_back();
    held.decision = Value(trainer->RunOne(step), absl::StrCat("step ", step));
    for (const auto& part : state->parts()) held.parts.push_back(HeldBy(*part));
  }
  WriteHeld(output, steps);
}

}  // namespace phalanx::oracle
