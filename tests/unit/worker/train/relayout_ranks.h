// tests/unit/worker/train/relayout_ranks.h: ranks whose state has a value of its own in each
// element, and goes from one layout to the next, over links that may fail.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/plan/ruler_map.h"
#include "tests/support/forwarding_communicator.h"
#include "worker/comm/communicator.h"
#include "worker/train/mirror_fill.h"
#include "worker/train/relayout.h"
#include "worker/train/training_state.h"

namespace phalanx::train {

// Of one of the arrays of a block, exact in fp32.
inline at::Tensor ValuesOf(const plan::PartId& part, int32_t bucket, const RulerRun& run,
                           int32_t array, const at::TensorOptions& options) {
  const double salt = part.module * 7919 + part.stage * 3571 + part.chunk * 1789 + bucket * 911 +
                      static_cast<double>(run.family.kind) * 457 + run.family.edge * 101 +
                      array * 17;
  const at::Tensor elements =
      at::arange(run.elements.first, run.elements.end(), at::TensorOptions().dtype(at::kDouble));
  return (elements * 37 + salt).fmod(65521).add(1).to(options);
}

// Calls visit(part, block, runs) for each block of the state.
template <typename Visit>
inline void ForBlocks(const plan::Plan& plan, TrainingState& state, Visit visit) {
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
inline std::vector<NamedRun> Named(const plan::Plan& plan, const plan::Plan& names,
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

inline at::Tensor MasterOf(PartState& part, const StateBlock& block) {
  if (block.master.defined()) return block.master;
  at::Tensor master = at::empty_like(block.first_moment);
  for (const StateRun& run : block.runs) {
    master.narrow(0, run.state_offset, run.count)
        .copy_(part.weights().narrow(0, run.gradient_offset, run.count));
  }
  return master;
}

inline void FillState(const plan::Plan& plan, TrainingState& state) {
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

// Flips a bit of what the first receive brings; once, `when` it is asked to, or each time.
class Corrupting final : public support::ForwardingCommunicator {
 public:
  explicit Corrupting(std::unique_ptr<comm::Communicator> inner,
                      std::function<bool()> when = nullptr)
      : ForwardingCommunicator(std::move(inner)), when_(std::move(when)) {}
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    const absl::Status status = ForwardingCommunicator::Exchange(sends, receives);
    if (!status.ok() || receives.empty() || done_ || (when_ != nullptr && !when_())) return status;
    static_cast<uint8_t*>(receives[0].data)[3] ^= 4;
    done_ = when_ != nullptr;
    return status;
  }

 private:
  const std::function<bool()> when_;
  bool done_ = false;
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
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override {
    return left_-- == 0 ? Fail() : inner_->AllGather(in, out, count, dtype);
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    if (left_-- == 0) return Fail();
    const absl::Status status = inner_->Exchange(sends, receives);
    return left_-- == 0 ? Fail() : status;
  }
  absl::Status Join() override { return inner_->Join(); }
  absl::Status Flush() override { return inner_->Flush(); }
  void Abort(absl::Status reason) override { inner_->Abort(std::move(reason)); }

 private:
  static absl::Status Unused() { return absl::UnimplementedError("a relayout exchanges"); }
  absl::Status Fail() {
    absl::Status reason = absl::UnavailableError("the test takes a peer away");
    inner_->Abort(reason);
    inner_->Flush().IgnoreError();  // lets go of the caller's memory, as what fails does
    return reason;
  }
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
  // Then as many of their buckets a call as ranks agree on whose first step took so long; without
  // it one.
  void set_step(std::function<absl::Duration(Rank)> step) { step_ = std::move(step); }
  // Calls that each of them took in the last Enter.
  const std::map<Rank, int>& fill_runs() const { return fill_runs_; }
  // What their mirrors did not get as it was sent, in the last Enter.
  const std::map<Rank, std::string>& damaged() const { return damaged_; }
  // Whether each was told that all mirrors are whole.
  const std::map<Rank, bool>& whole() const { return whole_; }

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
    for (const Rank rank : live) {
      results[rank] = absl::OkStatus();
      fill_runs_[rank] = 0;
      damaged_[rank].clear();
      whole_[rank] = false;
    }
    {
      std::vector<std::jthread> threads;
      for (const Rank rank : live) {
        threads.emplace_back([&, rank] {
          std::unique_ptr<comm::Communicator> bulk = std::move(world.Connect(specs, rank)[0]);
          if (wrap != nullptr) bulk = wrap(rank, std::move(bulk));
          const BulkGroup group{.communicator = bulk.get(), .ranks = live};
          absl::Status& result = results.at(rank);
          TrainingState& state = *states_.at(rank);
          result = state.Enter(after, *transfers, group).status();
          if (result.ok() && fills_) {
            MirrorFill fill(after, rank, state, transfers->mirrors, group, [] { return false; });
            const absl::StatusOr<size_t> share =
                step_ == nullptr ? size_t{1} : fill.AgreeOnShare(step_(rank));
            result = share.status();
            for (; result.ok() && !fill.done(); ++fill_runs_.at(rank)) result = fill.Run(*share);
            damaged_.at(rank) = fill.damaged();
            whole_.at(rank) = fill.whole();
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
  std::function<absl::Duration(Rank)> step_;
  std::map<Rank, int> fill_runs_;
  std::map<Rank, std::string> damaged_;
  std::map<Rank, bool> whole_;
};

}  // namespace phalanx::train
