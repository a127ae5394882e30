// worker/train/relayout.h: a rank's state comes to lie in another layout.
//
// Bucket by bucket: ranks give each other what they lack, a rank makes the blocks of the new layout
// of what it has and what has come, and lets go of what they replace once those who were given some
// of it have it. A block that the new layout has too stays as it is. So beside the state itself
// there is memory for one bucket's new blocks and messages, at most; of what does not train, for
// one part's weights. Mirrors get what their rank has itself; what they lack comes later
// (mirror_fill.h).
//
// Whatever ends it early, everything that the rank had is still there, in blocks of the old layout
// or of the new one: LooseState says which. Another relayout, also into another layout, goes on
// from there.
//
// Not thread-safe. With nothing enqueued.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "worker/train/loose_state.h"
#include "worker/train/part_state.h"
#include "worker/train/transfers.h"
#include "worker/train/verified_exchange.h"

namespace phalanx::train {

class Relayout {
 public:
  // Everything given by reference outlives it.
  Relayout(const plan::Plan& after, Rank rank, const BufferOptions& options, LooseState& loose,
           const BulkGroup& group, std::function<bool()> stopped);

  // Every rank that holds state or gets some calls it with the same list. Errors: those of
  // VerifiedExchange; Cancelled when stopped; Internal if the list does not bring all that the
  // layout needs here. Afterwards the group is of no more use, and the others must be told.
  absl::Status Run(const Transfers& transfers);
  // After Run, once: the parts of the new layout, with weights of what this rank is home of and of
  // what does not train. The loose state is empty then.
  std::vector<std::unique_ptr<PartState>> Take() { return std::move(parts_); }
  const Moved& moved() const { return moved_; }

 private:
  using BucketId = LooseState::BucketId;
  // A block of the new layout.
  struct Need {
    StateBlock* block = nullptr;  // of an outline
    std::vector<RulerRun> runs;
    std::optional<std::vector<RulerRun>> made;  // of a mirror that lacks the others
  };

  void OutlineParts();
  // Whether the new layout has all of the part as it is, flat buffers too.
  bool Stays(PartState& outline);

  absl::Status MoveWeights(const PartWeightTransfers& part);
  at::Tensor PackRows(const PartWeightTransfers& part, Rank to);
  absl::Status MakeFlat(const PartWeightTransfers& part, const FrozenRows& needed,
                        const std::vector<Parcel>& received);
  at::Tensor EmptyParcel(int64_t elements, at::ScalarType type) const;

  absl::Status MoveBucket(const BucketTransfers& bucket);
  absl::Status Exchange(const std::vector<Parcel>& sends, std::vector<Parcel>& receives);
  absl::Status Confirm(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives);
  absl::StatusOr<at::Tensor> PackState(const BucketTransfers& bucket, Rank to);
  // Adds the blocks that are not there yet, of what the rank has and what has come.
  absl::Status MakeBlocks(const BucketTransfers& bucket, const std::vector<Parcel>& received);
  absl::Status MakeBlock(const BucketId& id, Need& need, const BucketTransfers& bucket,
                         const std::vector<Parcel>& received, LooseBlock* made);
  LooseBlock* FindSame(const BucketId& id, const Need& need);
  // Of what no block of the new layout is.
  void LetGo(const BucketId& id);

  absl::Status Assemble();
  absl::Status CheckStop() const;
  std::string NameOf(const plan::PartId& part) const;

  const plan::Plan& after_;
  const Rank rank_;
  const BufferOptions options_;
  LooseState& loose_;
  VerifiedExchange exchange_;
  std::function<bool()> stopped_;
  // The parts of the new layout: without memory until all is there.
  std::vector<std::unique_ptr<PartState>> parts_;
  std::map<plan::PartId, PartState*> part_of_;
  std::set<plan::PartId> staying_;
  std::map<BucketId, std::vector<Need>> needs_;
  Moved moved_;
};

}  // namespace phalanx::train
