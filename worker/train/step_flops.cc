#include "worker/train/step_flops.h"

#include <cstddef>
#include <cstdint>

#include "core/job/family.h"
#include "core/plan/cost.h"

namespace phalanx::train {
namespace {

struct Rows {
  double rows = 0, length = 0;
};

Rows RowsAt(const plan::Plan& plan, const plan::Place& place, const Batches& batches,
            const Microbatch& microbatch, plan::UnitRange lane) {
  const int64_t item = job::RowsOfItem(plan.module_spec(place.module).architecture);
  if (item > 0) {
    return {static_cast<double>(batches.LayerRowsOf(place.module, microbatch, lane)),
            static_cast<double>(item)};
  }
  const SequenceShape shape = batches.ShapeOf(microbatch, lane);
  return {static_cast<double>(shape.batch * shape.length), static_cast<double>(shape.length)};
}

}  // namespace

double FlopsOfStep(const plan::Plan& plan, const std::vector<plan::Place>& places,
                   const Batches& batches, absl::Span<const Microbatch> microbatches) {
  double flops = 0;
  for (const Microbatch& microbatch : microbatches) {
    for (size_t i = 0; i < places.size(); ++i) {
      const plan::Place& place = places[i];
      const Rows rows = RowsAt(plan, place, batches, microbatch, microbatch.window.lanes[i]);
      if (rows.rows <= 0) continue;
      const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        flops += plan::PartCost(plan, {place.module, place.pp, chunk}, place.width, rows.rows,
                                rows.length)
                     .total();
      }
    }
  }
  return flops;
}

}  // namespace phalanx::train
