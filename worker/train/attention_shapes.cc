#include "worker/train/attention_shapes.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/status.h"
#include "core/job/family.h"
#include "core/plan/units.h"
#include "worker/model/cudnn_attention.h"
#include "worker/model/patches.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::train {
namespace {

constexpr int64_t kStepsLookedAt = 64;

}  // namespace

std::vector<AttentionShape> AttentionShapes(const plan::Plan& plan, const Batches& batches,
                                            const std::vector<plan::Place>& places, size_t index) {
  const int32_t module = places[index].module;
  const job::Architecture& architecture = plan.module_spec(module).architecture;
  const bool encoder = job::TraitsOf(architecture).encoder();
  std::map<AttentionShape, int64_t> counts;
  for (int64_t step = 1; step <= std::min(kStepsLookedAt, plan.spec.steps); ++step) {
    for (const Microbatch& microbatch : batches.OfStep(step)) {
      const plan::UnitRange lane = microbatch.window.lanes[index];
      if (lane.count == 0) continue;
      const SequenceShape shape = batches.ShapeOf(microbatch, lane);
      const AttentionShape met = encoder ? AttentionShape{batches.ItemsOf(module, microbatch, lane),
                                                          model::EncoderRows(architecture)}
                                         : AttentionShape{shape.batch, shape.length};
      if (met.batch > 0) ++counts[met];
    }
  }
  std::vector<AttentionShape> shapes;
  for (const auto& [shape, count] : counts) shapes.push_back(shape);
  const auto work = [&](const AttentionShape& shape) {  // of all of them together
    return counts.at(shape) * shape.batch * shape.length * shape.length;
  };
  std::sort(shapes.begin(), shapes.end(), [&](const AttentionShape& a, const AttentionShape& b) {
    return std::pair(work(a), a) > std::pair(work(b), b);
  });
  shapes.resize(std::min(shapes.size(), kAttentionShapesMax));
  return shapes;
}

absl::Status PrepareAttention(const plan::Plan& plan, const Batches& batches,
                              const std::vector<plan::Place>& places, const BufferOptions& options,
                              absl::FunctionRef<bool()> stopped) {
  if (!options.device.is_cuda()) return absl::OkStatus();
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::TensorOptions values = at::TensorOptions(options.device).dtype(options.compute);
  for (size_t i = 0; i < places.size(); ++i) {
    const job::Architecture& architecture = plan.module_spec(places[i].module).architecture;
    model::HeadMap heads =
        model::MakeHeadMap(plan::TensorUnitsOf(architecture, places[i].width, places[i].tp),
                           architecture.heads / plan::KvHeads(architecture),
                           plan::HeadSize(architecture), options.device);
    heads.deterministic = plan.spec.deterministic;
    const bool causal = !job::TraitsOf(architecture).encoder();
    for (const auto& [batch, length] : AttentionShapes(plan, batches, places, i)) {
      if (stopped()) return absl::CancelledError("asked to stop");
      RETURN_IF_ERROR(model::CallTorch("trying attention", [&] {
        model::PrepareAttention(heads, causal, batch, length, values);
      }));
    }
  }
  return absl::OkStatus();
}

}  // namespace phalanx::train
