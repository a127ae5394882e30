#include "worker/train/mirror_fill.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/derivation.h"
#include "core/plan/safe_again.h"
#include "worker/train/copy_list.h"
#include "worker/train/loose_state.h"
#include "worker/train/mirror_check.h"
#include "worker/train/parcels.h"

namespace phalanx::train {
MirrorFill::MirrorFill(const plan::Plan& plan, Rank rank, TrainingState& state,
                       std::vector<BucketTransfers> transfers, BulkGroup group,
                       std::function<bool()> stopped)
    : plan_(plan),
      rank_(rank),
      state_(state),
      transfers_(std::move(transfers)),
      group_(std::move(group)),
      exchange_(group_, state.options().device, std::move(stopped)) {}

absl::StatusOr<size_t> MirrorFill::AgreeOnShare(absl::Duration step) {
  auto times = static_cast<size_t>(plan::kMirrorStepsMax);
  // Ranks of the release before, which may be in the group else, say nothing.
  if (plan_.layout.derivation >= plan::kDerivationOfAgreedMirrorSteps) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                     exchange_.Gather({absl::ToInt64Microseconds(step)}));
    times = static_cast<size_t>(
        plan::MirrorSteps(absl::Microseconds(*std::max_element(steps.begin(), steps.end()))));
  }
  return (transfers_.size() + times - 1) / times;
}

absl::Status MirrorFill::Run(size_t buckets) {
  state_.AwaitUpdates();
  for (; buckets > 0 && !done(); --buckets, ++next_) RETURN_IF_ERROR(Fill(transfers_[next_]));
  if (!done()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckMirrors(plan_, state_, group_));
  if (plan_.layout.derivation < plan::kDerivationOfUpdatesEverywhere) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<int64_t> lacking,
                   exchange_.Gather({state_.Lacks() ? int64_t{1} : 0}));
  whole_ = std::count(lacking.begin(), lacking.end(), 0) == std::ssize(lacking);
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
  at::Tensor bytes = StateParcel(bucket, rank_, to, state_.options());
  PartState& part = *PartOf(bucket.part);
  const plan::BucketRulers& rulers = RulersOf(part)[static_cast<size_t>(bucket.bucket)];
  CopyList copies;
  for (const StateBlock& block : part.blocks()) {
    if (block.mirrors || block.bucket != bucket.bucket) continue;
    const std::vector<RulerRun> runs = RulerRunsOf(rulers, block);
    ForTransfers(bucket, rank_, to, type, [&](const StateTransfer& transfer, int64_t at) {
      ForElements(runs, transfer, [&](const plan::UnitRange& elements, int64_t offset) {
        const auto arrays = ArraysOf(block, part.weights(), offset, elements.count);
        for (size_t i = 0; i < arrays.size(); ++i)
          copies.Add(bytes, ByteOf(transfer, at, i, elements.first, type), arrays[i]);
      });
    });
  }
  copies.Run();
  return bytes;
}

absl::Status MirrorFill::Unpack(const BucketTransfers& bucket, const std::vector<Parcel>& received,
                                bool whole) {
  const at::ScalarType type = GradientType(state_.options().compute);
  PartState& part = *PartOf(bucket.part);
  const plan::BucketRulers& rulers = RulersOf(part)[static_cast<size_t>(bucket.bucket)];
  CopyList copies;
  for (StateBlock& block : part.blocks()) {
    if (!block.mirrors || block.bucket != bucket.bucket || block.lacking.empty()) continue;
    const std::vector<RulerRun> runs = RulerRunsOf(rulers, block);
    const LooseState::Arrays arrays = {block.master, block.first_moment, block.second_moment};
    std::vector<plan::UnitRange> come;
    for (const Parcel& parcel : received) {
      ForTransfers(
          bucket, parcel.peer, rank_, type, [&](const StateTransfer& transfer, int64_t at) {
            ForElements(runs, transfer, [&](const plan::UnitRange& elements, int64_t offset) {
              for (size_t i = 0; i < arrays.size(); ++i) {
                copies.Add(arrays[i], offset,
                           ValuesAt(parcel.bytes, ByteOf(transfer, at, i, elements.first, type),
                                    elements.count, type));
              }
              come.push_back({offset, elements.count});
            });
          });
    }
    SortAndJoin(&come);
    const auto has_come = [&come](const plan::UnitRange& lacks) {
      return std::any_of(come.begin(), come.end(), [&lacks](const plan::UnitRange& range) {
        return range.first <= lacks.first && lacks.end() <= range.end();
      });
    };
    if (!std::all_of(block.lacking.begin(), block.lacking.end(), has_come)) {
      if (!whole) continue;
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
  std::vector<Parcel> sends, receives;
  for (const Rank to : PeersOf(bucket.transfers, &StateTransfer::from, &StateTransfer::to, rank_))
    sends.push_back({to, Pack(bucket, to)});
  const std::string what =
      absl::StrCat("mirrored state of module ", plan_.module_spec(bucket.part.module).name,
                   ", bucket ", bucket.bucket);
  for (const Rank from :
       PeersOf(bucket.transfers, &StateTransfer::to, &StateTransfer::from, rank_)) {
    receives.push_back({from, StateParcel(bucket, from, rank_, state_.options()), what});
  }
  ASSIGN_OR_RETURN(const std::vector<VerifiedExchange::Damage> damaged,
                   exchange_.RunPastDamage(sends, receives));
  for (auto damage = damaged.rbegin(); damage != damaged.rend(); ++damage)
    receives.erase(receives.begin() + static_cast<std::ptrdiff_t>(damage->index));
  if (!damaged.empty() && damaged_.empty()) damaged_ = damaged.front().words;
  return receives.empty() ? absl::OkStatus() : Unpack(bucket, receives, damaged.empty());
}

}  // namespace phalanx::train
