#include "worker/train/training_state.h"

namespace phalanx::train {

TrainingState::TrainingState(const plan::Plan& plan, Rank rank, const BufferOptions& options)
    : options_(options) {
  for (const plan::Place& place : plan.PlacesOf(rank)) {
    const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks;
    for (int32_t chunk = 0; chunk < chunks; ++chunk)
      parts_.push_back(std::make_unique<PartState>(plan, place, chunk, options));
  }
}

}  // namespace phalanx::train
