#include "worker/train/part_reduction.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/model/unwritten.h"
#include "worker/train/begin_gradients.h"

namespace phalanx::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Notes which of its marks are waited for.
class NotedCommunicator final : public comm::Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t size() const override { return 2; }
  absl::Status AllReduceSum(void*, int64_t, comm::DType) override {
    if (on_sum != nullptr) on_sum();
    return Noted();
  }
  absl::Status ReduceScatterSum(const void*, void*, int64_t, comm::DType) override {
    if (on_sum != nullptr) on_sum();
    return Noted();
  }
  absl::Status ReduceScatterSums(absl::Span<const comm::Piece> pieces, comm::DType type) override {
    calls.push_back(absl::StrCat("sums ", pieces.size()));
    return Communicator::ReduceScatterSums(pieces, type);
  }
  absl::Status AllReduceSums(absl::Span<const comm::Piece> pieces, comm::DType type) override {
    calls.push_back(absl::StrCat("sums for all ", pieces.size()));
    return Communicator::AllReduceSums(pieces, type);
  }
  absl::Status AllGather(const void*, void* out, int64_t, comm::DType) override {
    gathered.push_back(out);
    return Noted();
  }
  absl::Status AllGathers(absl::Span<const comm::Piece> pieces, comm::DType type) override {
    calls.push_back(absl::StrCat("gathers ", pieces.size()));
    return Communicator::AllGathers(pieces, type);
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming>) override {
    calls.push_back(absl::StrCat("mirrors ", sends.size()));
    return Noted();
  }
  absl::Status Join() override {
    waited.push_back(operations_);
    return absl::OkStatus();
  }
  absl::Status Flush() override { return Join(); }
  absl::StatusOr<Point> Mark() override {
    return [this, at = operations_] {
      waited.push_back(at);
      return absl::OkStatus();
    };
  }
  void Abort(absl::Status) override {}

  int operations() const { return operations_; }
  std::vector<int> waited;  // for how many operations, in order
  std::vector<const void*> gathered;
  std::vector<std::string> calls;  // and how many pieces or messages each had
  std::function<void()> on_sum;

 private:
  absl::Status Noted() {
    ++operations_;
    return absl::OkStatus();
  }
  int operations_ = 0;
};

TEST(PartReductionTest, Await_OfOnePart_WaitsForItsOwnCollectivesAlone) {
  const job::JobSpec spec = support::AJob()
                                .Module("language", support::Llama(), {.dp = 2, .pp = 2})
                                .Batch(4, 1)
                                .Schedule(job::ScheduleName::kInterleaved, 2);
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const plan::Place place = plan->PlacesOf(Rank{0})[0];
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  std::vector<std::unique_ptr<PartState>> states;
  std::vector<std::unique_ptr<PartReduction>> parts;
  for (int32_t chunk = 0; chunk < 2; ++chunk) {
    states.push_back(std::make_unique<PartState>(*plan, place, chunk, BufferOptions{}));
    parts.push_back(std::make_unique<PartReduction>(
        plan::ReductionOf(*plan, place, chunk, states.back()->parameters()), *states.back(),
        PartGroups{.data = &data}, means));
  }
  EXPECT_FALSE(parts[0]->pending());
  ASSERT_TRUE(parts[0]->Gather().ok());
  const int first = data.operations();
  ASSERT_TRUE(parts[1]->Gather().ok());
  const int both = data.operations();
  ASSERT_GT(both, first);
  EXPECT_TRUE(parts[0]->pending());
  EXPECT_THAT(data.waited, IsEmpty());
  ASSERT_TRUE(parts[0]->Await().ok());
  EXPECT_THAT(data.waited, ElementsAre(first));
  ASSERT_TRUE(parts[0]->Await().ok());
  ASSERT_TRUE(parts[1]->Await().ok());
  EXPECT_THAT(data.waited, ElementsAre(first, both));
  EXPECT_FALSE(parts[0]->pending());
}

// Operations that the communicator has been given when Reduce() of so many buckets returns, and
// those that come with Await().
struct Begun {
  int by_reduce = 0, by_await = 0;
};
Begun BegunBy(const plan::Plan& plan, size_t buckets, bool even) {
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  plan::Reduction reduction = plan::ReductionOf(plan, place, 0, state.parameters());
  EXPECT_EQ(reduction.buckets.size(), 1u);
  EXPECT_EQ(reduction.buckets.front().even, even);
  reduction.buckets.resize(buckets, reduction.buckets.front());
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  PartReduction part(std::move(reduction), state, {.data = &data}, means);
  EXPECT_TRUE(part.Reduce().ok());
  Begun begun{.by_reduce = data.operations()};
  EXPECT_TRUE(part.Await().ok());
  begun.by_await = data.operations() - begun.by_reduce;
  return begun;
}

// One that waited for its Await() would run behind what it could run beside. A bucket is one
// operation, and by messages another one where it has mirrors.
TEST(PartReductionTest, Reduce_OfSeveralWidths_BeginsEveryBucketAtOnce_AsThatOfOneDoes) {
  for (const int copies : {1, 2}) {
    support::AJob job;
    job.Module("language", support::Llama(), {.tp = 2, .dp = 2}).Batch(4, 1);
    job.spec().recovery.state_copies = copies;
    const auto healthy = plan::MakePlan(job, plan::MakeCluster(1, 4), Epoch{1});
    ASSERT_TRUE(healthy.ok()) << healthy.status();
    const auto narrowed = plan::PlanWithout(*healthy, {Rank{3}});
    ASSERT_TRUE(narrowed.ok()) << narrowed.status();
    for (const bool even : {true, false}) {
      SCOPED_TRACE(absl::StrCat(even ? "one width" : "several widths", ", homes: ", copies));
      const plan::Plan& plan = even ? *healthy : *narrowed;
      const int each = even ? 1 : copies;
      EXPECT_EQ(BegunBy(plan, 1, even).by_reduce, each);
      const Begun three = BegunBy(plan, 3, even);
      EXPECT_EQ(three.by_reduce, 3 * each);
      EXPECT_EQ(three.by_await, 0);
    }
  }
}

// What a part of so many replicas and buckets, each with two homes, calls in a step.
std::vector<std::string> CallsOf(int32_t replicas, size_t buckets, PartReduction::Order order) {
  support::AJob job;
  job.Module("language", support::Llama(), {.dp = replicas}).Batch(2 * replicas, 1);
  job.spec().recovery.state_copies = 2;
  const auto plan = plan::MakePlan(job, plan::MakeCluster(1, replicas), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  const plan::Place place = plan->PlacesOf(Rank{0})[0];
  PartState state(*plan, place, 0, BufferOptions{});
  plan::Reduction reduction = plan::ReductionOf(*plan, place, 0, state.parameters());
  reduction.buckets.resize(buckets, reduction.buckets.front());
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  PartReduction part(std::move(reduction), state, {.data = &data}, means, order);
  EXPECT_TRUE(part.Reduce().ok());
  EXPECT_TRUE(part.Gather().ok());
  EXPECT_TRUE(part.Await().ok());
  return data.calls;
}

// On a device each call is a kernel that waits for processors and for its peers.
TEST(PartReductionTest, BucketsThatAreThereTogether_AreSummedMirroredAndGatheredTogether) {
  EXPECT_THAT(CallsOf(3, 10, PartReduction::Order::kForward),
              ElementsAre("sums 8", "mirrors 8", "sums 2", "mirrors 2", "gathers 8", "gathers 2"));
}

// A kernel for both ways, which keeps what it sums, costs less than one for each.
TEST(PartReductionTest, WhereEveryReplicaIsHome_OneCollectiveBringsAllSums) {
  EXPECT_THAT(CallsOf(2, 10, PartReduction::Order::kForward),
              ElementsAre("sums for all 8", "sums for all 2", "gathers 8", "gathers 2"));
}

// As ranks of the release before do, which would wait for ever for others.
TEST(PartReductionTest, BucketsOfTheStoredOrder_AreEachByThemselves) {
  EXPECT_THAT(CallsOf(3, 2, PartReduction::Order::kStored),
              ElementsAre("sums 1", "mirrors 1", "sums 1", "mirrors 1", "gathers 1", "gathers 1"));
}

// Of four layers with more elements than a bucket takes. Two replicas of it are homes of all; of
// three each is a home of two shares.
plan::Plan WideLayers(const support::Layout& layout) {
  const job::JobSpec spec =
      support::AJob()
          .Module("language", support::Llama({.hidden_size = 16, .heads = 4, .mlp_size = 250'000}),
                  layout)
          .Batch(12, 1);
  return *plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
}

class ReduceBehindTest : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Replicas, ReduceBehindTest, testing::Values(2, 3));

TEST_P(ReduceBehindTest, BeginsWithTheBucketsThatAreComplete) {
  const plan::Plan plan = WideLayers({.dp = GetParam()});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  plan::Reduction reduction = plan::ReductionOf(plan, place, 0, state.parameters());
  ASSERT_EQ(reduction.buckets.size(), 2u);
  ASSERT_EQ(reduction.for_all, GetParam() == 2);
  // The second one has the embedding.
  const plan::UnitRange first = reduction.buckets[0].elements;
  int32_t lowest = 4;
  for (const plan::LocalMatrix& matrix : state.parameters().matrices) {
    if (matrix.layer >= 0 && matrix.offset < first.first + first.count)
      lowest = std::min(lowest, matrix.layer);
  }
  ASSERT_GT(lowest, 0);
  const int32_t needed = 4 - lowest;
  const int each = reduction.for_all ? 1 : 2;  // operations of a bucket
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  PartReduction part(std::move(reduction), state, {.data = &data}, means);
  for (int step = 0; step < 2; ++step) {
    const int before = data.operations();
    for (int32_t layers = 1; layers <= 3; ++layers) {
      ASSERT_TRUE(part.ReduceBehind(layers).ok());
      EXPECT_EQ(data.operations() - before, layers < needed ? 0 : each) << layers;
    }
    ASSERT_TRUE(part.Reduce().ok());
    EXPECT_EQ(data.operations() - before, 2 * each) << "each bucket once";
    ASSERT_TRUE(part.Await().ok());
  }
}

// A rank whose last pass has no samples sums in Reduce() alone. Under NCCL its peers would wait for
// ever for calls of other pieces.
TEST_P(ReduceBehindTest, RanksThatBeginSumsInTheirPassAndBehindIt_CallTheSame) {
  const plan::Plan plan = WideLayers({.dp = GetParam()});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  const auto calls_of = [&](const std::vector<int32_t>& behind) {
    NotedCommunicator data;
    ReductionMeans means(at::kCPU);
    PartReduction part(plan::ReductionOf(plan, place, 0, state.parameters()), state,
                       {.data = &data}, means);
    for (const int32_t layers : behind) EXPECT_TRUE(part.ReduceBehind(layers).ok());
    EXPECT_EQ(part.begun(), behind.empty() ? 0u : 1u);
    EXPECT_TRUE(part.Reduce().ok());
    return data.calls;
  };
  const std::vector<std::string> by_layer = calls_of({1, 2, 3});
  if (GetParam() == 2) {
    EXPECT_THAT(by_layer, ElementsAre("sums for all 1", "sums for all 1"));
  } else {
    EXPECT_THAT(by_layer, ElementsAre("sums 1", "mirrors 1", "sums 1", "mirrors 1"));
  }
  EXPECT_EQ(calls_of({}), by_layer);
}

// A projector that no rows came through, or a prediction without targets, is behind layers that
// have a backward pass, and has what the step before has left.
TEST(PartReductionTest, ReduceBehind_OfGradientsThatNothingWrote_SumsZeros) {
  const plan::Plan plan = WideLayers({.dp = 2});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  const plan::Reduction reduction = plan::ReductionOf(plan, place, 0, state.parameters());
  ASSERT_EQ(reduction.buckets.size(), 2u);
  const auto largest_of = [&](size_t bucket) {
    const plan::UnitRange& elements = reduction.buckets[bucket].elements;
    return state.gradients().narrow(0, elements.first, elements.count).max().item<float>();
  };
  state.gradients().fill_(7);
  BeginGradients(state);
  NotedCommunicator data;
  std::vector<float> summed;
  data.on_sum = [&] { summed.push_back(largest_of(summed.size())); };
  ReductionMeans means(at::kCPU);
  PartReduction part(reduction, state, {.data = &data}, means);
  EXPECT_TRUE(part.ReduceBehind(3).ok());
  EXPECT_THAT(summed, ElementsAre(0));
  EXPECT_EQ(largest_of(1), 7) << "it may still be written";
  EXPECT_TRUE(part.Reduce().ok());
  EXPECT_THAT(summed, ElementsAre(0, 0));
  model::ForgetUnwritten();
}

// The second of its two buckets has the embedding and the first layers.
TEST(PartReductionTest, AwaitFor_WaitsForTheBucketsOfALayer_OnceEach) {
  const plan::Plan plan = WideLayers({.dp = 2});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  plan::Reduction reduction = plan::ReductionOf(plan, place, 0, state.parameters());
  ASSERT_EQ(reduction.buckets.size(), 2u);
  const plan::UnitRange first = reduction.buckets[0].elements;
  int32_t lowest = 4;
  for (const plan::LocalMatrix& matrix : state.parameters().matrices) {
    if (matrix.layer >= 0 && matrix.offset < first.first + first.count)
      lowest = std::min(lowest, matrix.layer);
  }
  ASSERT_GT(lowest, 0);
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  PartReduction part(std::move(reduction), state, {.data = &data}, means);
  for (int step = 0; step < 2; ++step) {
    const int before = data.operations();
    data.waited.clear();
    ASSERT_TRUE(part.Gather().ok());
    for (int32_t layer = 0; layer < 4; ++layer) {
      EXPECT_EQ(part.AwaitsFor(layer), layer == 0 || layer == lowest) << layer;
      ASSERT_TRUE(part.AwaitFor(layer).ok());
      if (layer < lowest) {
        EXPECT_THAT(data.waited, ElementsAre(before + 1)) << layer;
      }
    }
    EXPECT_THAT(data.waited, ElementsAre(before + 1, before + 2));
    EXPECT_FALSE(part.pending());
  }
}

TEST(PartReductionTest, TakeUpdates_IsWaitedForByLayer_AndAsksNobodyForWeights) {
  for (const auto& [layout, without] : std::vector<std::pair<support::Layout, plan::RankList>>{
           {{.dp = 2}, {}}, {{.tp = 2, .dp = 2}, {Rank{3}}}}) {
    SCOPED_TRACE(without.empty() ? "one width" : "several widths");
    const plan::Plan healthy = WideLayers(layout);
    const plan::Plan plan = without.empty() ? healthy : *plan::PlanWithout(healthy, without);
    const plan::Place place = plan.PlacesOf(Rank{0})[0];
    PartState state(plan, place, 0, BufferOptions{});
    NotedCommunicator tensor, data;
    ReductionMeans means(at::kCPU);
    PartReduction part(plan::ReductionOf(plan, place, 0, state.parameters()), state,
                       {.tensor = &tensor, .data = &data}, means);
    ASSERT_TRUE(part.Gather().ok());
    ASSERT_TRUE(part.Await().ok());
    const int before = data.operations();
    ASSERT_GT(before, 0);
    part.TakeUpdates();
    EXPECT_TRUE(part.pending());
    EXPECT_TRUE(part.AwaitsFor(0));
    for (int32_t layer = 0; layer < 4; ++layer) ASSERT_TRUE(part.AwaitFor(layer).ok());
    EXPECT_FALSE(part.pending());
    EXPECT_EQ(data.operations(), before);
  }
}

// Gathers of a part whose data communicator notes them: the last bucket is the first one.
void ExpectEachLayerHasItsWeights(const plan::Plan& plan, Rank rank) {
  const plan::Place place = plan.PlacesOf(rank)[0];
  PartState state(plan, place, 0, BufferOptions{});
  const plan::StageParameters& parameters = state.parameters();
  plan::Reduction reduction = plan::ReductionOf(plan, place, 0, parameters);
  ASSERT_TRUE(reduction.copies.empty());
  const auto buckets = static_cast<int>(reduction.buckets.size());
  ASSERT_GT(buckets, 0);
  const plan::LayerRange layers =
      plan.modules[static_cast<size_t>(place.module)].layers(place.pp, 0);
  ASSERT_GT(layers.count, 1);
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  PartReduction part(std::move(reduction), state, {.data = &data}, means);
  ASSERT_TRUE(part.Gather().ok());
  ASSERT_EQ(data.operations(), buckets);
  for (int32_t layer = 0; layer < layers.count; ++layer) {
    if (part.AwaitsFor(layer)) {
      ASSERT_TRUE(part.AwaitFor(layer).ok());
    }
    EXPECT_FALSE(part.AwaitsFor(layer));
    const int there = data.waited.empty() ? 0 : data.waited.back();
    for (int b = 0; b < buckets; ++b) {
      const plan::Bucket& bucket = parameters.buckets[static_cast<size_t>(b)];
      for (int32_t m = bucket.first_matrix; m < bucket.first_matrix + bucket.matrices; ++m) {
        const plan::LocalMatrix& matrix = parameters.matrices[static_cast<size_t>(m)];
        const bool is_first = matrix.role == plan::MatrixRole::kEmbedding;
        const int32_t needed = matrix.layer >= 0 ? matrix.layer - layers.first
                               : is_first        ? 0
                                                 : layers.count - 1;
        if (needed <= layer) {
          EXPECT_GE(there, buckets - b)
              << plan::RoleName(matrix.role) << " " << matrix.layer << " before layer " << layer;
        }
      }
    }
  }
  EXPECT_FALSE(part.pending());
}

TEST(PartReductionTest, AwaitFor_OfAnyPartOfAModule_WaitsForWhatTheLayerReads) {
  ExpectEachLayerHasItsWeights(WideLayers({.dp = 2}), Rank{0});
  const plan::Plan stages = WideLayers({.dp = 2, .pp = 2});
  ExpectEachLayerHasItsWeights(stages, stages.RankOf({.dp = 1, .pp = 0}));
  ExpectEachLayerHasItsWeights(stages, stages.RankOf({.dp = 1, .pp = 1}));
  // Of a frozen encoder the projector is gathered, which is behind the layers.
  const job::JobSpec spec =
      support::AJob()
          .Module("vision", support::ClipVision({.layers = 3}), {.dp = 2, .frozen = true})
          .Module("language", support::Llama(), {.dp = 2})
          .Edge("vision", "language", {.projector = 64})
          .Batch(4, 1);
  const auto frozen = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  ASSERT_TRUE(frozen.ok()) << frozen.status();
  ExpectEachLayerHasItsWeights(*frozen, Rank{0});
}

// A rank without samples begins no layer but the first; its record waits for all.
TEST(PartReductionTest, Await_BehindTheFirstLayerAlone_WaitsForTheRest) {
  const plan::Plan plan = WideLayers({.dp = 2});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  PartReduction part(plan::ReductionOf(plan, place, 0, state.parameters()), state, {.data = &data},
                     means);
  ASSERT_TRUE(part.Gather().ok());
  const int gathered = data.operations();
  ASSERT_TRUE(part.AwaitFor(0).ok());
  EXPECT_TRUE(part.pending());
  ASSERT_TRUE(part.Reduce().ok());
  const int reduced = data.operations();
  data.waited.clear();
  ASSERT_TRUE(part.Await().ok());
  EXPECT_THAT(data.waited, ElementsAre(gathered, reduced));
  EXPECT_FALSE(part.pending());
}

// As ranks of the release before do, beside which it may gather.
TEST(PartReductionTest, GatherInTheStoredOrder_IsWaitedForAsAWhole) {
  const plan::Plan plan = WideLayers({.dp = 2});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  NotedCommunicator data;
  ReductionMeans means(at::kCPU);
  PartReduction part(plan::ReductionOf(plan, place, 0, state.parameters()), state, {.data = &data},
                     means, PartReduction::Order::kStored);
  ASSERT_TRUE(part.Gather().ok());
  const auto* base = static_cast<const char*>(state.weights().const_data_ptr());
  const plan::Reduction reduction = plan::ReductionOf(plan, place, 0, state.parameters());
  ASSERT_EQ(data.gathered.size(), reduction.buckets.size());
  for (size_t b = 0; b < data.gathered.size(); ++b)
    EXPECT_EQ(data.gathered[b], base + reduction.buckets[b].elements.first * 4);
  ASSERT_TRUE(part.AwaitFor(0).ok());
  EXPECT_THAT(data.waited, ElementsAre(data.operations()));
  EXPECT_FALSE(part.pending());
}

// Copies are spread over all of the part.
TEST(PartReductionTest, AwaitFor_WhereCopiesAreSpread_WaitsForAllBeforeTheFirstLayer) {
  const plan::Plan plan = WideLayers({.tp = 2, .dp = 2});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  NotedCommunicator tensor, data;
  ReductionMeans means(at::kCPU);
  PartReduction part(plan::ReductionOf(plan, place, 0, state.parameters()), state,
                     {.tensor = &tensor, .data = &data}, means);
  ASSERT_TRUE(part.Gather().ok());
  const int gathered = data.operations();
  EXPECT_EQ(tensor.operations(), 0);
  ASSERT_TRUE(part.AwaitFor(0).ok());
  EXPECT_THAT(data.waited, ElementsAre(gathered));
  EXPECT_GT(tensor.operations(), 0);
  EXPECT_FALSE(part.AwaitsFor(3));
}

TEST(PartReductionTest, ReduceBehind_WhereCopiesAreFoldedFirst_BeginsNothing) {
  const plan::Plan plan = WideLayers({.tp = 2, .dp = 2});
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  PartState state(plan, place, 0, BufferOptions{});
  NotedCommunicator tensor, data;
  ReductionMeans means(at::kCPU);
  PartReduction part(plan::ReductionOf(plan, place, 0, state.parameters()), state,
                     {.tensor = &tensor, .data = &data}, means);
  ASSERT_TRUE(part.ReduceBehind(3).ok());
  EXPECT_EQ(data.operations(), 0);
}

}  // namespace
}  // namespace phalanx::train
