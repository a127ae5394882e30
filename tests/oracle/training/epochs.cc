#include "tests/oracle/training/epochs.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>
#include <utility>

#include "core/base/status.h"
#include "core/plan/loss.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"
#include "worker/train/transfers.h"

namespace phalanx::oracle {

struct EpochsInProcess::RankOf {
  std::unique_ptr<train::TrainingState> state;
  std::unique_ptr<train::SampleSource> source;
  std::vector<train::StepSummary> told;
  train::WarmPasses warm;
  std::vector<train::BucketTransfers> lacking;  // of mirrors, since the last change of layout
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
        for (const auto& rank : ranks_) {
          if (rank->state != nullptr) rank->state->RequestStop();
        }
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

  static void CountAll(comm::Communicators& communicators, Stopper& stopper) {
    for (auto& communicator : communicators) {
      if (communicator != nullptr)
        communicator = std::make_unique<Counted>(std::move(communicator), stopper);
    }
  }

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

bool IsOfAnEnding(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsUnavailable(status) || absl::IsAborted(status);
}

void Abort(comm::Communicators& communicators, const absl::Status& reason) {
  for (const auto& communicator : communicators) {
    if (communicator != nullptr) communicator->Abort(reason);
  }
}

}  // namespace

EpochsInProcess::EpochsInProcess(const job::JobSpec& spec, const DataShape& data,
                                 plan::RankList lost)
    : spec_(spec), world_(spec.World()) {
  at::set_num_threads(1);
  const auto healthy = PlanWithout(spec_, {});
  const auto plan = PlanWithout(spec_, lost);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (plan.ok()) {
    healthy_ = *healthy;
    plan_ = *plan;
    plans_[plan_.digest] = plan_;
  }
  for (int32_t rank = 0; rank < world_; ++rank) {
    ranks_.push_back(std::make_unique<RankOf>());
    ranks_.back()->source = MakeData(data);
    if (!plan.ok() || std::find(lost.begin(), lost.end(), Rank{rank}) != lost.end()) continue;
    ranks_.back()->state = *train::TrainingState::Create(
        *plan, Rank{rank}, {.compute = train::ComputeType(spec_.compute)});
  }
}

EpochsInProcess::~EpochsInProcess() = default;

bool EpochsInProcess::Run(const std::optional<Ending>& ending) {
  return RunEpoch(ending, std::nullopt);
}

void EpochsInProcess::SetFaults(int32_t rank, train::FaultPoints& faults) {
  ranks_[static_cast<size_t>(rank)]->state->set_faults(&faults);
}

void EpochsInProcess::RunSteps(int64_t steps) { RunEpoch(std::nullopt, steps); }

absl::Status EpochsInProcess::Train(int32_t number, train::Trainer& trainer,
                                    std::optional<int64_t> steps) {
  RankOf& rank = *ranks_[static_cast<size_t>(number)];
  const size_t known = rank.told.size();
  RETURN_IF_ERROR(trainer.Prepare());
  // What an epoch before had decided took a time that nobody knows here.
  for (size_t i = known; i < rank.told.size(); ++i) EXPECT_EQ(rank.told[i].seconds, 0);
  // As on a device whose process is new. It leaves the state as it was.
  train::Executor& executor = trainer.executor();
  train::Batches batches(plan_, executor.places(), *rank.source, at::kCPU,
                         train::ComputeType(spec_.compute),
                         train::TrainerOptions{}.length_multiple);
  const int64_t next = start_.decision.step + 1;
  const std::vector<train::Microbatch> first = batches.OfStep(std::min(next, spec_.steps));
  batches.Announce(first, {});
  train::WarmPasses none;
  RETURN_IF_ERROR(executor.RunPassesAlone(batches, first, train::Executor::Passes::kEvery, none));
  if (epoch_ > 1) RETURN_IF_ERROR(executor.RunUndecided(batches, first));
  if (!steps.has_value()) return trainer.Run();
  for (int64_t step = next; step < next + *steps; ++step)
    RETURN_IF_ERROR(trainer.RunOne(step).status());
  return absl::OkStatus();
}

bool EpochsInProcess::RunEpoch(const std::optional<Ending>& ending, std::optional<int64_t> steps) {
  plan_.layout.epoch = Epoch{++epoch_};
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
  comm::InProcessWorld world(world_);
  Stopper stopper(ending, world, ranks_);
  std::barrier created(world_);
  std::atomic<int32_t> done{0};
  auto run = [&](int32_t number) {
    if (plan_.PlacesOf(Rank{number}).empty()) {  // nobody would start it
      created.arrive_and_wait();
      ++done;
      return;
    }
    RankOf& rank = *ranks_[static_cast<size_t>(number)];
    comm::Communicators communicators = world.Connect(specs, Rank{number});
    Counted<Stopper>::CountAll(communicators, stopper);
    train::TrainerOptions options;
    if (epoch_ > 1) options.start = start_;
    options.warm = &rank.warm;
    train::TrainerCallbacks callbacks;
    callbacks.on_step = [&rank](const train::StepSummary& step) { rank.told.push_back(step); };
    std::optional<train::MirrorFill> fill = FillOf(number, communicators);
    absl::StatusOr<std::unique_ptr<train::Trainer>> trainer = absl::UnknownError("not made");
    if (fill.has_value()) {
      options.mirrors_are_whole = false;
      callbacks.wants_boundary = [&fill] { return !fill->done(); };
      callbacks.on_boundary = [&]() -> absl::Status {
        RETURN_IF_ERROR(fill->Run(rank.lacking.size()));
        return fill->whole() ? (*trainer)->executor().UpdateEverywhere() : absl::OkStatus();
      };
    }
    trainer = train::Trainer::Create(plan_, Rank{number}, communicators, *rank.source, *rank.state,
                                     options, std::move(callbacks));
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    created.arrive_and_wait();
    if (!trainer.ok()) return world.Abort(trainer.status());
    const absl::Status status = Train(number, **trainer, steps);
    if (status.ok()) {
      ++done;
      return;
    }
    EXPECT_TRUE(ending.has_value() && IsOfAnEnding(status))
        << "rank " << number << " epoch " << epoch_ << ": " << status;
    Abort(communicators, status);
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
    if (rank->state == nullptr) continue;
    const train::Standing standing = rank->state->StandingNow();
    if (standing.decided.step > start_.decision.step) start_ = {standing.decided, standing.counts};
    if (!rank->state->parts().empty()) standings.push_back(standing);
  }
  const bool behind =
      std::any_of(standings.begin(), standings.end(), [this](const train::Standing& standing) {
        return standing.decided.step < step() ||
               std::any_of(standing.homes.begin(), standing.homes.end(),
                           [this](const auto& home) { return home.applied < step(); });
      });
  left_behind_ += behind;
}

bool EpochsInProcess::Lose(const plan::RankList& ranks, std::optional<int64_t> stop_at) {
  for (const Rank rank : ranks) {
    ranks_[static_cast<size_t>(rank.value)]->state = nullptr;
    ranks_[static_cast<size_t>(rank.value)]->told.clear();
    ranks_[static_cast<size_t>(rank.value)]->warm = {};
  }
  // What the lost ones alone knew nobody knows any more.
  start_ = {};
  TakeStandings();
  return Retire(ranks, stop_at);
}

bool EpochsInProcess::Retire(const plan::RankList& ranks, std::optional<int64_t> stop_at) {
  absl::StatusOr<plan::NextLayout> next =
      plan::LayoutAfter(plan_, {.lost = ranks, .spares = false});
  EXPECT_TRUE(next.ok()) << next.status();
  if (!next.ok()) return false;
  absl::StatusOr<plan::Plan> after = plan::Expand(spec_, std::move(next->layout));
  EXPECT_TRUE(after.ok()) << after.status();
  return after.ok() && Enter(*std::move(after), stop_at);
}

bool EpochsInProcess::ReturnAll(std::optional<int64_t> stop_at) { return Enter(healthy_, stop_at); }

void EpochsInProcess::LeaveLayouts() {
  for (const auto& rank : ranks_) {
    if (rank->state == nullptr || rank->state->layout().empty()) continue;
    const plan::Plan& lies_in = plans_.at(rank->state->layout());
    EXPECT_EQ(rank->state->GoOn(lies_in, start_), absl::OkStatus());
    EXPECT_EQ(rank->state->Leave(lies_in), absl::OkStatus());
  }
}

bool EpochsInProcess::Enter(plan::Plan after, std::optional<int64_t> stop_at) {
  // From now on this is the layout that others follow from, whether or not it comes to an epoch.
  plan_ = std::move(after);
  plans_[plan_.digest] = plan_;
  LeaveLayouts();
  std::map<Rank, train::Holdings> holdings;
  plan::RankList live;
  for (int32_t number = 0; number < world_; ++number) {
    std::unique_ptr<train::TrainingState>& state = ranks_[static_cast<size_t>(number)]->state;
    if (state == nullptr && plan_.PlacesOf(Rank{number}).empty()) continue;
    if (state == nullptr) {
      state = train::TrainingState::CreateNowhere(Rank{number},
                                                  {.compute = train::ComputeType(spec_.compute)});
    }
    state->NameAs(plan_);
    train::Holdings held = state->HoldingsNow();
    if (held.state.empty() && held.frozen.empty()) state->Adopt(start_);
    live.push_back(Rank{number});
    holdings[Rank{number}] = std::move(held);
  }
  const absl::StatusOr<train::Transfers> transfers = train::TransfersInto(plan_, holdings);
  EXPECT_TRUE(transfers.ok()) << transfers.status();
  if (!transfers.ok()) return false;
  moved_ += transfers->state_elements;
  return MoveAll(live, *transfers, stop_at);
}

std::optional<train::MirrorFill> EpochsInProcess::FillOf(int32_t number,
                                                         comm::Communicators& communicators) {
  RankOf& rank = *ranks_[static_cast<size_t>(number)];
  if (rank.lacking.empty()) return std::nullopt;
  train::BulkGroup group;
  for (Rank member{0}; member.value < plan_.world; ++member.value) {
    if (!plan_.PlacesOf(member).empty()) group.ranks.push_back(member);
  }
  const int32_t control = plan::FindCommunicator(
      plan::Communicators(plan_), plan::CommunicatorSpec::Use::kControl, group.ranks);
  group.communicator = communicators[static_cast<size_t>(control)].get();
  return std::optional<train::MirrorFill>(std::in_place, plan_, Rank{number}, *rank.state,
                                          rank.lacking, group,
                                          [&rank] { return rank.state->stop_requested(); });
}

bool EpochsInProcess::MoveAll(const plan::RankList& live, const train::Transfers& transfers,
                              std::optional<int64_t> stop_at) {
  std::optional<Ending> ending;
  if (stop_at.has_value()) ending = Ending{.kind = Ending::Kind::kAbort, .at = *stop_at};
  const std::vector<plan::CommunicatorSpec> specs = {{.name = "bulk", .ranks = live}};
  comm::InProcessWorld world(world_);
  Stopper stopper(ending, world, ranks_);
  std::atomic<size_t> done{0};
  auto run = [&](Rank rank) {
    comm::Communicators communicators = world.Connect(specs, rank);
    Counted<Stopper>::CountAll(communicators, stopper);
    train::TrainingState& state = *ranks_[static_cast<size_t>(rank.value)]->state;
    state.TakeBackRequests();
    const train::BulkGroup group{.communicator = communicators[0].get(), .ranks = live};
    absl::Status status = state.Enter(plan_, transfers, group).status();
    std::vector<train::BucketTransfers>& lacking = ranks_[static_cast<size_t>(rank.value)]->lacking;
    lacking = mirrors_follow_ ? transfers.mirrors : std::vector<train::BucketTransfers>();
    if (status.ok() && !mirrors_follow_) {
      train::MirrorFill fill(plan_, rank, state, transfers.mirrors, group,
                             [&state] { return state.stop_requested(); });
      status = fill.Run(transfers.mirrors.size());
    }
    if (status.ok()) {
      ++done;
      return;
    }
    EXPECT_TRUE(ending.has_value() && IsOfAnEnding(status))
        << "rank " << rank.value << ": " << status;
    Abort(communicators, status);
  };
  {
    std::vector<std::jthread> threads;
    for (const Rank rank : live) threads.emplace_back(run, rank);
  }
  operations_ += stopper.count();
  return done == live.size();
}

const train::WarmPasses& EpochsInProcess::warm(int32_t rank) const {
  return ranks_[static_cast<size_t>(rank)]->warm;
}

const std::vector<train::StepSummary>& EpochsInProcess::told(int32_t rank) const {
  return ranks_[static_cast<size_t>(rank)]->told;
}

TrainedStep EpochsInProcess::Held() const {
  std::vector<HeldPart> parts;
  for (const auto& rank : ranks_) {
    if (rank->state == nullptr) continue;
    for (const auto& part : rank->state->parts()) parts.push_back(HeldBy(*part));
  }
  return PutTogether(plan_, start_.decision, parts);
}

}  // namespace phalanx::oracle
