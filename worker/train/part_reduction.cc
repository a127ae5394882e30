#include "worker/train/part_reduction.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/core/StreamGuard.h"
#include "core/base/status.h"
#include "core/plan/bucket_order.h"
#include "worker/model/unwritten.h"
#include "worker/train/device_wait.h"
#include "worker/train/message_stream.h"

namespace phalanx::train {
namespace {

// How many buckets a collective takes: a few, since each kernel of it waits for processors that
// passes hold, but no more than keep links and updates busy beside each other.
size_t AtOnce(PartReduction::Order order) {
  return order == PartReduction::Order::kForward ? 8 : 1;
}

// Both modulo 2^64, so that any one element that differs shows. ATen sums integers narrower than
// eight bytes in a copy that has eight for each, which may not fit beside the state.
at::Tensor SumOfElements(const at::Tensor& flat) {
  return flat.view(BitsOf(flat)).sum(at::kLong).reshape({1});
}

at::Tensor SumOfWords(const at::Tensor& flat) {
  const int64_t in_words = flat.numel() - flat.numel() % (8 / flat.element_size());
  at::Tensor sum = flat.narrow(0, 0, in_words).view(at::kLong).sum().reshape({1});
  const at::Tensor rest = flat.narrow(0, in_words, flat.numel() - in_words);
  return rest.numel() == 0 ? sum : sum.add_(SumOfElements(rest));
}

}  // namespace

ReductionMeans::ReductionMeans(at::Device device) : stream(TakeStream(device)), scratch(device) {}

PartReduction::PartReduction(plan::Reduction reduction, PartState& state, const PartGroups& groups,
                             ReductionMeans& means, Order order, Sums sums)
    : reduction_(std::move(reduction)),
      state_(state),
      groups_(groups),
      means_(means),
      order_(order),
      sums_(sums),
      copies_(groups.tensor) {
  const int32_t self = state_.place().tp;
  for (const plan::Copy& copy : reduction_.copies) {
    // Ranks of the tensor communicator are tensor coordinates.
    if (copy.lead.tp == self) copies_.Add(copy, &state_, nullptr, copy.follower.tp);
    if (copy.follower.tp == self) copies_.Add(copy, nullptr, &state_, copy.lead.tp);
  }
  if (reduction_.buckets.empty() || groups.data == nullptr) return;
  if (reduction_.copies.empty()) {
    const plan::BucketOrder order = plan::BucketOrderOf(state_.parameters());
    complete_behind_ = order.complete_behind;
    if (order_ == Order::kForward) needed_before_ = order.needed_before;
  }
  complete_behind_.resize(reduction_.buckets.size(), plan::kBehindPass);
  needed_before_.resize(reduction_.buckets.size(), 0);
  if (!reduction_.buckets.front().even) {
    messages_.emplace(reduction_, state_, *groups.data, means.scratch);
    return;
  }
  if (reduction_.for_all) return;
  const at::Tensor& gradients = state_.gradients();
  for (const plan::ReducedBucket& bucket : reduction_.buckets)
    mirrors_.emplace_back(bucket, gradients.device(), gradients.scalar_type(), means.scratch);
}

absl::Status PartReduction::Begin(absl::Status (ShareExchange::*way)()) {
  const at::Device device = state_.weights().device();
  const Moment now = Moment::Now(device);
  const c10::OptionalStreamGuard guard(means_.stream.get());
  now.Await();
  RETURN_IF_ERROR((*messages_.*way)());
  begun_ = [done = Moment::Now(device)] {
    done.Await();
    return absl::OkStatus();
  };
  return absl::OkStatus();
}

absl::Status PartReduction::Reduce() {
  RETURN_IF_ERROR(copies_.Fold());
  if (groups_.data == nullptr) return absl::OkStatus();
  if (messages_.has_value()) return Begin(&ShareExchange::Reduce);
  RETURN_IF_ERROR(ReduceUntil(reduction_.buckets.size()));
  reduced_ = 0;
  ASSIGN_OR_RETURN(begun_, groups_.data->Mark());
  return absl::OkStatus();
}

absl::Status PartReduction::ReduceBehind(int32_t layers) {
  if (!SumsByCollectives()) return absl::OkStatus();
  size_t end = reduced_;
  while (end < complete_behind_.size() && complete_behind_[end] <= layers) ++end;
  return ReduceUntil(end);
}

absl::Status PartReduction::ReduceUntil(size_t end) {
  const at::Tensor& gradients = state_.gradients();
  const auto together = [this](size_t a, size_t b) {
    return complete_behind_[a] == complete_behind_[b];
  };
  while (reduced_ < end) {
    const size_t begin = reduced_;
    while (reduced_ < end && together(begin, reduced_) && reduced_ - begin < AtOnce(order_))
      ++reduced_;
    // What nothing came through in this step, as a projector or a prediction without targets.
    const int64_t first = reduction_.buckets[begin].elements.first;
    const int64_t last = reduction_.buckets[reduced_ - 1].elements.end();
    model::ClearUnwritten(gradients.narrow(0, first, last - first));
    RETURN_IF_ERROR(Sum(begin, reduced_));
  }
  return absl::OkStatus();
}

absl::Status PartReduction::Sum(size_t begin, size_t end) {
  const at::Tensor& gradients = state_.gradients();
  char* base = static_cast<char*>(gradients.mutable_data_ptr());
  const auto size = static_cast<int64_t>(gradients.element_size());
  const comm::DType type = CommDType(gradients.scalar_type());
  std::vector<comm::Piece> pieces;
  for (size_t b = begin; b < end; ++b) {
    const plan::ReducedBucket& bucket = reduction_.buckets[b];
    char* all = base + bucket.elements.first * size;
    const plan::UnitRange mine = bucket.own.front();
    pieces.push_back(
        reduction_.for_all
            ? comm::Piece{.in = all, .out = all, .count_per_rank = bucket.elements.count}
            : comm::Piece{
                  .in = all, .out = base + mine.first * size, .count_per_rank = mine.count});
  }
  if (reduction_.for_all) return groups_.data->AllReduceSums(pieces, type);
  RETURN_IF_ERROR(groups_.data->ReduceScatterSums(pieces, type));
  return Mirror(begin, end);
}

absl::Status PartReduction::Mirror(size_t begin, size_t end) {
  // Shares of replicas of one width are one run each: nothing is packed.
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  for (size_t b = begin; b < end; ++b) mirrors_[b].Add(state_.gradients(), sends, receives);
  if (sends.empty() && receives.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(groups_.data->Exchange(sends, receives));
  // On a device what is sent in place stays untouched until the step is decided.
  return state_.gradients().is_cpu() ? groups_.data->Flush() : absl::OkStatus();
}

absl::Status PartReduction::Gather() {
  spreads_ = true;
  gathered_.clear();
  if (!SumsByCollectives()) {
    for (size_t b = 0; b < reduction_.buckets.size(); ++b) state_.updated(b).Await();
    return messages_.has_value() ? Begin(&ShareExchange::Gather) : absl::OkStatus();
  }
  const Moment now = Moment::Now(state_.weights().device());
  const c10::OptionalStreamGuard guard(means_.stream.get());
  now.Await();
  char* base = static_cast<char*>(state_.weights().mutable_data_ptr());
  const int64_t size = static_cast<int64_t>(state_.weights().element_size());
  std::vector<comm::Piece> pieces;
  for (size_t i = 0; i < reduction_.buckets.size(); ++i) {
    const size_t b = BucketAt(i);
    const plan::ReducedBucket& bucket = reduction_.buckets[b];
    const plan::UnitRange mine = bucket.own.front();
    state_.updated(b).Await();
    pieces.push_back({.in = base + mine.first * size,
                      .out = base + bucket.elements.first * size,
                      .count_per_rank = mine.count});
    const bool last = IsLastOfLayer(i);
    if (!last && pieces.size() < AtOnce(order_)) continue;
    RETURN_IF_ERROR(groups_.data->AllGathers(pieces, CommDType(state_.weights().scalar_type())));
    pieces.clear();
    if (!last) continue;
    ASSIGN_OR_RETURN(comm::Communicator::Point there, groups_.data->Mark());
    gathered_.push_back({.before = needed_before_[b], .there = std::move(there)});
  }
  return absl::OkStatus();
}

void PartReduction::TakeUpdates() {
  spreads_ = true;
  gathered_.clear();
  for (size_t i = 0; i < reduction_.buckets.size(); ++i) {
    const size_t b = BucketAt(i);
    if (!SumsByCollectives()) {
      state_.updated(b).Await();
    } else if (IsLastOfLayer(i)) {  // behind those of the layer before it
      gathered_.push_back({.before = needed_before_[b], .there = [updated = state_.updated(b)] {
                             updated.Await();
                             return absl::OkStatus();
                           }});
    }
  }
}

bool PartReduction::AwaitsFor(int32_t layer) const {
  return gathered_.empty() ? pending() : gathered_.front().before <= layer;
}

absl::Status PartReduction::AwaitFor(int32_t layer) {
  if (gathered_.empty() || gathered_.back().before <= layer) return Await();
  comm::Communicator::Point there;  // the last of them: it is behind the others
  for (; gathered_.front().before <= layer; gathered_.pop_front())
    there = std::move(gathered_.front().there);
  return there == nullptr ? absl::OkStatus() : there();
}

absl::Status PartReduction::Await() {
  if (!gathered_.empty()) {
    const comm::Communicator::Point there = std::move(gathered_.back().there);
    gathered_.clear();
    RETURN_IF_ERROR(there());
  }
  if (begun_ != nullptr) RETURN_IF_ERROR(std::exchange(begun_, nullptr)());
  return std::exchange(spreads_, false) ? copies_.Spread() : absl::OkStatus();
}

absl::StatusOr<at::Tensor> PartReduction::BitSums() {
  if (messages_.has_value()) return messages_->BitSums();
  const at::Tensor& weights = state_.weights();
  const at::Tensor sum = sums_ == Sums::kOfWords ? SumOfWords(weights) : SumOfElements(weights);
  at::Tensor all = at::empty({groups_.data->size()}, sum.options());
  RETURN_IF_ERROR(groups_.data->AllGather(sum.const_data_ptr(), all.mutable_data_ptr(), 1,
                                          comm::DType::kInt64));
  RETURN_IF_ERROR(groups_.data->Join());
  return at::stack({all, sum.expand_as(all)});
}

at::Tensor PartReduction::MirrorsAstray() {
  at::Tensor& weights = state_.weights();
  at::Tensor astray = at::zeros({1}, at::TensorOptions().dtype(at::kBool).device(weights.device()));
  for (const StateBlock& block : state_.blocks()) {
    if (!block.mirrors || !block.lacking.empty()) continue;
    for (const StateRun& run : block.runs) {
      const at::Tensor master = block.master.narrow(0, run.state_offset, run.count);
      const at::Tensor weight = weights.narrow(0, run.gradient_offset, run.count);
      astray.logical_or_(master.to(weight.scalar_type()).ne(weight).any());
    }
  }
  return astray;
}

absl::Status PartReduction::VerifyCopies() {
  if (groups_.data == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const at::Tensor sums, BitSums());
  const at::Tensor astray = MirrorsAstray();
  const Moment there = Moment::Now(sums.device());
  RETURN_IF_ERROR(AwaitDevice({.done = [&] { return there.Passed(); },
                               .stopped = [] { return false; },  // a stop aborts the communicator
                               .check = [this] { return groups_.data->Check(); },
                               .excused = [] { return false; },
                               .patience = kPatience,
                               .missing = "the sums of the replicas' parameters are not there"}));
  const bool equal = sums[0].equal(sums[1]);
  if (equal && !astray.item<bool>()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(equal ? "mirrors of optimizer state differ from the parameters"
                         : "replicas hold different parameters",
                   " of pipeline part ", state_.place().pp, " chunk ", state_.chunk(),
                   " of module ", state_.place().module));
}

}  // namespace phalanx::train
