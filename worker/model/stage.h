// worker/model/stage.h: the part of one module that one rank computes, with explicit passes.
//
// A Stage holds the layers of one pipeline part at one tensor coordinate and works on microbatches
// named by a slot. The three passes are separate so that schedules may place them apart:
//   Forward(slot, input)        keeps what the other two need
//   BackwardInput(slot, dy)     gradient of the input; keeps what BackwardWeight needs
//   BackwardWeight(slot)        adds into the flat gradient buffer, then forgets the slot
// Where nothing comes between the last two, Backward(slot, dy) does both at once: a layer's weight
// gradients are added while its tensor ranks exchange rows, and what they need is freed there.
// What does not train (ModulePlan::TrainsOf of the part) is left out. Without inputs that train,
// BackwardInput computes nothing that serves them alone and returns nothing. Where no weight
// trains, BackwardInput forgets the slot, and BackwardWeight does nothing. A part with neither has
// no backward passes: its Forward keeps nothing and leaves the slot free.
// Parameters and gradients live in flat buffers owned by the caller, laid out by
// plan::ParametersOf; the stage keeps views. Of activations between stages of a module each tensor
// rank has all rows, or under sequence parallelism its slice; along edges all. Inside, the rows are
// summed once after attention and once after the MLP, forward and backward.
//
// Gradients are of the *sum* of token losses, not of a mean: the optimizer divides by one global
// token count.
//
// Errors: what LibTorch throws becomes a Status (torch_boundary.h); communicator errors pass
// through. Not thread-safe; on CUDA nothing here waits for the device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"

namespace at {
class Tensor;
}

namespace phalanx::model {

// What a pass takes; a stage reads the members that its role needs and the rest stay undefined.
// B samples, T padded length (the same for the whole microbatch of one replica), H hidden.
struct StageInput;  // stage_io.h (includes ATen)
struct StageOutput;

class Stage {
 public:
  virtual ~Stage() = default;
  virtual absl::StatusOr<StageOutput> Forward(int32_t slot, const StageInput& input) = 0;
  // Forward without keeping anything, for validation and decoding.
  virtual absl::StatusOr<StageOutput> Evaluate(const StageInput& input) = 0;
  // `output_gradient` has the shape of StageOutput::hidden (sinks: ignored, may be empty); on a
  // last stage with loss and outgoing edges the loss's own gradient is added.
  // Returns gradients of StageInput::hidden (not the first stage) and StageInput::rows (first stage
  // of a module with incoming edges); both undefined where the stage has neither, or nothing before
  // it trains.
  virtual absl::StatusOr<StageOutput> BackwardInput(
      int32_t slot, const std::vector<at::Tensor>& output_gradient) = 0;
  virtual absl::Status BackwardWeight(int32_t slot) = 0;
  // Both in one, to the same sums.
  virtual absl::StatusOr<StageOutput> Backward(int32_t slot,
                                               const std::vector<at::Tensor>& output_gradient) = 0;
  // Before the first pass after weights may have changed: what is made of them is made anew.
  virtual void NewWeights() = 0;
};

}  // namespace phalanx::model
