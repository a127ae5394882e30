// What a rank says of an epoch in its log: a line each, none a step, nothing of the job's data.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/plan/memory_fit.h"
#include "core/schedule/memory_peak.h"
#include "spdlog/spdlog.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/epoch_run.h"

namespace phalanx::rank {
namespace {

// "language tp 1 of 2, dp 0 of 1, pp 0 of 2, layers 0-2".
std::string PlaceText(const plan::Plan& plan, const plan::Place& place) {
  const plan::ModulePlan& module = plan.modules[static_cast<size_t>(place.module)];
  std::vector<std::string> layers;
  for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
    const plan::LayerRange& range = module.layers(place.pp, chunk);
    layers.push_back(
        range.count == 0 ? "none" : absl::StrCat(range.first, "-", range.first + range.count - 1));
  }
  return absl::StrCat(plan.module_spec(place.module).name, " tp ", place.tp, " of ", place.width,
                      ", dp ", place.dp, " of ", module.replicas.replicas(), ", pp ", place.pp,
                      " of ", module.pp(), ", layers ", absl::StrJoin(layers, " and "));
}

}  // namespace

void EpochRun::Log(absl::string_view what) const {
  spdlog::info("job={} epoch={} rank={} {}", order_.assign().job(), epoch(), order_.rank(),
               std::string(what));
}

double EpochRun::LogPhase(absl::string_view what) const {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - begun_;
  Log(absl::StrFormat("%s after %.3f s", what, since.count()));
  return since.count();
}

std::string EpochRun::SegmentsText() const {
  if (order_.device_kind() != "gpu") return "";
  const device::AllocatorCounts counts = device::CountAllocations();
  return absl::StrCat("; device memory was taken ", counts.allocations, " times, given back ",
                      counts.frees, " times, for want of it ", counts.retries, " times;");
}

void EpochRun::LogLayout() const {
  std::vector<std::string> places;
  for (const plan::Place& place : plan_.PlacesOf(Rank{order_.rank()}))
    places.push_back(PlaceText(plan_, place));
  Log(absl::StrCat("layout: ", places.empty() ? "no module" : absl::StrJoin(places, "; "),
                   "; one of ", plan_.world, " ranks, on ", order_.device_kind(), " ",
                   order_.device_index(), " of node ", plan_.NodeOf(Rank{order_.rank()}), ", ",
                   order_.threads(), order_.threads() == 1 ? " thread" : " threads", "; plan ",
                   plan_.digest, products_ == nullptr ? "" : "; algorithms of products from ",
                   plan_.layout.products));
}

void EpochRun::LogData() const {
  Log(absl::StrCat("data: ", kept_.source->size(), " samples to train on, ",
                   kept_.validation == nullptr ? 0 : kept_.validation->size(),
                   " to validate with; index ", plan_.layout.data_digest));
}

void EpochRun::LogPeak() const {
  const schedule::MemoryPeak peak = schedule::EstimatePeak(plan_, Rank{order_.rank()});
  Log(absl::StrCat("memory by estimate: steps ", plan::FormatBytes(peak.step.total()),
                   ", of the layouts tried at most ", plan::FormatBytes(peak.tried()),
                   ", for copies to take over ", plan::FormatBytes(peak.to_take_over)));
}

void EpochRun::LogMemory() const {
  const bool gpu = order_.device_kind() == "gpu";
  std::string text =
      absl::StrCat("memory: ", plan::FormatBytes(gpu ? device::MemoryInUse() : ResidentBytesMax()),
                   gpu ? " in use on the device, " : " resident at most, ");
  if (gpu) {
    const device::AllocatorCounts counts = device::CountAllocations();
    absl::StrAppend(&text, plan::FormatBytes(counts.taken_bytes), " of it LibTorch's, ",
                    plan::FormatBytes(counts.used_bytes), " tensors', ",
                    plan::FormatBytes(device::MemoryFree()), " free; ");
  }
  absl::StrAppend(&text, "the plan's estimate is ",
                  plan::FormatBytes(plan::EstimateMemory(plan_, Rank{order_.rank()}).total()));
  Log(text);
}

}  // namespace phalanx::rank
