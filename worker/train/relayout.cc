#include "worker/train/relayout.h"

#include <algorithm>
#include <iterator>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/plan/ruler.h"
#include "worker/train/copy_list.h"
#include "worker/train/parcels.h"

namespace phalanx::train {
namespace {

plan::PartId IdOf(const PartState& part) {
  return {part.place().module, part.place().pp, part.chunk()};
}

bool SameFlat(const plan::StageParameters& a, const plan::StageParameters& b) {
  return a.elements == b.elements && a.trained_extent == b.trained_extent &&
         std::equal(a.matrices.begin(), a.matrices.end(), b.matrices.begin(), b.matrices.end(),
                    [](const plan::LocalMatrix& x, const plan::LocalMatrix& y) {
                      return x.role == y.role && x.layer == y.layer && x.edge == y.edge &&
                             x.offset == y.offset && x.rows == y.rows && x.cols == y.cols;
                    });
}

bool SameRuns(const std::vector<StateRun>& a, const std::vector<StateRun>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const StateRun& x, const StateRun& y) {
                      return x.gradient_offset == y.gradient_offset && x.count == y.count;
                    });
}

bool HasFrozen(const plan::StageParameters& parameters) {
  return parameters.elements > parameters.trained_extent;
}

}  // namespace

Relayout::Relayout(const plan::Plan& after, Rank rank, const BufferOptions& options,
                   LooseState& loose, const BulkGroup& group, std::function<bool()> stopped)
    : after_(after),
      rank_(rank),
      options_(options),
      loose_(loose),
      exchange_(group, options.device, stopped),
      stopped_(std::move(stopped)) {}

std::string Relayout::NameOf(const plan::PartId& part) const {
  return absl::StrCat("module ", after_.module_spec(part.module).name, ", stage ", part.stage,
                      ", chunk ", part.chunk);
}

absl::Status Relayout::CheckStop() const {
  return stopped_() ? absl::CancelledError("asked to stop") : absl::OkStatus();
}

void Relayout::OutlineParts() {
  for (const plan::Place& place : after_.PlacesOf(rank_)) {
    const int32_t chunks = after_.modules[static_cast<size_t>(place.module)].chunks();
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      parts_.push_back(PartState::Outline(after_, place, chunk, options_));
      PartState& part = *parts_.back();
      const plan::PartId id = IdOf(part);
      part_of_[id] = &part;
      const std::vector<plan::BucketRulers> rulers =
          plan::RulersOf(after_, place, part.parameters());
      for (StateBlock& block : part.blocks()) {
        std::vector<RulerRun> runs = RulerRunsOf(rulers[static_cast<size_t>(block.bucket)], block);
        if (!runs.empty()) needs_[{id, block.bucket}].push_back({&block, std::move(runs)});
      }
    }
  }
}

bool Relayout::Stays(PartState& outline) {
  const plan::PartId id = IdOf(outline);
  const std::vector<LooseFlat>& flats = loose_.FlatsOf(id);
  if (flats.size() != 1 || !flats.front().weights.defined()) return false;
  const LooseFlat& flat = flats.front();
  if (flat.width != outline.place().width || flat.tp != outline.place().tp ||
      !SameFlat(flat.parameters, outline.parameters())) {
    return false;
  }
  size_t needed = 0, held = 0;
  for (const auto& [bucket, needs] : needs_) {
    if (bucket.first != id) continue;
    needed += needs.size();
    for (const Need& need : needs) {
      const LooseBlock* same = FindSame(bucket, need);
      if (same == nullptr || !SameRuns(same->block.runs, need.block->runs)) return false;
      const bool master = need.block->mirrors || !outline.weights_are_masters();
      if (same->block.master.defined() != master) return false;
    }
  }
  for (const auto& [bucket, blocks] : loose_.blocks()) {
    if (bucket.first == id) held += blocks.size();
  }
  return needed == held;
}

LooseBlock* Relayout::FindSame(const BucketId& id, const Need& need) {
  for (LooseBlock& loose : loose_.BlocksOf(id)) {
    if (loose.block.elements != need.block->elements) continue;
    if (loose.runs == need.runs) return &loose;
    // Made for it, and not one of the layout before that lacked the same.
    const bool lacks = !loose.block.lacking.empty() && loose.block.primary == need.block->primary;
    if (lacks && need.made.has_value() && loose.runs == *need.made) return &loose;
  }
  return nullptr;
}

at::Tensor Relayout::EmptyParcel(int64_t elements, at::ScalarType type) const {
  return at::empty({elements * static_cast<int64_t>(c10::elementSize(type)) + kHashBytes},
                   at::TensorOptions().device(options_.device).dtype(at::kByte));
}

absl::StatusOr<at::Tensor> Relayout::PackState(const BucketTransfers& bucket, Rank to) {
  const at::ScalarType type = GradientType(options_.compute);
  at::Tensor bytes = StateParcel(bucket, rank_, to, options_);
  int64_t missing = 0;
  CopyList copies;
  ForTransfers(bucket, rank_, to, type, [&](const StateTransfer& transfer, int64_t at) {
    missing += transfer.elements.count;
    loose_.ForHeld({bucket.part, bucket.bucket}, transfer.family, transfer.elements,
                   [&](const plan::UnitRange& held, const LooseState::Arrays& arrays) {
                     for (size_t i = 0; i < arrays.size(); ++i)
                       copies.Add(bytes, ByteOf(transfer, at, i, held.first, type), arrays[i]);
                     missing -= held.count;
                   });
  });
  copies.Run();
  if (missing == 0) return bytes;
  return absl::InternalError(absl::StrCat("rank ", rank_.value, " is to give ", missing,
                                          " elements of the state of ", NameOf(bucket.part),
                                          ", bucket ", bucket.bucket, ", which it does not hold"));
}

absl::Status Relayout::Exchange(const std::vector<Parcel>& sends, std::vector<Parcel>& receives) {
  for (const Parcel& parcel : sends) moved_.sent_bytes += parcel.bytes.numel() - kHashBytes;
  for (const Parcel& parcel : receives) moved_.received_bytes += parcel.bytes.numel() - kHashBytes;
  const absl::Time begin = absl::Now();
  const absl::Cleanup count = [&] { moved_.messages += absl::Now() - begin; };
  return exchange_.Run(sends, receives);
}

absl::Status Relayout::Confirm(const std::vector<Parcel>& sends,
                               const std::vector<Parcel>& receives) {
  const absl::Time begin = absl::Now();
  const absl::Cleanup count = [&] { moved_.messages += absl::Now() - begin; };
  return exchange_.Confirm(sends, receives);
}

absl::Status Relayout::MoveBucket(const BucketTransfers& bucket) {
  RETURN_IF_ERROR(CheckStop());
  std::vector<Parcel> sends, receives;
  for (const Rank to : PeersOf(bucket.transfers, &StateTransfer::from, &StateTransfer::to, rank_)) {
    ASSIGN_OR_RETURN(at::Tensor bytes, PackState(bucket, to));
    sends.push_back({to, std::move(bytes)});
  }
  for (const Rank from :
       PeersOf(bucket.transfers, &StateTransfer::to, &StateTransfer::from, rank_)) {
    receives.push_back(
        {from, StateParcel(bucket, from, rank_, options_),
         absl::StrCat("state of ", NameOf(bucket.part), ", bucket ", bucket.bucket)});
  }
  RETURN_IF_ERROR(Exchange(sends, receives));
  RETURN_IF_ERROR(MakeBlocks(bucket, receives));
  RETURN_IF_ERROR(Confirm(sends, receives));
  if (!staying_.contains(bucket.part)) LetGo({bucket.part, bucket.bucket});
  return absl::OkStatus();
}

absl::Status Relayout::MakeBlocks(const BucketTransfers& bucket,
                                  const std::vector<Parcel>& received) {
  const BucketId id{bucket.part, bucket.bucket};
  const auto needs = needs_.find(id);
  if (needs == needs_.end()) return absl::OkStatus();
  std::vector<LooseBlock> all;
  for (Need& need : needs->second) {
    if (FindSame(id, need) != nullptr) continue;
    RETURN_IF_ERROR(MakeBlock(id, need, bucket, received, &all.emplace_back()));
  }
  std::move(all.begin(), all.end(), std::back_inserter(loose_.BlocksOf(id)));
  return absl::OkStatus();
}

absl::Status Relayout::MakeBlock(const BucketId& id, Need& need, const BucketTransfers& bucket,
                                 const std::vector<Parcel>& received, LooseBlock* made) {
  const at::ScalarType type = GradientType(options_.compute);
  const auto options = at::TensorOptions().device(options_.device).dtype(type);
  made->runs = need.runs;
  made->block = *need.block;
  const LooseState::Arrays arrays = {at::zeros({need.block->elements}, options),
                                     at::zeros({need.block->elements}, options),
                                     at::zeros({need.block->elements}, options)};
  int64_t missing = 0;
  std::vector<plan::UnitRange> there;  // of the block's tensors
  CopyList copies;
  for (const RulerRun& run : need.runs) {
    missing += run.elements.count;
    loose_.ForHeld(id, run.family, run.elements,
                   [&](const plan::UnitRange& held, const LooseState::Arrays& from) {
                     const int64_t offset = run.state_offset + held.first - run.elements.first;
                     for (size_t i = 0; i < arrays.size(); ++i)
                       copies.Add(arrays[i], offset, from[i]);
                     there.push_back({offset, held.count});
                     missing -= held.count;
                   });
  }
  for (const Parcel& parcel : received) {
    ForTransfers(bucket, parcel.peer, rank_, type, [&](const StateTransfer& transfer, int64_t at) {
      ForElements(need.runs, transfer, [&](const plan::UnitRange& elements, int64_t offset) {
        for (size_t i = 0; i < arrays.size(); ++i) {
          copies.Add(arrays[i], offset,
                     ValuesAt(parcel.bytes, ByteOf(transfer, at, i, elements.first, type),
                              elements.count, type));
        }
        missing -= elements.count;
      });
    });
  }
  copies.Run();
  made->block.master = arrays[0];
  made->block.first_moment = arrays[1];
  made->block.second_moment = arrays[2];
  if (missing > 0 && need.block->mirrors) {
    SortAndJoin(&there);
    for (const RulerRun& lacks : Without(need.runs, there))
      made->block.lacking.push_back({lacks.state_offset, lacks.elements.count});
    SortAndJoin(&made->block.lacking);
    made->runs = Without(need.runs, made->block.lacking);
    need.made = made->runs;
    return absl::OkStatus();
  }
  if (missing == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", rank_.value, " is given ",
                                          missing > 0 ? "too little" : "more than it lacks",
                                          " of the state of ", NameOf(id.first), ", bucket ",
                                          id.second, ": ", missing, " elements are missing"));
}

void Relayout::LetGo(const BucketId& id) {
  std::set<const LooseBlock*> kept;
  if (const auto needs = needs_.find(id); needs != needs_.end()) {
    for (const Need& need : needs->second) kept.insert(FindSame(id, need));
  }
  std::vector<LooseBlock> left;
  for (LooseBlock& loose : loose_.BlocksOf(id)) {
    if (kept.contains(&loose)) left.push_back(std::move(loose));
  }
  loose_.BlocksOf(id) = std::move(left);
}

absl::Status Relayout::Run(const Transfers& transfers) {
  OutlineParts();
  for (const auto& part : parts_) {
    if (Stays(*part)) staying_.insert(IdOf(*part));
  }
  for (const plan::PartId& part : loose_.Parts()) {
    if (!staying_.contains(part)) loose_.Detach(part);
  }
  std::set<plan::PartId> weights_done;
  for (const PartWeightTransfers& part : transfers.weights) {
    RETURN_IF_ERROR(MoveWeights(part));
    weights_done.insert(part.part);
  }
  for (const auto& part : parts_) {
    const plan::PartId id = IdOf(*part);
    if (!HasFrozen(part->parameters()) || staying_.contains(id) || weights_done.contains(id))
      continue;
    RETURN_IF_ERROR(MoveWeights({.part = id}));
  }
  std::set<BucketId> done;
  for (const BucketTransfers& bucket : transfers.buckets) {
    RETURN_IF_ERROR(MoveBucket(bucket));
    done.insert({bucket.part, bucket.bucket});
  }
  for (const auto& [id, needs] : needs_) {
    if (!done.contains(id)) RETURN_IF_ERROR(MoveBucket({.part = id.first, .bucket = id.second}));
  }
  return Assemble();
}

absl::Status Relayout::Assemble() {
  for (const auto& [id, needs] : needs_) {
    for (const Need& need : needs) {
      if (FindSame(id, need) != nullptr) continue;
      return absl::InternalError(absl::StrCat("rank ", rank_.value, " has no state of ",
                                              NameOf(id.first), ", bucket ", id.second));
    }
  }
  for (const auto& part : parts_) {
    const plan::PartId id = IdOf(*part);
    const bool stays = staying_.contains(id);
    if (stays || HasFrozen(part->parameters())) {
      part->weights() = loose_.FlatsOf(id).back().weights;
      if (stays) part->gradients() = loose_.FlatsOf(id).back().gradients;
    }
    part->AllocateWeights();
  }
  for (const auto& [id, needs] : needs_) {
    for (const Need& need : needs) {
      LooseBlock* same = FindSame(id, need);
      need.block->master = std::move(same->block.master);
      need.block->first_moment = std::move(same->block.first_moment);
      need.block->second_moment = std::move(same->block.second_moment);
      need.block->lacking = std::move(same->block.lacking);
    }
  }
  for (const auto& part : parts_) {
    part->Recast();
    for (StateBlock& block : part->blocks()) {
      if (!block.first_moment.defined()) part->Allocate(block);  // padding alone
      if (!block.mirrors && part->weights_are_masters()) block.master = at::Tensor();
    }
  }
  // Behind masters that are weights from now on, so that both are never there at once.
  for (const auto& part : parts_) part->AllocateGradients();
  loose_ = LooseState();
  return absl::OkStatus();
}

}  // namespace phalanx::train
