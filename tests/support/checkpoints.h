// tests/support/checkpoints.h: checkpoints as the ranks of a plan would write them.
//
// Every element is a number of its own: what a reader finds can be told from where it belongs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/checkpoint/entry.h"
#include "core/checkpoint/manifest.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::support {

// The elements of one kind of state of a tensor.
class CheckpointValues {
 public:
  CheckpointValues(absl::string_view module, absl::string_view tensor, checkpoint::Kind kind);
  // A whole number below 2^21, so that fp32 and fp64 hold it; bf16 holds its upper half.
  double operator()(int64_t row, int64_t col) const;

 private:
  const uint64_t stream_;
};
// An element of that type, as memory has it.
std::string BytesOf(double value, checkpoint::DType dtype);

// Runs of a part's flat buffers that its rank writes: of what trains those that it is the home of,
// of what does not those of the first replica.
struct OwnedRuns {
  std::vector<plan::UnitRange> state, weights;
};
OwnedRuns RunsOwnedBy(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
                      const plan::StageParameters& parameters);

struct MadePart {
  checkpoint::PartHeader header;  // with digests
  std::string data;
};
// Of all ranks that write anything, by rank; the step is 50.
std::vector<MadePart> MakeParts(const plan::Plan& plan);
checkpoint::Manifest ManifestOf(const plan::Plan& plan, const std::vector<MadePart>& parts);

// Writes a checkpoint into `folder` under its name; returns its path.
std::string WriteCheckpoint(const plan::Plan& plan, const std::string& folder, int64_t step = 50);

}  // namespace phalanx::support
