// State that comes from one layout to another: every element has a value of its own, and each home
// of the new layout has it afterwards.
#include "worker/train/relayout.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "core/plan/moves.h"
#include "core/plan/ruler_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/comm/communicator.h"
#include "worker/train/mirror_fill.h"
#include "worker/train/training_state.h"

namespace phalanx::train {
namespace {

using support::AJob;
using support::Layout;
using support::Llama;
using testing::HasSubstr;

plan::Plan HealthyOf(AJob job) {
  const job::JobSpec spec = job.Build();
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

plan::Plan Without(const plan::Plan& before, const plan::RankList& lost) {
  auto next = plan::LayoutAfter(before, {.lost = lost, .spares = false});
  EXPECT_TRUE(next.ok()) << next.status();
  return *plan::Expand(before.spec, std::move(next->layout));
}

// Of one of the arrays of a block, exact in fp32.
at::Tensor ValuesOf(const plan::PartId& part, int32_t bucket, const RulerRun& run, int32_t array,
                    const at::TensorOptions& options) {
  const double salt = part.module * 7919 + part.stage * 3571 + part.chunk * 1789 + bucket * 911 +
                      static_cast<double>(run.family.kind) * 457 + run.family.edge * 101 +
                      array * 17;
  const at::Tensor elements =
      at::arange(run.elements.first, run.elements.end(), at::TensorOptions().dtype(at::kDouble));
  return (elements * 37 + salt).fmod(65521).add(1).to(options);
}

// Calls visit(part, block, runs) for each block of the state.
template <typename Visit>
void ForBlocks(const plan::Plan& plan, TrainingState& state, Visit visit) {
  for (const auto& part : state.parts()) {
    const auto rulers = plan::RulersOf(plan, part->place(), part->parameters());
    for (StateBlock& block : part->blocks())
      visit(*part, block, RulerRunsOf(rulers[static_cast<size_t>(block.bucket)], block));
  }
}

// Runs of a block of `plan`, as `names` has them.
struct NamedRun {
  plan::PartId part;
  int32_t bucket = 0;
  RulerRun run;
};
std::vector<NamedRun> Named(const plan::Plan& plan, const plan::Plan& names,
                            const plan::PartId& part, int32_t bucket,
                            const std::vector<RulerRun>& runs) {
  std::vector<NamedRun> named;
  if (plan::SameRulers(plan, names, part.module)) {
    for (const RulerRun& run : runs) named.push_back({part, bucket, run});
    return named;
  }
  const plan::RulerMap map(plan, names, part.module);
  for (const RulerRun& run : runs) {
    for (const auto& piece : map.Of({part, bucket, run.family}, run.elements)) {
      named.push_back({piece.ruler.part,
                       piece.ruler.bucket,
                       {.family = piece.ruler.family,
                        .elements = piece.elements,
                        .state_offset = run.state_offset + piece.from - run.elements.first}});
    }
  }
  return named;
}

// What the block of `plan` has to have, where elements have their values by `names`; padding is
// zero.
std::vector<at::Tensor> Expected(const plan::Plan& plan, const plan::Plan& names, PartState& part,
                                 const StateBlock& block, const std::vector<RulerRun>& runs) {
  const plan::PartId id{part.place().module, part.place().pp, part.chunk()};
  const std::vector<NamedRun> named = Named(plan, names, id, block.bucket, runs);
  std::vector<at::Tensor> arrays;
  for (int32_t i = 0; i < kStateArrays; ++i) {
    at::Tensor array = at::zeros_like(block.first_moment);
    for (const NamedRun& of : named) {
      array.narrow(0, of.run.state_offset, of.run.elements.count)
          .copy_(ValuesOf(of.part, of.bucket, of.run, i, array.options()));
    }
    arrays.push_back(array);
  }
  return arrays;
}

at::Tensor MasterOf(PartState& part, const StateBlock& block) {
  if (block.master.defined()) return block.master;
  at::Tensor master = at::empty_like(block.first_moment);
  for (const StateRun& run : block.runs) {
    master.narrow(0, run.state_offset, run.count)
        .copy_(part.weights().narrow(0, run.gradient_offset, run.count));
  }
  return master;
}

void FillState(const plan::Plan& plan, TrainingState& state) {
  ForBlocks(plan, state, [&plan](PartState& part, StateBlock& block, const auto& runs) {
    const std::vector<at::Tensor> arrays = Expected(plan, plan, part, block, runs);
    block.first_moment.copy_(arrays[1]);
    block.second_moment.copy_(arrays[2]);
    if (block.master.defined()) block.master.copy_(arrays[0]);
    if (block.mirrors) return;
    for (const StateRun& run : block.runs) {
      part.weights()
          .narrow(0, run.gradient_offset, run.count)
          .copy_(arrays[0].narrow(0, run.state_offset, run.count));
    }
  });
}

// Flips a bit of what the first receive brings.
class Corrupting final : public comm::Communicator {
 public:
  explicit Corrupting(std::unique_ptr<comm::Communicator> inner) : inner_(std::move(inner)) {}
  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  absl::Status AllReduceSum(void* data, int64_t count, comm::DType dtype) override {
    return inner_->AllReduceSum(data, count, dtype);
  }
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count,
                                comm::DType dtype) override {
    return inner_->ReduceScatterSum(in, out, count, dtype);
  }
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override {
    return inner_->AllGather(in, out, count, dtype);
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    const absl::Status status = inner_->Exchange(sends, receives);
    if (status.ok() && !receives.empty()) static_cast<uint8_t*>(receives[0].data)[3] ^= 4;
    return status;
  }
  absl::Status Join() override { return inner_->Join(); }
  absl::Status Flush() override { return inner_->Flush(); }
  void Abort(absl::Status reason) override { inner_->Abort(std::move(reason)); }

 private:
  const std::unique_ptr<comm::Communicator> inner_;
};

// Fails its caller, and so everybody, at one of all exchanges.
class Failing final : public comm::Communicator {
 public:
  Failing(std::unique_ptr<comm::Communicator> inner, std::atomic<int64_t>& left)
      : inner_(std::move(inner)), left_(left) {}
  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  absl::Status AllReduceSum(void*, int64_t, comm::DType) override { return Unused(); }
  absl::Status ReduceScatterSum(const void*, void*, int64_t, comm::DType) override {
    return Unused();
  }
  absl::Status AllGather(const void*, void*, int64_t, comm::DType) override { return Unused(); }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    if (left_-- == 0) return absl::UnavailableError("the test takes a peer away");
    const absl::Status status = inner_->Exchange(sends, receives);
    return left_-- == 0 ? absl::UnavailableError("the test takes a peer away") : status;
  }
  absl::Status Join() override { return inner_->Join(); }
  absl::Status Flush() override { return inner_->Flush(); }
  void Abort(absl::Status reason) override { inner_->Abort(std::move(reason)); }

 private:
  static absl::Status Unused() { return absl::UnimplementedError("a relayout exchanges"); }
  const std::unique_ptr<comm::Communicator> inner_;
  std::atomic<int64_t>& left_;
};

constexpr int64_t kNever = int64_t{1} << 40;

// The ranks of a job that has trained to step 5.
class Ranks {
 public:
  explicit Ranks(const plan::Plan& plan, at::ScalarType compute = at::kFloat)
      : options_{.compute = compute}, names_(plan), plan_(plan) {
    plans_[plan.digest] = plan;
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      states_[Rank{rank}] = *TrainingState::Create(plan, Rank{rank}, options_);
      FillState(plan, *states_[Rank{rank}]);
      states_[Rank{rank}]->Adopt(start_);
    }
  }

  TrainingState& of(int32_t rank) { return *states_.at(Rank{rank}); }
  // Whether mirrors are given what they lack in Enter, too.
  void set_fills(bool fills) { fills_ = fills; }

  // The ranks that `after` has lost die first. What each rank's Enter has said.
  using Wrap =
      std::function<std::unique_ptr<comm::Communicator>(Rank, std::unique_ptr<comm::Communicator>)>;
  std::map<Rank, absl::Status> Enter(const plan::Plan& after, const Wrap& wrap = nullptr) {
    plans_[after.digest] = after;
    for (const Rank rank : after.layout.lost) states_.erase(rank);
    const plan::RankList live = Leave(after);
    const absl::StatusOr<Transfers> transfers = TransfersInto(after, holdings_);
    EXPECT_TRUE(transfers.ok()) << transfers.status();
    if (!transfers.ok()) return {{Rank{0}, transfers.status()}};
    moved_ = transfers->state_elements;
    const std::vector<plan::CommunicatorSpec> specs = {{.name = "bulk", .ranks = live}};
    comm::InProcessWorld world(after.world);
    std::map<Rank, absl::Status> results;
    for (const Rank rank : live) results[rank] = absl::OkStatus();
    {
      std::vector<std::jthread> threads;
      for (const Rank rank : live) {
        threads.emplace_back([&, rank] {
          std::unique_ptr<comm::Communicator> bulk = std::move(world.Connect(specs, rank)[0]);
          if (wrap != nullptr) bulk = wrap(rank, std::move(bulk));
          const BulkGroup group{.communicator = bulk.get(), .ranks = live};
          absl::Status& result = results.at(rank);
          TrainingState& state = *states_.at(rank);
          result = state.Enter(after, *transfers, group);
          if (result.ok() && fills_) {
            MirrorFill fill(after, rank, state, transfers->mirrors, group, [] { return false; });
            while (result.ok() && !fill.done()) result = fill.Run(1);
          }
          if (!result.ok()) bulk->Abort(result);
        });
      }
    }
    plan_ = after;
    return results;
  }
  bool EnterOrStop(const plan::Plan& after, int64_t exchanges) {
    std::atomic<int64_t> left = exchanges;
    const auto results = Enter(after, [&left](Rank, std::unique_ptr<comm::Communicator> inner) {
      return std::make_unique<Failing>(std::move(inner), left);
    });
    bool all = true;
    for (const auto& [rank, status] : results) {
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      all = all && status.ok();
    }
    return all;
  }

  // Every rank lies in the plan, with everything where it belongs.
  void ExpectWhole() {
    for (const auto& [rank, state] : states_) {
      SCOPED_TRACE(rank.value);
      ASSERT_EQ(state->layout(), plan_.digest);
      EXPECT_EQ(state->decided().step, start_.decision.step);
      for (const Standing::Home& home : state->StandingNow().homes)
        EXPECT_EQ(home.applied, start_.decision.step);
      ForBlocks(plan_, *state, [this](PartState& part, const StateBlock& block, const auto& runs) {
        const std::vector<at::Tensor> expected = Expected(plan_, names_, part, block, runs);
        EXPECT_TRUE(at::equal(MasterOf(part, block), expected[0]));
        EXPECT_TRUE(at::equal(block.first_moment, expected[1]));
        EXPECT_TRUE(at::equal(block.second_moment, expected[2]));
        EXPECT_EQ(block.master.defined(), block.mirrors || !part.weights_are_masters());
      });
      const auto fresh = *TrainingState::Create(plan_, rank, options_);
      ASSERT_EQ(state->parts().size(), fresh->parts().size());
      for (size_t p = 0; p < fresh->parts().size(); ++p) {
        PartState &part = *state->parts()[p], &other = *fresh->parts()[p];
        const int64_t trained = part.parameters().trained_extent;
        ASSERT_EQ(part.weights().numel(), other.weights().numel());
        const int64_t frozen = part.weights().numel() - trained;
        EXPECT_TRUE(at::equal(part.weights().narrow(0, trained, frozen),
                              other.weights().narrow(0, trained, frozen)));
        EXPECT_EQ(part.gradients().defined(), other.gradients().defined());
        EXPECT_EQ(part.trains() ? part.gradients().numel() : 0, trained);
      }
    }
  }

  int64_t moved() const { return moved_; }

 private:
  // Who is there, and what they hold, without those that neither have nor get anything.
  plan::RankList Leave(const plan::Plan& after) {
    plan::RankList live;
    holdings_.clear();
    for (int32_t number = 0; number < after.world; ++number) {
      const Rank rank{number};
      if (!states_.contains(rank)) {
        if (after.PlacesOf(rank).empty()) continue;
        states_[rank] = TrainingState::CreateNowhere(rank, options_);
      }
      TrainingState& state = *states_[rank];
      if (!state.layout().empty()) {
        EXPECT_EQ(state.Leave(plans_.at(state.layout())), absl::OkStatus());
      }
      state.NameAs(after);
      if (state.HoldingsNow().state.empty()) state.Adopt(start_);
      holdings_[rank] = state.HoldingsNow();
      live.push_back(rank);
    }
    return live;
  }

  const BufferOptions options_;
  const Start start_{.decision = {.step = 5, .verdict = Verdict::kCommitted},
                     .counts = {.updates = 5}};
  const plan::Plan names_;  // by which elements have their values
  plan::Plan plan_;
  std::map<std::string, plan::Plan> plans_;
  std::map<Rank, std::unique_ptr<TrainingState>> states_;
  std::map<Rank, Holdings> holdings_;
  int64_t moved_ = 0;
  bool fills_ = true;
};

void ExpectOk(const std::map<Rank, absl::Status>& results) {
  for (const auto& [rank, status] : results) EXPECT_TRUE(status.ok()) << rank.value << status;
}

job::Architecture Decoder(int32_t layers = 2) {
  return Llama({.hidden_size = 16,
                .layers = layers,
                .heads = 8,
                .kv_heads = 4,
                .mlp_size = 38,
                .block = 4,
                .vocabulary = 29,
                .context = 64});
}
AJob Language(const Layout& layout, int32_t layers = 2) {
  AJob job = AJob().Module("language", Decoder(layers), layout).Batch(12, 1);
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  return job;
}

struct RelayoutCase {
  std::string name;
  AJob job;
  std::vector<plan::RankList> losses;  // one after the other
};

class RelayoutTest : public testing::TestWithParam<RelayoutCase> {};

std::vector<plan::Plan> LayoutsOf(const RelayoutCase& c) {
  std::vector<plan::Plan> plans = {HealthyOf(c.job)};
  for (const plan::RankList& lost : c.losses) plans.push_back(Without(plans.back(), lost));
  plans.push_back(plans.front());
  return plans;
}

TEST_P(RelayoutTest, EveryHome_HasItsState) {
  const std::vector<plan::Plan> plans = LayoutsOf(GetParam());
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
    Ranks ranks(plans.front(), compute);
    for (size_t i = 1; i < plans.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectOk(ranks.Enter(plans[i]));
      ranks.ExpectWhole();
    }
  }
}

TEST_P(RelayoutTest, Moves_NoMoreThanThePlanSays) {
  const std::vector<plan::Plan> plans = LayoutsOf(GetParam());
  Ranks ranks(plans.front());
  for (size_t i = 1; i + 1 < plans.size(); ++i) {
    ExpectOk(ranks.Enter(plans[i]));
    EXPECT_EQ(ranks.moved() * kStateArrays * 4, plan::MovesBetween(plans[i - 1], plans[i]).bytes);
  }
}

TEST_P(RelayoutTest, StoppedAnywhere_NothingIsLost) {
  const std::vector<plan::Plan> plans = LayoutsOf(GetParam());
  Prng prng(11);
  int32_t stopped = 0;
  for (int32_t run = 0; run < 4; ++run) {
    Ranks ranks(plans.front(), run % 2 == 0 ? at::kFloat : at::kBFloat16);
    for (size_t i = 1; i < plans.size(); ++i) {
      for (int32_t stops = 0; stops < 2; ++stops)
        stopped += !ranks.EnterOrStop(plans[i], static_cast<int64_t>(prng.Below(40)));
      // Now and then the next layout comes before this one does. With two homes alone the next loss
      // could then take the second.
      const bool spare = plans.front().spec.recovery.state_copies > 2;
      if (spare && prng.Below(2) == 0 && i + 1 < plans.size()) continue;
      ASSERT_TRUE(ranks.EnterOrStop(plans[i], kNever));
      ranks.ExpectWhole();
    }
  }
  EXPECT_GT(stopped, 0);
}

std::vector<RelayoutCase> Cases() {
  const auto ranks = [](std::vector<int32_t> numbers) {
    plan::RankList list;
    for (const int32_t number : numbers) list.push_back(Rank{number});
    return list;
  };
  std::vector<RelayoutCase> cases = {
      {"dp4", Language({.dp = 4}), {ranks({1})}},
      {"tp2_dp3", Language({.tp = 2, .dp = 3}), {ranks({3}), ranks({0})}},
      {"tp3_dp2_pp2", Language({.tp = 3, .dp = 2, .pp = 2}, 4), {ranks({4}), ranks({7})}},
      {"tp4_dp3", Language({.tp = 4, .dp = 3}), {ranks({5}), ranks({8, 10})}},
      {"replica_goes", Language({.dp = 4, .pp = 2}, 4), {ranks({2}), ranks({7})}},
      {"interleaved",
       Language({.dp = 3, .pp = 2}, 4).Schedule(job::ScheduleName::kInterleaved, 2),
       {ranks({3})}}};
  AJob three = Language({.tp = 2, .dp = 3});
  three.spec().recovery.state_copies = 3;
  cases.push_back({"three_homes", std::move(three), {ranks({2}), ranks({5})}});
  const auto with_vision = [](bool frozen, int32_t offset) {
    AJob job = AJob()
                   .Module("vision", support::ClipVision({.hidden_size = 16}),
                           {.tp = 2, .dp = 2, .frozen = frozen})
                   .Module("language", Decoder(), {.tp = 2, .dp = 2, .offset = offset})
                   .Edge("vision", "language", {.projector = 20})
                   .Batch(4, 1);
    job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
    return job;
  };
  cases.push_back({"frozen_vision", with_vision(true, -1), {ranks({1}), ranks({5})}});
  cases.push_back({"colocated_vision", with_vision(false, 0), {ranks({2})}});
  cases.push_back({"colocated_frozen", with_vision(true, 0), {ranks({1})}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layouts, RelayoutTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// From one that has restarted on what is left, with stages cut otherwise, to the healthy one.
class ReturnFromRestartTest : public testing::TestWithParam<RelayoutCase> {};

TEST_P(ReturnFromRestartTest, EveryHome_HasItsState_HoweverOftenItIsStopped) {
  AJob job = GetParam().job;
  job.spec().recovery.ladder = {job::Rung::kRestart};
  const plan::Plan healthy = HealthyOf(std::move(job));
  const plan::Plan restarted = Without(healthy, GetParam().losses.at(0));
  ASSERT_FALSE(plan::SameRulers(restarted, healthy));
  Prng prng(12);
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
    Ranks ranks(restarted, compute);
    int32_t stopped = 0;
    for (int32_t stops = 0; stops < 3; ++stops)
      stopped += !ranks.EnterOrStop(healthy, static_cast<int64_t>(prng.Below(6)));
    EXPECT_GT(stopped, 0);
    ASSERT_TRUE(ranks.EnterOrStop(healthy, kNever));
    ranks.ExpectWhole();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ReturnFromRestartTest,
    testing::Values(RelayoutCase{"pp2", Language({.pp = 2}, 4), {{Rank{1}}}},
                    RelayoutCase{"pp3_of_two", Language({.pp = 3}, 5), {{Rank{1}}}},
                    RelayoutCase{"tp2_pp2", Language({.tp = 2, .pp = 2}, 4), {{Rank{2}}}},
                    RelayoutCase{
                        "interleaved",
                        Language({.pp = 2}, 4).Schedule(job::ScheduleName::kInterleaved, 2),
                        {{Rank{0}}}}),
    [](const auto& info) { return info.param.name; });

TEST(RelayoutOfRanksTest, BlocksThatBothLayoutsHave_StayWhereTheyAre) {
  const plan::Plan healthy = HealthyOf(Language({.tp = 2, .dp = 2, .pp = 2}, 4));
  // Another stage's rank: what belongs to the first stage stays.
  const Rank lost = healthy.TensorGroup(0, 0, 1)[0];
  const Rank stays = healthy.TensorGroup(0, 0, 0)[0];
  const plan::Plan after = Without(healthy, {lost});
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    Ranks ranks(healthy, compute);
    PartState& before = *ranks.of(stays.value).parts().at(0);
    const void* moment = before.blocks().at(0).first_moment.const_data_ptr();
    const void* weights = before.weights().const_data_ptr();
    ExpectOk(ranks.Enter(after));
    PartState& now = *ranks.of(stays.value).parts().at(0);
    EXPECT_EQ(now.blocks().at(0).first_moment.const_data_ptr(), moment);
    EXPECT_EQ(now.weights().const_data_ptr(), weights);
  }
}

TEST(RelayoutOfRanksTest, MirrorsThatLackTheirState_HoldNoneUntilTheyAreGivenIt) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3}));
  const plan::Plan after = Without(healthy, {Rank{2}});
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    Ranks ranks(healthy, compute);
    ranks.set_fills(false);
    ExpectOk(ranks.Enter(after));
    EXPECT_TRUE(ranks.of(0).Lacks());
    EXPECT_TRUE(ranks.of(1).Lacks());
    // The epoch ends before they are given any.
    ranks.set_fills(true);
    ExpectOk(ranks.Enter(after));
    EXPECT_FALSE(ranks.of(0).Lacks());
    ranks.ExpectWhole();
    ExpectOk(ranks.Enter(Without(after, {Rank{1}})));
    ranks.ExpectWhole();
  }
}

TEST(RelayoutOfRanksTest, BytesThatChangeOnTheirWay_AreAnErrorThatNamesThem) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3}));
  const plan::Plan after = Without(healthy, {Rank{2}});
  Ranks ranks(healthy);
  const auto results = ranks.Enter(
      after,
      [](Rank rank,
         std::unique_ptr<comm::Communicator> inner) -> std::unique_ptr<comm::Communicator> {
        if (rank != Rank{0}) return inner;
        return std::make_unique<Corrupting>(std::move(inner));
      });
  EXPECT_TRUE(absl::IsDataLoss(results.at(Rank{0}))) << results.at(Rank{0});
  EXPECT_THAT(std::string(results.at(Rank{0}).message()),
              HasSubstr("rank 0 did not get from rank 1 what that sent of the state of module "
                        "language, stage 0, chunk 0, bucket 0: "));
  EXPECT_FALSE(results.at(Rank{1}).ok());
  ExpectOk(ranks.Enter(after));
  ranks.ExpectWhole();
}

TEST(RelayoutOfRanksTest, StateThatNobodyHolds_IsNamed) {
  AJob job = Language({.dp = 3});
  job.spec().recovery.state_copies = 1;
  const plan::Plan healthy = HealthyOf(std::move(job));
  const plan::Plan after = Without(healthy, {Rank{2}});
  const auto state = *TrainingState::Create(healthy, Rank{0}, {});
  ASSERT_EQ(state->Leave(healthy), absl::OkStatus());
  const auto transfers = TransfersInto(after, {{Rank{0}, state->HoldingsNow()}});
  EXPECT_TRUE(absl::IsFailedPrecondition(transfers.status())) << transfers.status();
  EXPECT_THAT(std::string(transfers.status().message()),
              HasSubstr("no rank holds some optimizer state of module language, stage 0"));
}

TEST(RelayoutOfRanksTest, StateThatHasNotAppliedTheLastStep_DoesNotLeave) {
  const plan::Plan plan = HealthyOf(Language({.dp = 2}));
  const auto state = *TrainingState::Create(plan, Rank{0}, {});
  state->Account({.step = 1, .verdict = Verdict::kCommitted});
  EXPECT_TRUE(absl::IsFailedPrecondition(state->Leave(plan)));
  EXPECT_EQ(state->layout(), plan.digest);
}

}  // namespace
}  // namespace phalanx::train
