#include "tests/gpu/train/cuda_rank.h"

#include <ATen/Parallel.h>
#include <c10/cuda/CUDAFunctions.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/job/failure.h"
#include "core/plan/message_peers.h"
#include "core/plan/plan.h"
#include "tests/oracle/processes/held_file.h"
#include "tests/oracle/training/harness.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/model/torch_boundary.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr size_t kStepsLookedAt = 20;  // beside the last; each is some megabytes of a file
constexpr int64_t kRunAheadMost = 4;   // steps; so far from those looked at and from the last

void Require(const absl::Status& status, absl::string_view what) {
  if (!status.ok()) throw std::runtime_error(absl::StrCat(what, ": ", status.ToString()));
}
template <typename T>
T Value(absl::StatusOr<T> value, absl::string_view what) {
  Require(value.status(), what);
  return *std::move(value);
}

// An assertion in a kernel: no call on the device succeeds from then on.
void BreakDevice(at::Device device) {
  const auto on_device = at::TensorOptions().device(device);
  at::zeros({4}, on_device).index_select(0, at::full({1}, 1000, on_device.dtype(at::kLong)));
}

// Which rank of the layout a process is.
Rank RankOf(const CudaRun& run, int32_t process) {
  for (Rank rank{0};; ++rank.value) {
    if (std::find(run.lost.begin(), run.lost.end(), rank) != run.lost.end()) continue;
    if (process-- == 0) return rank;
  }
}

class CudaRank {
 public:
  CudaRank(const CudaRun& run, const gpu::ForkedRank& me)
      : run_(run), me_(me), rank_(RankOf(run, me.rank)), source_(MakeData(DataShapeOf(run.spec))) {
    const train::BufferOptions buffers{
        .device = at::Device(at::kCUDA, static_cast<int8_t>(me.device)),
        .compute = train::ComputeType(run.spec.compute),
        .run_ahead = run.run_ahead};
    state_ = Value(train::TrainingState::Create(PlanOf(1), rank_, buffers), "state");
  }

  // To the last step, or to the stop behind `stop`.
  void RunEpoch(int64_t epoch, std::optional<int64_t> stop) {
    const plan::Plan plan = PlanOf(epoch);
    gpu::FolderRendezvous rendezvous(me_.folder, absl::StrCat(run_.name, ".", epoch, "."));
    const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
    comm::WorldOptions options;
    options.current_stream = device::CurrentStream;
    options.operation_timeout = kPatience;
    options.peers = plan::MessagePeers(plan, rank_, specs);
    comm::Communicators communicators =
        Value(comm::ConnectNccl(specs, rank_, plan.world, rendezvous, options), "connect");
    train::TrainerOptions how{.length_multiple = 8, .decision_timeout = kPatience, .warm = &warm_};
    if (epoch > 1) how.start = start_;
    train::TrainerCallbacks callbacks;
    // A rank that ended an epoch early was not there to look at its last steps.
    const bool looks = run_.stops.empty() && run_.fails_at == 0;
    callbacks.on_step = [&](const train::StepSummary& step) {
      Keep(step);
      if (looks) ForbidWaiting(step.step);
      if (me_.rank == 0 && stop.has_value() && step.step >= *stop)
        Require(rendezvous.Put("stop", ""), "stop");
      if (me_.rank == 1 && step.step == run_.fails_at) BreakDevice(state_->options().device);
    };
    std::unique_ptr<train::Trainer> trainer;
    callbacks.on_settled = [&] {
      if (looks && steps_.size() <= kStepsLookedAt) LookBy(trainer->executor());
      return absl::OkStatus();
    };
    trainer = Value(train::Trainer::Create(plan, rank_, communicators, *source_, *state_, how,
                                           std::move(callbacks)),
                    "trainer");
    const auto ends = [&](const absl::Status& reason) {
      state_->RequestStop();
      for (const auto& communicator : communicators) {
        if (communicator != nullptr) communicator->Abort(reason);
      }
    };
    const bool ends_early = stop.has_value() || run_.fails_at > 0;
    absl::Status ended;
    {
      std::jthread watcher([&](const std::stop_token& over) {
        while (ends_early && !over.stop_requested()) {
          if (rendezvous.Has("stop")) return ends(absl::CancelledError("the test stops the epoch"));
          poll(nullptr, 0, 1);
        }
      });
      ended = model::CallTorch("training", [&]() -> absl::Status {
        const absl::Status prepared = trainer->Prepare();
        return prepared.ok() ? trainer->Run() : prepared;
      });
    }
    ended = state_->Attributed(std::move(ended));
    if (run_.fails_at > 0 && me_.rank == 1) {
      if (job::KindOf(ended) != job::FailureKind::kDeviceFailed)
        throw std::runtime_error(absl::StrCat("a failed device is ", ended.ToString()));
      return Require(rendezvous.Put("stop", ""), "stop");
    }
    // What a rank does whose epoch ended early: peers of one that has stopped see it fail.
    const bool as_told = ends_early && (absl::IsCancelled(ended) || absl::IsAborted(ended) ||
                                        absl::IsUnavailable(ended));
    if (!as_told) Require(ended, absl::StrCat("epoch ", epoch));
    if (ends_early && ended.ok()) throw std::runtime_error("nothing ended the epoch");
    if (!ended.ok()) ends(ended);
    Require(device::AwaitDevice(absl::Seconds(10)), "the device at the end of an epoch");
    if (!ended.ok()) trainer->AccountForLast();
    if (stop.has_value()) Agree(rendezvous);
  }

  std::vector<HeldStep> Finish() {
    if (steps_.back().parts.empty()) Look();
    return std::move(steps_);
  }

 private:
  plan::Plan PlanOf(int64_t epoch) const {
    return Value(PlanWithout(run_.spec, run_.lost, Epoch{epoch}), "plan");
  }

  // What this rank holds after the last step that it was told of. All ranks look at the same steps,
  // so all wait here for the same parameters; copying them waits for no more than the current
  // stream has, and mirrors are updated on another one.
  void LookBy(train::Executor& executor) {
    Require(executor.AwaitParts(), "the parameters of a step");
    state_->AwaitUpdates();
    Look();
  }
  void Look() {
    for (const auto& part : state_->parts()) steps_.back().parts.push_back(HeldBy(*part));
  }

  // In steps that nobody looks at, an operation of ATen's that waits for the device throws, on
  // whichever thread.
  void ForbidWaiting(int64_t step) {
    const bool forbidden = step >= static_cast<int64_t>(kStepsLookedAt) + kRunAheadMost &&
                           step < run_.spec.steps - kRunAheadMost;
    c10::cuda::warning_state().set_sync_debug_mode(
        forbidden ? c10::cuda::SyncDebugMode::L_ERROR : c10::cuda::SyncDebugMode::L_DISABLED);
  }

  void Keep(const train::StepSummary& step) {
    const auto expected = static_cast<int64_t>(steps_.size()) + 1;
    if (step.step != expected)
      throw std::runtime_error(absl::StrCat("told of step ", step.step, ", not of ", expected));
    steps_.push_back({.decision = {.step = step.step,
                                   .verdict = train::Verdict::kCommitted,
                                   .loss = step.loss,
                                   .gradient_norm = step.gradient_norm,
                                   .counted_tokens = static_cast<double>(step.counted_tokens)},
                      .parts = {}});
  }

  // What the coordinator does with what ranks say of themselves: the last step that any of them
  // knows is where all go on.
  void Agree(gpu::FolderRendezvous& rendezvous) {
    static_assert(std::is_trivially_copyable_v<train::Start>);
    const train::Standing standing = state_->StandingNow();
    const train::Start mine{standing.decided, standing.counts};
    std::string bytes(sizeof mine, '\0');
    std::memcpy(bytes.data(), &mine, sizeof mine);
    Require(rendezvous.Put(absl::StrCat("standing", me_.rank), bytes), "standing");
    for (int32_t rank = 0; rank < me_.world; ++rank) {
      const std::string said = Value(
          rendezvous.Get(absl::StrCat("standing", rank), comm::DeadlineIn(kPatience)), "standing");
      train::Start theirs;
      std::memcpy(&theirs, said.data(), sizeof theirs);
      if (theirs.decision.step > start_.decision.step) start_ = theirs;
    }
  }

  const CudaRun& run_;
  const gpu::ForkedRank& me_;
  const Rank rank_;
  const std::unique_ptr<train::SampleSource> source_;
  std::unique_ptr<train::TrainingState> state_;
  train::WarmPasses warm_;
  train::Start start_;
  std::vector<HeldStep> steps_;
};

}  // namespace

void TrainOnCuda(const CudaRun& run, const gpu::ForkedRank& me, const std::string& output) {
  at::set_num_threads(1);
  Require(device::UseCudaDevice(me.device), "device");
  std::fprintf(stderr, "rank %d: %s\n", me.rank, run.name.c_str());
  CudaRank rank(run, me);
  int64_t epoch = 0;
  for (const int64_t stop : run.stops) rank.RunEpoch(++epoch, stop);
  rank.RunEpoch(++epoch, std::nullopt);
  if (run.fails_at > 0) return;
  WriteHeld(output, rank.Finish());
}

}  // namespace phalanx::oracle
