// worker/comm/peer_communicator.h: a Communicator made of tagged messages.
//
// Collectives are direct: every member sends to every other one. Sums are taken in rank order on
// one member per element, or on each member over the same bits in the same order, so all members
// hold the same bits whatever the transport, and a run in threads equals one in processes.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "worker/comm/communicator.h"
#include "worker/comm/dtype.h"
#include "worker/comm/transport.h"

namespace phalanx::comm {

class PeerCommunicator final : public Communicator {
 public:
  // `index` of the communicator among those of the plan, below 2^15, the same on every member.
  PeerCommunicator(std::shared_ptr<Transport> transport, int32_t index,
                   const plan::CommunicatorSpec& spec, Rank self);
  ~PeerCommunicator() override;

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return static_cast<int32_t>(members_.size()); }
  absl::Status AllReduceSum(void* data, int64_t count, DType dtype) override;
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count_per_rank,
                                DType dtype) override;
  absl::Status AllGather(const void* in, void* out, int64_t count_per_rank, DType dtype) override;
  absl::Status Exchange(absl::Span<const Outgoing> sends,
                        absl::Span<const Incoming> receives) override;
  absl::Status Join() override { return absl::OkStatus(); }
  absl::Status Flush() override;
  absl::Status Check() override;
  void Observe(Observer* observer) override { observer_ = observer; }
  void Abort(absl::Status reason) override;

 private:
  struct Block {  // elements [first, first + count)
    int64_t first = 0, count = 0;
  };
  struct Staging {
    std::vector<char> bytes;
    PendingSends pending;
  };
  // An even split of `count` elements over the members.
  std::vector<Block> SplitEvenly(int64_t count) const;
  absl::Status AllReduceDirect(void* data, int64_t count, DType dtype);
  absl::Status AllReduceTwoPhases(void* data, int64_t count, DType dtype);
  // Sends block i of `data` to member i and leaves the sum of what all contribute to this member's
  // own block in sum_. The sends may still be under way.
  absl::Status SumOwnBlock(const void* data, absl::Span<const Block> blocks, DType dtype);
  // Sends this member's block of `data` to all, and receives theirs in place.
  absl::Status GatherBlocks(void* data, absl::Span<const Block> blocks, int64_t width);
  // Where sends of a collective are kept, and from where: small messages leave from a copy, so that
  // the call need not wait for slower members to take them.
  Staging* Stage(const void* data, int64_t bytes);
  // Fails an impossible call before it is posted.
  absl::Status CheckSum(int64_t count, DType dtype) const;
  absl::Status Named(const absl::Status& status) const;
  uint64_t NextCollectiveTag();

  const std::shared_ptr<Transport> transport_;
  const int32_t index_;
  const std::string name_;
  std::vector<int32_t> members_;  // world ranks by position
  int32_t rank_ = 0;
  // Owned by the issuing thread.
  Observer* observer_ = nullptr;
  uint64_t collectives_ = 0;
  std::vector<uint64_t> sent_, received_;  // messages by position of the peer
  PendingSends pending_messages_, pending_collective_;
  std::array<Staging, 2> staging_;
  size_t staging_next_ = 0;
  Accumulator sum_;
  std::vector<Outbound> outbound_;
  std::vector<Inbound> inbound_;
};

// Entry i for specs[i], nullptr where `self` is no member.
Communicators MakeCommunicators(std::shared_ptr<Transport> transport,
                                absl::Span<const plan::CommunicatorSpec> specs, Rank self);

}  // namespace phalanx::comm
