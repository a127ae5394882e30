// worker/train/loose_state.h: training state of a rank that lies in no layout, or partly in one and
// partly in another.
//
// A part that leaves its layout (part_state.h) hands over its blocks and flat buffers as they are:
// nothing is copied. From then on elements of optimizer state are known by their places on rulers
// (holdings.h): those of that layout, until they are named as another one has them. Blocks may
// overlap: then they have the same bits.
//
// Not thread-safe. With nothing enqueued.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "worker/train/holdings.h"
#include "worker/train/part_state.h"
#include "worker/train/state_block.h"

namespace phalanx::train {

// Masters, then both moments.
inline constexpr int32_t kStateArrays = 3;

struct LooseBlock {
  std::vector<RulerRun> runs;  // by family and first element
  StateBlock block;            // without a master: the weights of its part's flat buffer are it
};

// The flat buffers of a part as one layout has them.
struct LooseFlat {
  int32_t width = 1, tp = 0;
  plan::StageParameters parameters;
  FrozenRows rows;                // what does not train of it
  at::Tensor weights, gradients;  // gradients may be undefined
};

class LooseState {
 public:
  using BucketId = std::pair<plan::PartId, int32_t>;

  // `part`: of `plan`, whose modules are cut into stages as those of whatever was added before. It
  // is of no more use.
  void Add(const plan::Plan& plan, PartState& part);
  // Names everything as `to` has it, a plan of the job whose stages may be others. Nothing is
  // copied but masters that are weights. Weights that do not train, of modules that are cut
  // otherwise, are let go of: they have no name there.
  void NameAs(const plan::Plan& to);
  bool empty() const;
  // But for the step.
  Holdings HoldingsNow() const;

  std::vector<LooseBlock>& BlocksOf(const BucketId& id) { return blocks_[id]; }
  const std::map<BucketId, std::vector<LooseBlock>>& blocks() const { return blocks_; }
  std::vector<LooseFlat>& FlatsOf(const plan::PartId& part) { return flats_[part]; }
  std::vector<plan::PartId> Parts() const;

  // Gives the part's blocks masters of their own and lets go of its flat buffers, but for weights
  // that do not train.
  void Detach(const plan::PartId& part);

  // Calls visit(elements, arrays) for everything that blocks of the bucket have of a range, in
  // order, each element once; arrays: [elements.count] each, to be read.
  using Arrays = std::array<at::Tensor, kStateArrays>;
  using Visit = absl::FunctionRef<void(const plan::UnitRange&, const Arrays&)>;
  void ForHeld(const BucketId& id, const plan::UnitFamily& family, const plan::UnitRange& range,
               Visit visit);

 private:
  // ArraysOf a block of the part.
  Arrays ArraysAt(const plan::PartId& part, const StateBlock& block, int64_t offset,
                  int64_t count) const;
  void RenameModule(const plan::Plan& to, int32_t module);

  std::optional<plan::Plan> named_as_;  // nullopt: there is nothing
  std::map<BucketId, std::vector<LooseBlock>> blocks_;
  std::map<plan::PartId, std::vector<LooseFlat>> flats_;
};

// What stands at `offset` of a block's tensors; `weights`: of its part, for a block whose master
// they are. A master that is spread over them is a copy, else all are views.
LooseState::Arrays ArraysOf(const StateBlock& block, const at::Tensor& weights, int64_t offset,
                            int64_t count);

// The run of a block that has an element, or nullptr.
const RulerRun* RunAt(const std::vector<RulerRun>& runs, const plan::UnitFamily& family,
                      int64_t element);

}  // namespace phalanx::train
