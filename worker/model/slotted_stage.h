// worker/model/slotted_stage.h: what the stages of all families have in common.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/plan.h"
#include "worker/model/slots.h"
#include "worker/model/stage_io.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::model {

// The passes of a Stage on a State a slot, which has a WeightWork `work`. A part that has no
// backward pass keeps no state; one whose weights do not train has none after BackwardInput.
template <typename State>
class SlottedStage : public Stage {
 public:
  absl::StatusOr<StageOutput> Forward(int32_t slot, const StageInput& input) final {
    return Call("forward", [&](StageOutput* output) -> absl::Status {
      State* state = nullptr;
      if (trains_.any()) RETURN_IF_ERROR(slots_.Open(slot, &state));
      return Run(input, /*evaluate=*/false, state, output);
    });
  }
  absl::StatusOr<StageOutput> Evaluate(const StageInput& input) final {
    return Call("evaluation", [&](StageOutput* output) -> absl::Status {
      return Run(input, /*evaluate=*/true, nullptr, output);
    });
  }
  absl::StatusOr<StageOutput> BackwardInput(int32_t slot,
                                            const std::vector<at::Tensor>& gradient) final {
    return Call("backward", [&](StageOutput* output) -> absl::Status {
      State* state = nullptr;
      RETURN_IF_ERROR(slots_.Advance(slot, Slots<State>::Pass::kForward, &state));
      RETURN_IF_ERROR(RunBackward(gradient, state, output));
      if (!trains_.weights) slots_.Close(slot);
      return absl::OkStatus();
    });
  }
  absl::StatusOr<StageOutput> Backward(int32_t slot,
                                       const std::vector<at::Tensor>& gradient) final {
    return Call("backward", [&](StageOutput* output) -> absl::Status {
      State* state = nullptr;
      RETURN_IF_ERROR(slots_.Advance(slot, Slots<State>::Pass::kForward, &state));
      state->work.RunAlong(layer_done_);
      RETURN_IF_ERROR(RunBackward(gradient, state, output));
      state->work.Run();
      slots_.Close(slot);
      return absl::OkStatus();
    });
  }
  absl::Status BackwardWeight(int32_t slot) final {
    if (!trains_.weights) return absl::OkStatus();
    return Call("weight gradients",
                [&](StageOutput*) -> absl::Status {
                  State* state = nullptr;
                  RETURN_IF_ERROR(slots_.Advance(slot, Slots<State>::Pass::kBackwardInput, &state));
                  state->work.Run(pace_);
                  slots_.Close(slot);
                  return absl::OkStatus();
                })
        .status();
  }
  void NewWeights() override {}

 protected:
  SlottedStage(std::string module, plan::Trains trains, const StageOptions& options)
      : trains_(trains),
        module_(std::move(module)),
        pace_(options.pace),
        layer_done_(options.layer_done) {}

  // `state` is nullptr where nothing is to be kept.
  virtual absl::Status Run(const StageInput& input, bool evaluate, State* state,
                           StageOutput* output) const = 0;
  virtual absl::Status RunBackward(const std::vector<at::Tensor>& output_gradient, State* state,
                                   StageOutput* output) const = 0;

  const plan::Trains trains_;

 private:
  template <typename Body>
  absl::StatusOr<StageOutput> Call(const char* pass, const Body& body) {
    StageOutput output;
    RETURN_IF_ERROR(CallTorch(absl::StrCat(pass, " of module ", module_), [&]() -> absl::Status {
      const at::AutoDispatchBelowADInplaceOrView guard;
      return body(&output);
    }));
    return output;
  }

  const std::string module_;
  const Pace pace_, layer_done_;
  Slots<State> slots_;
};

}  // namespace phalanx::model
