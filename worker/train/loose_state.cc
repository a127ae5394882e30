#include "worker/train/loose_state.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/plan/check.h"
#include "core/plan/ruler.h"
#include "core/plan/ruler_map.h"

namespace phalanx::train {
namespace {

constexpr int64_t kShared = -1;  // elements of no block

}  // namespace

const RulerRun* RunAt(const std::vector<RulerRun>& runs, const plan::UnitFamily& family,
                      int64_t element) {
  const auto behind = std::upper_bound(
      runs.begin(), runs.end(), element, [&family](int64_t value, const RulerRun& run) {
        return run.family != family ? family < run.family : value < run.elements.first;
      });
  if (behind == runs.begin()) return nullptr;
  const RulerRun& run = *std::prev(behind);
  return run.family == family && element < run.elements.end() ? &run : nullptr;
}

void LooseState::Add(const plan::Plan& plan, PartState& part) {
  const plan::PartId id{part.place().module, part.place().pp, part.chunk()};
  if (!named_as_.has_value()) named_as_ = plan;
  PHALANX_CHECK(plan::SameRulers(*named_as_, plan, id.module), "state of one cut into stages");
  const std::vector<plan::BucketRulers> rulers =
      plan::RulersOf(plan, part.place(), part.parameters());
  for (StateBlock& block : part.blocks()) {
    std::vector<RulerRun> runs =
        Without(RulerRunsOf(rulers[static_cast<size_t>(block.bucket)], block), block.lacking);
    block.lacking.clear();
    if (runs.empty()) continue;
    blocks_[{id, block.bucket}].push_back({std::move(runs), std::move(block)});
  }
  part.blocks().clear();
  flats_[id].push_back({.width = part.place().width,
                        .tp = part.place().tp,
                        .parameters = part.parameters(),
                        .rows = FrozenRowsOf(part.parameters()),
                        .weights = part.weights(),
                        .gradients = part.gradients()});
  part.weights() = at::Tensor();
  part.gradients() = at::Tensor();
}

void LooseState::NameAs(const plan::Plan& to) {
  if (!named_as_.has_value()) return;
  for (const plan::ModulePlan& module : to.modules) {
    const bool known = job::TraitsOf(to.module_spec(module.index).architecture).known();
    if (known && !plan::SameRulers(*named_as_, to, module.index)) RenameModule(to, module.index);
  }
  named_as_ = to;
}

void LooseState::RenameModule(const plan::Plan& to, int32_t module) {
  for (const plan::PartId& part : Parts()) {
    if (part.module == module) Detach(part);
  }
  std::erase_if(flats_, [module](const auto& flat) { return flat.first.module == module; });
  const plan::RulerMap map(*named_as_, to, module);
  std::map<BucketId, std::vector<LooseBlock>> renamed;
  for (const auto& [id, blocks] : blocks_) {
    if (id.first.module != module) continue;
    for (const LooseBlock& loose : blocks) {
      std::map<BucketId, std::vector<RulerRun>> runs;
      for (const RulerRun& run : loose.runs) {
        for (const plan::RulerMap::Piece& piece :
             map.Of({id.first, id.second, run.family}, run.elements)) {
          runs[{piece.ruler.part, piece.ruler.bucket}].push_back(
              {.family = piece.ruler.family,
               .elements = piece.elements,
               .state_offset = run.state_offset + piece.from - run.elements.first});
        }
      }
      for (auto& [bucket, of_bucket] : runs) {
        SortAndJoin(&of_bucket);
        // All of them have the tensors of the old one, which go with the last.
        LooseBlock& block = renamed[bucket].emplace_back();
        block = {.runs = std::move(of_bucket), .block = loose.block};
        block.block.bucket = bucket.second;
        block.block.runs.clear();  // they are of flat buffers that are no more
        // Whose tensors others have too is no block of any layout.
        if (runs.size() > 1) block.block.elements = kShared;
      }
    }
  }
  std::erase_if(blocks_,
                [module](const auto& entry) { return entry.first.first.module == module; });
  blocks_.merge(renamed);
}

bool LooseState::empty() const {
  const auto is_empty = [](const auto& entry) { return entry.second.empty(); };
  return std::all_of(blocks_.begin(), blocks_.end(), is_empty) &&
         std::all_of(flats_.begin(), flats_.end(), is_empty);
}

Holdings LooseState::HoldingsNow() const {
  Holdings holdings;
  for (const auto& [id, blocks] : blocks_) {
    for (const LooseBlock& loose : blocks) {
      for (const RulerRun& run : loose.runs)
        holdings.state[{id.first, id.second, run.family}].push_back(run.elements);
    }
  }
  for (auto& [name, ranges] : holdings.state) SortAndJoin(&ranges);
  for (const auto& [part, flats] : flats_) {
    for (const LooseFlat& flat : flats) {
      if (!flat.weights.defined() || flat.parameters.elements == flat.parameters.trained_extent)
        continue;
      holdings.frozen.push_back({part, flat.width, flat.tp});
    }
  }
  std::sort(holdings.frozen.begin(), holdings.frozen.end());
  return holdings;
}

std::vector<plan::PartId> LooseState::Parts() const {
  std::vector<plan::PartId> parts;
  for (const auto& [part, flats] : flats_) parts.push_back(part);
  return parts;
}

LooseState::Arrays LooseState::ArraysAt(const plan::PartId& part, const StateBlock& block,
                                        int64_t offset, int64_t count) const {
  // A block without a master is of the layout that was left last.
  return ArraysOf(block, block.master.defined() ? at::Tensor() : flats_.at(part).back().weights,
                  offset, count);
}

LooseState::Arrays ArraysOf(const StateBlock& block, const at::Tensor& weights, int64_t offset,
                            int64_t count) {
  LooseState::Arrays arrays = {at::Tensor(), block.first_moment.narrow(0, offset, count),
                               block.second_moment.narrow(0, offset, count)};
  if (block.master.defined()) {
    arrays[0] = block.master.narrow(0, offset, count);
    return arrays;
  }
  PHALANX_CHECK(weights.defined(), "weights that are masters are kept until others are");
  std::vector<at::Tensor> pieces;
  for (const StateRun& run : block.runs) {
    const int64_t first = std::max(run.state_offset, offset);
    const int64_t end = std::min(run.state_offset + run.count, offset + count);
    if (first < end)
      pieces.push_back(
          weights.narrow(0, run.gradient_offset + first - run.state_offset, end - first));
  }
  arrays[0] = pieces.size() == 1 ? pieces.front() : at::cat(pieces);
  return arrays;
}

void LooseState::Detach(const plan::PartId& part) {
  for (auto& [id, blocks] : blocks_) {
    if (id.first != part) continue;
    for (LooseBlock& loose : blocks) {
      StateBlock& block = loose.block;
      if (!block.master.defined())
        block.master = ArraysAt(part, block, 0, block.elements)[0].clone();
    }
  }
  for (LooseFlat& flat : flats_[part]) {
    flat.gradients = at::Tensor();
    if (flat.parameters.elements == flat.parameters.trained_extent) flat.weights = at::Tensor();
  }
}

void LooseState::ForHeld(const BucketId& id, const plan::UnitFamily& family,
                         const plan::UnitRange& range, Visit visit) {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return;
  for (int64_t at = range.first; at < range.end();) {
    const RulerRun* run = nullptr;
    const LooseBlock* holder = nullptr;
    for (const LooseBlock& loose : found->second) {
      if ((run = RunAt(loose.runs, family, at)) == nullptr) continue;
      holder = &loose;
      break;
    }
    if (run == nullptr) {
      int64_t next = range.end();
      for (const LooseBlock& loose : found->second) {
        for (const RulerRun& other : loose.runs) {
          if (other.family == family && other.elements.first > at)
            next = std::min(next, other.elements.first);
        }
      }
      at = next;
      continue;
    }
    const int64_t count = std::min(run->elements.end(), range.end()) - at;
    visit({at, count},
          ArraysAt(id.first, holder->block, run->state_offset + at - run->elements.first, count));
    at += count;
  }
}

}  // namespace phalanx::train
