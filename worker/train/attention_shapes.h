// worker/train/attention_shapes.h: the shapes of attention that a rank will meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "worker/train/batches.h"
#include "worker/train/part_state.h"

namespace phalanx::train {

// Of a place at most: data of one length has one, or two where microbatches differ by a sample.
inline constexpr size_t kAttentionShapesMax = 16;

// Sequences, or items of an encoder, and the positions of each.
struct AttentionShape {
  int64_t batch = 0, length = 0;
  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

// What the rank's lane at places[index], of those of `batches`, meets in the first steps of the
// data: first the shapes that attention works longest at, all their occurrences together. A
// function of plan and data, whatever step comes next.
std::vector<AttentionShape> AttentionShapes(const plan::Plan& plan, const Batches& batches,
                                            const std::vector<plan::Place>& places, size_t index);

// On CUDA lets attention choose its kernels for all of these (worker/model/cudnn_attention.h).
// Errors: Cancelled once `stopped`; what LibTorch throws.
absl::Status PrepareAttention(const plan::Plan& plan, const Batches& batches,
                              const std::vector<plan::Place>& places, const BufferOptions& options,
                              absl::FunctionRef<bool()> stopped);

}  // namespace phalanx::train
