// worker/train/part_reduction.h: what keeps the copies of one pipeline part alike, for one epoch.
//
// Each replica reduces its shares (core/plan/reduction.h) and, after the optimizer, gives them to
// the others, where these do not update them themselves: by a collective a bucket where all are
// equally wide, else by messages.
//
// Not thread-safe. On CUDA only enqueues.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/reduction.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/train/copy_exchange.h"
#include "worker/train/part_state.h"
#include "worker/train/share_exchange.h"

namespace phalanx::train {

// The communicators that one part needs on one rank; nullptr: a group of one.
struct PartGroups {
  comm::Communicator* tensor = nullptr;
  comm::Communicator* data = nullptr;
};

// What the parts of a process have together to reduce by messages.
struct ReductionMeans {
  explicit ReductionMeans(at::Device device);
  // On which packing and summing run, so that no pass waits for a peer; none on CPU.
  const device::OwnedStream stream;
  ReductionScratch scratch;
};

class PartReduction {
 public:
  // Of sums and gathers, all ranks alike (core/plan/derivation.h). kForward: as passes come to
  // buckets, those of a layer together. kStored: by bucket, gathered as they are stored.
  enum class Order : uint8_t { kForward, kStored };

  // By which equally wide replicas compare their weights, all ranks alike (core/plan/derivation.h).
  // kOfElements takes eight bytes an element beside them.
  enum class Sums : uint8_t { kOfWords, kOfElements };

  // `state`, the communicators and `means` outlive it.
  PartReduction(plan::Reduction reduction, PartState& state, const PartGroups& groups,
                ReductionMeans& means, Order order = Order::kForward, Sums sums = Sums::kOfWords);

  // Folds the copies of the tensor group, then sums over the replicas: once Await() has returned,
  // this rank's shares hold the complete sum, and so do those that it mirrors.
  absl::Status Reduce();
  // Begins what Reduce() then goes on with: the sums of the first buckets that hold gradients of
  // the part's last `layers` layers and of what is behind them alone, which are complete; what is
  // still marked as unwritten of them (worker/model/unwritten.h) is cleared. Nothing
  // where copies of the tensor group are folded first, or replicas differ in width.
  absl::Status ReduceBehind(int32_t layers);
  // Every rank's weights from the shares, each bucket as soon as it is updated
  // (PartState::updated), in the order in which a forward pass uses them, or in that in which they
  // are stored, which it then waits for as a whole; then the copies of the tensor group from their
  // leaders: complete once Await() has returned.
  absl::Status Gather();
  // In place of Gather() where this rank has updated all weights that the part's replicas lead,
  // as all others have theirs: nothing is gathered, and what is waited for are the updates.
  void TakeUpdates();
  // Makes the current stream wait for what Reduce() or Gather() has begun, and for no other part's.
  absl::Status Await();
  // Buckets, from the first one on, whose sums have begun ahead of Reduce().
  size_t begun() const { return reduced_; }
  bool pending() const { return begun_ != nullptr || spreads_; }
  // The same of what a layer of the part, counted from the input, and what is before it need of
  // Gather(); behind the last layer nothing else is needed.
  absl::Status AwaitFor(int32_t layer);
  // Whether AwaitFor would make anybody wait.
  bool AwaitsFor(int32_t layer) const;
  // Whether replicas have the same weights, all of them, and mirrors the masters of these. On CUDA
  // waits for the device. Errors: Internal if they differ; those of AwaitDevice().
  absl::Status VerifyCopies();

 private:
  // In the order in which Gather() comes to them.
  size_t BucketAt(size_t i) const {
    return order_ == Order::kForward ? reduction_.buckets.size() - 1 - i : i;
  }
  // Whether what the next layer needs begins behind it.
  bool IsLastOfLayer(size_t i) const {
    return i + 1 == reduction_.buckets.size() ||
           needed_before_[BucketAt(i + 1)] != needed_before_[BucketAt(i)];
  }
  bool SumsByCollectives() const { return groups_.data != nullptr && !messages_.has_value(); }
  // The sums of all buckets before `end` that have not begun, and what mirrors get of them. Buckets
  // that are complete behind the same layer are together, whoever calls it and when: a rank whose
  // last pass has no samples comes here with all of them at once, and its peers layer by layer.
  absl::Status ReduceUntil(size_t end);
  // By collectives, of buckets that are complete.
  absl::Status Sum(size_t begin, size_t end);
  absl::Status Mirror(size_t begin, size_t end);
  // Runs one way of the shares' exchange behind the current stream, on the stream of its own.
  absl::Status Begin(absl::Status (ShareExchange::*way)());
  // The bit sums that are to be equal: of the replicas' weights and of this one's.
  absl::StatusOr<at::Tensor> BitSums();
  // Of the weights that this rank mirrors, whether any is not what its masters say: bool [1].
  at::Tensor MirrorsAstray();

  const plan::Reduction reduction_;
  PartState& state_;
  const PartGroups groups_;
  ReductionMeans& means_;
  const Order order_;
  const Sums sums_;
  CopyExchange copies_;                  // of the tensor group
  std::vector<MirrorExchange> mirrors_;  // of each bucket, where a collective sums for homes alone
  std::optional<ShareExchange> messages_;  // where replicas differ in width
  // Of each bucket (core/plan/bucket_order.h), the same on all ranks of the data group, whichever
  // of them begin sums before Reduce(). Where copies of the tensor group are folded first, all are
  // complete behind the whole pass, and needed before the first layer.
  std::vector<int32_t> complete_behind_, needed_before_;
  size_t reduced_ = 0;               // buckets whose sums have begun
  comm::Communicator::Point begun_;  // behind what is to be waited for; else empty
  struct Gathered {
    int32_t before = 0;  // a layer
    comm::Communicator::Point there;
  };
  std::deque<Gathered> gathered_;  // by layer, ascending
  bool spreads_ = false;
};

}  // namespace phalanx::train
