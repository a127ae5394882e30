#include "worker/train/share_exchange.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/status.h"

namespace phalanx::train {
namespace {

std::vector<plan::UnitRange> Concatenated(const std::vector<plan::SharePeer>& peers,
                                          std::vector<plan::UnitRange> plan::SharePeer::*runs) {
  std::vector<plan::UnitRange> all;
  for (const plan::SharePeer& peer : peers)
    all.insert(all.end(), (peer.*runs).begin(), (peer.*runs).end());
  return all;
}

}  // namespace

at::ScalarType BitsOf(const at::Tensor& tensor) {
  if (tensor.element_size() == 8) return at::kLong;
  return tensor.element_size() == 4 ? at::kInt : at::kShort;
}

ShareExchange::ShareExchange(const plan::Reduction& reduction, PartState& state,
                             comm::Communicator& data, ReductionScratch& scratch)
    : state_(state), data_(data), scratch_(scratch) {
  const at::Device device = state.gradients().device();
  std::set<int32_t> peers;
  int64_t given_most = 0, taken_most = 0;
  for (const plan::ReducedBucket& bucket : reduction.buckets) {
    std::vector<Message> messages;
    int64_t given = 0, taken = 0;
    for (const plan::SharePeer& peer : bucket.peers) {
      messages.push_back({peer.peer, {given, peer.given}, {taken, peer.taken}});
      given += peer.given;
      taken += peer.taken;
      peers.insert(peer.peer);
    }
    buckets_.push_back(
        {.give = PackedRuns(Concatenated(bucket.peers, &plan::SharePeer::give), device),
         .take = PackedRuns(Concatenated(bucket.peers, &plan::SharePeer::take), device),
         .sums = SummedRuns(bucket.sums, reduction.replicas, device),
         .messages = std::move(messages),
         .mirrors = MirrorExchange(bucket, device, state.gradients().scalar_type(), scratch)});
    given_most = std::max(given_most, given);
    taken_most = std::max(taken_most, taken);
  }
  peers_.assign(peers.begin(), peers.end());
  const auto widest = static_cast<int64_t>(state.gradients().element_size());
  scratch.Reserve(given_most * widest, taken_most * widest);
}

absl::Status ShareExchange::Exchange(const Bucket& bucket, const at::Tensor& packed,
                                     plan::UnitRange Message::*sent, const at::Tensor& arriving,
                                     plan::UnitRange Message::*received) {
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  const auto size = static_cast<int64_t>(packed.element_size());
  const char* from = static_cast<const char*>(packed.const_data_ptr());
  char* to = static_cast<char*>(arriving.mutable_data_ptr());
  for (const Message& message : bucket.messages) {
    const plan::UnitRange out = message.*sent, in = message.*received;
    if (out.count > 0) sends.push_back({message.peer, from + out.first * size, out.count * size});
    if (in.count > 0) receives.push_back({message.peer, to + in.first * size, in.count * size});
  }
  if (sends.empty() && receives.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(data_.Exchange(sends, receives));
  // The next bucket is packed into the same memory.
  return data_.Flush();
}

absl::Status ShareExchange::Reduce() {
  at::Tensor& gradients = state_.gradients();
  for (const Bucket& bucket : buckets_) {
    const at::Tensor given = scratch_.Given(bucket.give.elements(), gradients.scalar_type());
    const at::Tensor taken = scratch_.Taken(bucket.take.elements(), gradients.scalar_type());
    bucket.give.Pack(gradients, given);
    RETURN_IF_ERROR(Exchange(bucket, given, &Message::given, taken, &Message::taken));
    bucket.sums.Sum(taken, gradients);
    RETURN_IF_ERROR(bucket.mirrors.Run(gradients, data_));
  }
  return data_.Join();  // what mirrors receive in place, nobody has waited for
}

absl::Status ShareExchange::Gather() {
  at::Tensor& weights = state_.weights();
  for (const Bucket& bucket : buckets_) {
    const at::Tensor given = scratch_.Given(bucket.give.elements(), weights.scalar_type());
    const at::Tensor taken = scratch_.Taken(bucket.take.elements(), weights.scalar_type());
    bucket.take.Pack(weights, taken);
    RETURN_IF_ERROR(Exchange(bucket, taken, &Message::taken, given, &Message::given));
    bucket.give.Unpack(given, weights);
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> ShareExchange::BitSums() {
  const at::Tensor& weights = state_.weights();
  const auto count = static_cast<int64_t>(peers_.size());
  const auto options = at::TensorOptions().dtype(at::kLong).device(weights.device());
  // Rows: what peers say of what they gave, this rank of what it took, this rank of what it gave.
  at::Tensor sums = at::zeros({3, count}, options);
  const auto add = [&](const at::Tensor& packed, plan::UnitRange range, int64_t row, int64_t peer) {
    if (range.count == 0) return;
    const at::Tensor part = packed.narrow(0, range.first, range.count);
    sums[row][peer].add_(part.view(BitsOf(part)).sum(at::kLong));
  };
  for (const Bucket& bucket : buckets_) {
    const at::Tensor given = scratch_.Given(bucket.give.elements(), weights.scalar_type());
    const at::Tensor taken = scratch_.Taken(bucket.take.elements(), weights.scalar_type());
    bucket.give.Pack(weights, given);
    bucket.take.Pack(weights, taken);
    for (const Message& message : bucket.messages) {
      const int64_t peer =
          std::lower_bound(peers_.begin(), peers_.end(), message.peer) - peers_.begin();
      add(given, message.given, 2, peer);
      add(taken, message.taken, 1, peer);
    }
  }
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t peer = peers_[static_cast<size_t>(i)];
    sends.push_back({peer, sums[2][i].const_data_ptr(), sizeof(int64_t)});
    receives.push_back({peer, sums[0][i].mutable_data_ptr(), sizeof(int64_t)});
  }
  if (count > 0) {
    RETURN_IF_ERROR(data_.Exchange(sends, receives));
    RETURN_IF_ERROR(data_.Flush());
  }
  return sums.narrow(0, 0, 2);
}

}  // namespace phalanx::train
