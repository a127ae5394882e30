#include "worker/train/mirror_fill.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/train/copy_list.h"
#include "worker/train/loose_state.h"
#include "worker/train/parcels.h"

namespace phalanx::train {
namespace {

int64_t ElementsOf(const BucketTransfers& bucket, Rank from, Rank to) {
  int64_t elements = 0;
  for (const StateTransfer& transfer : bucket.transfers) {
    if (transfer.from == from && transfer.to == to) elements += transfer.elements.count;
  }
  return elements;
}

// Calls visit(elements, offset in the block) for what a block with those runs has of a transfer.
template <typename Visit>
void ForElements(const std::vector<RulerRun>& runs, const StateTransfer& transfer, Visit visit) {
  for (const RulerRun& run : runs) {
    const int64_t first = std::max(run.elements.first, transfer.elements.first);
    const int64_t count = std::min(run.elements.end(), transfer.elements.end()) - first;
    if (run.family != transfer.family || count <= 0) continue;
    visit(plan::UnitRange{first, count}, run.state_offset + first - run.elements.first);
  }
}

}  // namespace

MirrorFill::MirrorFill(const plan::Plan& plan, Rank rank, TrainingState& state,
                       std::vector<BucketTransfers> transfers, BulkGroup group,
                       std::function<bool()> stopped)
    : plan_(plan),
      rank_(rank),
      state_(state),
      transfers_(std::move(transfers)),
      group_(std::move(group)),
      exchange_(group_, state.options().device, std::move(stopped)) {}

int64_t MirrorFill::elements() const {
  int64_t elements = 0;
  for (const BucketTransfers& bucket : transfers_) {
    for (const StateTransfer& transfer : bucket.transfers) elements += transfer.elements.count;
  }
  return elements;
}

absl::Status MirrorFill::Run(size_t buckets) {
  state_.AwaitMirrors();
  for (; buckets > 0 && !done(); --buckets, ++next_) RETURN_IF_ERROR(Fill(transfers_[next_]));
  return absl::OkStatus();
}

PartState* MirrorFill::PartOf(const plan::PartId& id) {
  for (const auto& part : state_.parts()) {
    if (plan::PartId{part->place().module, part->place().pp, part->chunk()} == id)
      return part.get();
  }
  return nullptr;
}

const std::vector<plan::BucketRulers>& MirrorFill::RulersOf(PartState& part) {
  const plan::PartId id{part.place().module, part.place().pp, part.chunk()};
  const auto [entry, first] = rulers_.try_emplace(id);
  if (first) entry->second = plan::RulersOf(plan_, part.place(), part.parameters());
  return entry->second;
}

at::Tensor MirrorFill::Pack(const BucketTransfers& bucket, Rank to) {
  const at::ScalarType type = GradientType(state_.options().compute);
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  at::Tensor bytes =
      at::empty({kStateArrays * size * ElementsOf(bucket, rank_, to) + kHashBytes},
                at::TensorOptions().device(state_.options().device).dtype(at::kByte));
  PartState& part = *PartOf(bucket.part);
  const plan::BucketRulers& rulers = RulersOf(part)[static_cast<size_t>(bucket.bucket)];
  CopyList copies;
  for (const StateBlock& block : part.blocks()) {
    if (block.mirrors || block.bucket != bucket.bucket) continue;
    const std::vector<RulerRun> runs = RulerRunsOf(rulers, block);
    int64_t at = 0;
    for (const StateTransfer& transfer : bucket.transfers) {
      if (transfer.from != rank_ || transfer.to != to) continue;
      const plan::UnitRange& all = transfer.elements;
      ForElements(runs, transfer, [&](const plan::UnitRange& elements, int64_t offset) {
        const auto arrays = ArraysOf(block, part.weights(), offset, elements.count);
        for (size_t i = 0; i < arrays.size(); ++i) {
          const int64_t begin = static_cast<int64_t>(i) * all.count + elements.first - all.first;
          copies.Add(bytes, at + begin * size, arrays[i]);
        }
      });
      at += kStateArrays * all.count * size;
    }
  }
  copies.Run();
  return bytes;
}

absl::Status MirrorFill::Unpack(const BucketTransfers& bucket,
                                const std::vector<Parcel>& received) {
  const at::ScalarType type = GradientType(state_.options().compute);
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  PartState& part = *PartOf(bucket.part);
  const plan::BucketRulers& rulers = RulersOf(part)[static_cast<size_t>(bucket.bucket)];
  CopyList copies;
  for (StateBlock& block : part.blocks()) {
    if (!block.mirrors || block.bucket != bucket.bucket || block.lacking.empty()) continue;
    const std::vector<RulerRun> runs = RulerRunsOf(rulers, block);
    const LooseState::Arrays arrays = {block.master, block.first_moment, block.second_moment};
    std::vector<plan::UnitRange> come;
    for (const Parcel& parcel : received) {
      int64_t at = 0;
      for (const StateTransfer& transfer : bucket.transfers) {
        if (transfer.to != rank_ || transfer.from != parcel.peer) continue;
        const plan::UnitRange& all = transfer.elements;
        ForElements(runs, transfer, [&](const plan::UnitRange& elements, int64_t offset) {
          for (size_t i = 0; i < arrays.size(); ++i) {
            const int64_t begin = static_cast<int64_t>(i) * all.count + elements.first - all.first;
            copies.Add(arrays[i], offset,
                       ValuesAt(parcel.bytes, at + begin * size, elements.count, type));
          }
          come.push_back({offset, elements.count});
        });
        at += kStateArrays * all.count * size;
      }
    }
    SortAndJoin(&come);
    const auto has_come = [&come](const plan::UnitRange& lacks) {
      return std::any_of(come.begin(), come.end(), [&lacks](const plan::UnitRange& range) {
        return range.first <= lacks.first && lacks.end() <= range.end();
      });
    };
    if (!std::all_of(block.lacking.begin(), block.lacking.end(), has_come)) {
      return absl::InternalError(
          absl::StrCat("rank ", rank_.value, " is not given what it lacks of the state of module ",
                       plan_.module_spec(bucket.part.module).name, ", bucket ", bucket.bucket));
    }
    block.lacking.clear();
  }
  copies.Run();
  return absl::OkStatus();
}

absl::Status MirrorFill::Fill(const BucketTransfers& bucket) {
  const int64_t size =
      kStateArrays * static_cast<int64_t>(c10::elementSize(GradientType(state_.options().compute)));
  std::vector<Parcel> sends, receives;
  for (const Rank to : PeersOf(bucket.transfers, &StateTransfer::from, &StateTransfer::to, rank_))
    sends.push_back({to, Pack(bucket, to)});
  for (const Rank from :
       PeersOf(bucket.transfers, &StateTransfer::to, &StateTransfer::from, rank_)) {
    receives.push_back(
        {from, at::empty({size * ElementsOf(bucket, from, rank_) + kHashBytes},
                         at::TensorOptions().device(state_.options().device).dtype(at::kByte))});
  }
  RETURN_IF_ERROR(exchange_.Run(
      sends, receives,
      absl::StrCat("mirrored state of module ", plan_.module_spec(bucket.part.module).name,
                   ", bucket ", bucket.bucket)));
  return receives.empty() ? absl::OkStatus() : Unpack(bucket, receives);
}

}  // namespace phalanx::train
