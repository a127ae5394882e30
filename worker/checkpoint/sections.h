// worker/checkpoint/sections.h: what of a rank's training state stands in checkpoints.
//
// A *section* is one array of it: the masters, first or second moments of one home, or the weights
// of a part that do not train. Its elements are those of runs of the part's flat buffers, laid end
// to end; its entries say which rectangles of logical tensors they are.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/checkpoint/entry.h"
#include "core/checkpoint/local_entries.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"
#include "worker/train/training_state.h"

namespace phalanx::checkpoint {

struct Section {
  train::PartState* part = nullptr;
  train::StateBlock* block = nullptr;  // nullptr: weights that do not train
  Kind kind = Kind::kWeight;
  DType dtype = DType::kF32;
  std::vector<plan::UnitRange> runs;
  int64_t elements = 0;
  std::vector<LocalEntry> entries;

  int64_t bytes() const { return elements * BytesOf(dtype); }
};

// What the rank writes, those of wider types first: of its primary homes, and, if it is of the
// first replica, what it leads of what does not train. So all ranks together write everything once.
std::vector<Section> SectionsToWrite(const plan::Plan& plan, train::TrainingState& state);
// All that the rank has: of mirrors too, and of what does not train.
std::vector<Section> SectionsToRead(const plan::Plan& plan, train::TrainingState& state);

at::ScalarType ScalarTypeOf(DType dtype);
// Enqueues the copy of a section to or from `array`, [elements] of its type in host memory. `grid`:
// where the mapping of that memory begins, or the first whole piece of it (pinned_mapping.h).
void CopyOut(const Section& section, at::Tensor& array, const std::byte* grid);
// What it reads is to stay until the device has it.
void CopyIn(const Section& section, const at::Tensor& array, const std::byte* grid);
// The same, and waits.
void CopyIn(const Section& section, const at::Tensor& array);

}  // namespace phalanx::checkpoint
