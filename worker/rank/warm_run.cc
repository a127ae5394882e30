// What a process can make ready before its first epoch: data, device, libraries, kernels.
#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/preparation.h"
#include "core/schedule/memory_peak.h"
#include "spdlog/spdlog.h"
#include "worker/device/cuda_device.h"
#include "worker/model/products.h"
#include "worker/model/torch_boundary.h"
#include "worker/rank/epoch_run.h"
#include "worker/train/attention_shapes.h"
#include "worker/train/batches.h"
#include "worker/train/warm_up.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kWarmWorkTimeout = absl::Seconds(30);

#ifdef PHALANX_WITH_CUDA
class AloneRendezvous final : public comm::Rendezvous {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    const MutexLock lock(&mu_);
    values_[key] = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, comm::Deadline) override {
    const MutexLock lock(&mu_);
    const auto found = values_.find(key);
    if (found == values_.end()) return absl::NotFoundError(key);
    return found->second;
  }

 private:
  Mutex mu_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
};
#endif

}  // namespace

absl::Status EpochRun::WarmLibraries() {
#ifdef PHALANX_WITH_CUDA
  // The first communicator of a process costs some 1.5 s more than the next: NCCL is loaded, and
  // its kernels.
  AloneRendezvous rendezvous;
  comm::WorldOptions options;
  options.stop = stopping_.get_token();
  if (!order_.address().empty()) options.interface_address = order_.address();
  options.current_stream = device::CurrentStream;
  const plan::CommunicatorSpec alone{
      .use = plan::CommunicatorSpec::Use::kControl, .name = "alone", .ranks = {Rank{0}}};
  return comm::ConnectNccl({alone}, Rank{0}, 1, rendezvous, options).status();
#else
  return absl::UnimplementedError("no GPU support in this build");
#endif
}

absl::Status EpochRun::WarmPlace(const plan::Plan& plan) {
  model::UseProductTable(products_);
  ASSIGN_OR_RETURN(const std::unique_ptr<train::TrainingState> state,
                   train::TrainingState::CreateEmpty(plan, Rank{order_.rank()}, Buffers()));
  {
    const MutexLock lock(&mu_);
    RETURN_IF_ERROR(stopped_);
    training_ = state.get();
  }
  const absl::Cleanup forget = [this] {
    const MutexLock lock(&mu_);
    training_ = nullptr;
  };
  // Behind a loss this rank may stand where items are read, and read none now.
  ASSIGN_OR_RETURN(const std::unique_ptr<train::SampleSource> beside, SourceBeside(plan));
  const absl::Status warmed =
      train::WarmUpAlone(plan, Rank{order_.rank()}, beside != nullptr ? *beside : *kept_.source,
                         *state, LengthMultiple(), kept_.warm);
  RETURN_IF_ERROR(device::AwaitDevice(kWarmWorkTimeout));
  return warmed;
}

// There is room for so many shapes: what the job trains with comes before what it may come to.
absl::Status EpochRun::TryAttention() {
  const train::BufferOptions buffers = Buffers();
  const std::vector<plan::Place> places = plan_.PlacesOf(Rank{order_.rank()});
  const train::Batches batches(plan_, places, *kept_.source, buffers.device, buffers.compute,
                               LengthMultiple());
  return train::PrepareAttention(plan_, batches, places, buffers,
                                 [this] { return stopping_.stop_requested(); });
}

void EpochRun::WarmForLosses() {
  const Rank self{order_.rank()};
  if (plan_.world > plan::kPreparedDevicesMax || plan_.PlacesOf(self).empty()) return;
  const absl::Status tried =
      model::CallTorch("trying attention", [this] { return TryAttention(); });
  if (!tried.ok()) Log(absl::StrCat("has not tried attention: ", tried.message()));
  // What tensors may have of a device, as if the others were like this one.
  const int64_t memory = device::MemoryFree() + device::CountAllocations().taken_bytes;
  const std::vector<int64_t> devices(static_cast<size_t>(plan_.world), memory);
  for (const schedule::LeftBehind& left : schedule::LeftBehindLosses(plan_, devices)) {
    if (left.lost == self || left.plan.PlacesOf(self).empty()) continue;
    const absl::Status warmed =
        model::CallTorch("warming up", [&] { return WarmPlace(left.plan); });
    // It tries more at once than steps have.
    if (!warmed.ok()) {
      Log(absl::StrCat("is not warm for the loss of rank ", left.lost.value, ": ",
                       warmed.message()));
    }
  }
  // Not all that the process needs of the device is LibTorch's.
  if (device::MemoryFree() < plan::kPreparedRoom) {
    const absl::Status given = model::CallTorch("giving memory back", [] {
      device::GiveCachedMemoryBack();
      return absl::OkStatus();
    });
    if (!given.ok()) Log(std::string(given.message()));
  }
  LogPhase("is warm for the loss of others");
}

absl::Status EpochRun::WarmUpDevice() {
  RETURN_IF_ERROR(WarmLibraries());
  LogPhase("has its libraries");
  RETURN_IF_ERROR(WarmPlace(plan_));
  WarmForLosses();
  LogPeak();
  return absl::OkStatus();
}

void EpochRun::WarmUp() {
  const absl::Status warmed = model::CallTorch("warming up", [this]() -> absl::Status {
    at::set_num_threads(std::max(1, order_.threads()));
    const bool gpu = order_.device_kind() == "gpu";
    if (gpu) RETURN_IF_ERROR(device::UseCudaDevice(order_.device_index()));
    LogPhase("has its device");
    RETURN_IF_ERROR(MakePlanOfOrder());
    RETURN_IF_ERROR(OpenData());
    return gpu ? WarmUpDevice() : absl::OkStatus();
  });
  // The epoch does what could not be done, or says why it cannot be.
  if (!warmed.ok()) spdlog::info("not all is warm: {}", warmed.ToString());
  LogPhase("is warm");
}

}  // namespace phalanx::rank
