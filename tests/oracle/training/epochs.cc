#include "tests/oracle/training/epochs.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>
#include <utility>

#include "core/plan/plan.h"
#include "worker/comm/communicator.h"

namespace phalanx::oracle {

struct EpochsInProcess::RankOf {
  std::unique_ptr<train::TrainingState> state;
  std::unique_ptr<train::SampleSource> source;
  std::vector<train::StepSummary> told;
};

// Counts operations, and ends the epoch at one of them.
class EpochsInProcess::Stopper {
 public:
  Stopper(const std::optional<Ending>& ending, comm::InProcessWorld& world,
          std::vector<std::unique_ptr<RankOf>>& ranks)
      : ending_(ending), world_(world), ranks_(ranks) {}

  void Count() {
    if (const int64_t count = count_++; !ending_.has_value() || count != ending_->at) return;
    switch (ending_->kind) {
      case Ending::Kind::kStop:
        for (const auto& rank : ranks_) rank->state->RequestStop();
        return world_.Abort(absl::CancelledError("the test stops the epoch"));
      case Ending::Kind::kAbort:
        return world_.Abort(absl::UnavailableError("the test takes a peer away"));
      case Ending::Kind::kStopOne:
        return ranks_[static_cast<size_t>(ending_->rank)]->state->RequestStop();
    }
  }
  int64_t count() const { return count_; }

 private:
  const std::optional<Ending> ending_;
  comm::InProcessWorld& world_;
  std::vector<std::unique_ptr<RankOf>>& ranks_;
  std::atomic<int64_t> count_{0};
};

namespace {

template <typename Stopper>
class Counted final : public comm::Communicator {
 public:
  Counted(std::unique_ptr<comm::Communicator> inner, Stopper& stopper)
      : inner_(std::move(inner)), stopper_(stopper) {}
  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  absl::Status AllReduceSum(void* data, int64_t count, comm::DType dtype) override {
    return Do([&] { return inner_->AllReduceSum(data, count, dtype); });
  }
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count,
                                comm::DType dtype) override {
    return Do([&] { return inner_->ReduceScatterSum(in, out, count, dtype); });
  }
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override {
    return Do([&] { return inner_->AllGather(in, out, count, dtype); });
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    return Do([&] { return inner_->Exchange(sends, receives); });
  }
  absl::Status Join() override { return inner_->Join(); }
  absl::Status Flush() override { return inner_->Flush(); }
  void Abort(absl::Status reason) override { inner_->Abort(std::move(reason)); }

 private:
  template <typename Operation>
  absl::Status Do(Operation operation) {
    stopper_.Count();
    const absl::Status status = operation();
    stopper_.Count();
    return status;
  }

  const std::unique_ptr<comm::Communicator> inner_;
  Stopper& stopper_;
};

}  // namespace

EpochsInProcess::EpochsInProcess(const job::JobSpec& spec, const DataShape& data,
                                 plan::RankList lost)
    : spec_(spec), lost_(std::move(lost)), world_(spec.World()) {
  at::set_num_threads(1);
  const auto plan = PlanWithout(spec_, lost_);
  EXPECT_TRUE(plan.ok()) << plan.status();
  for (int32_t rank = 0; rank < world_; ++rank) {
    ranks_.push_back(std::make_unique<RankOf>());
    ranks_.back()->source = MakeData(data);
    if (!plan.ok()) continue;
    ranks_.back()->state = *train::TrainingState::Create(
        *plan, Rank{rank}, {.compute = train::ComputeType(spec_.compute)});
  }
}

EpochsInProcess::~EpochsInProcess() = default;

bool EpochsInProcess::Run(const std::optional<Ending>& ending) {
  ++epoch_;
  const auto plan = PlanWithout(spec_, lost_, Epoch{epoch_});
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return false;
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(*plan);
  comm::InProcessWorld world(world_);
  Stopper stopper(ending, world, ranks_);
  std::barrier created(world_);
  std::atomic<int32_t> done{0};
  auto run = [&](int32_t number) {
    if (plan->PlacesOf(Rank{number}).empty()) {  // nobody would start it
      created.arrive_and_wait();
      ++done;
      return;
    }
    RankOf& rank = *ranks_[static_cast<size_t>(number)];
    comm::Communicators communicators = world.Connect(specs, Rank{number});
    for (auto& communicator : communicators) {
      if (communicator != nullptr)
        communicator = std::make_unique<Counted<Stopper>>(std::move(communicator), stopper);
    }
    train::TrainerOptions options;
    if (epoch_ > 1) options.start = start_;
    train::TrainerCallbacks callbacks;
    callbacks.on_step = [&rank](const train::StepSummary& step) { rank.told.push_back(step); };
    auto trainer = train::Trainer::Create(*plan, Rank{number}, communicators, *rank.source,
                                          *rank.state, options, std::move(callbacks));
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    created.arrive_and_wait();
    if (!trainer.ok()) return world.Abort(trainer.status());
    const size_t known = rank.told.size();
    absl::Status status = (*trainer)->Prepare();
    // What an epoch before had decided took a time that nobody knows here.
    for (size_t i = known; i < rank.told.size(); ++i) EXPECT_EQ(rank.told[i].seconds, 0);
    // As on a device whose process is new. It leaves the state as it was.
    train::Executor& executor = (*trainer)->executor();
    train::Batches batches(*plan, executor.places(), *rank.source, at::kCPU,
                           train::ComputeType(spec_.compute), options.length_multiple);
    const std::vector<train::Microbatch> first =
        batches.OfStep(std::min(start_.decision.step + 1, spec_.steps));
    batches.Announce(first, {});
    if (status.ok()) status = executor.WarmUp(batches, first);
    if (status.ok()) status = (*trainer)->Run();
    if (status.ok()) {
      ++done;
      return;
    }
    EXPECT_TRUE(ending.has_value() && (absl::IsCancelled(status) || absl::IsUnavailable(status) ||
                                       absl::IsAborted(status)))
        << "rank " << number << " epoch " << epoch_ << ": " << status;
    for (const auto& communicator : communicators) {
      if (communicator != nullptr) communicator->Abort(status);
    }
    (*trainer)->AccountForLast();
  };
  {
    std::vector<std::jthread> threads;
    for (int32_t rank = 0; rank < world_; ++rank) threads.emplace_back(run, rank);
  }
  operations_ += stopper.count();
  TakeStandings();
  return done == world_;
}

void EpochsInProcess::TakeStandings() {
  std::vector<train::Standing> standings;
  for (const auto& rank : ranks_) {
    if (!rank->state->parts().empty()) standings.push_back(rank->state->StandingNow());
  }
  for (const train::Standing& standing : standings) {
    if (standing.decided.step > start_.decision.step) start_ = {standing.decided, standing.counts};
  }
  const bool behind =
      std::any_of(standings.begin(), standings.end(), [this](const train::Standing& standing) {
        return standing.decided.step < step() ||
               std::any_of(standing.homes.begin(), standing.homes.end(),
                           [this](const auto& home) { return home.applied < step(); });
      });
  left_behind_ += behind;
}

const std::vector<train::StepSummary>& EpochsInProcess::told(int32_t rank) const {
  return ranks_[static_cast<size_t>(rank)]->told;
}

TrainedStep EpochsInProcess::Held() const {
  const auto plan = PlanWithout(spec_, lost_);
  std::vector<HeldPart> parts;
  for (const auto& rank : ranks_) {
    for (const auto& part : rank->state->parts()) parts.push_back(HeldBy(*part));
  }
  return PutTogether(*plan, start_.decision, parts);
}

}  // namespace phalanx::oracle
