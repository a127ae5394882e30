#include "worker/rank/step_profiler.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::rank {
namespace {

namespace profiler = torch::autograd::profiler;

constexpr char kDecided[] = "phalanx step decided";

void MarkDecided() { RECORD_USER_SCOPE(kDecided); }

bool OnDevice(const profiler::KinetoEvent& event) {
  return event.deviceType() != c10::DeviceType::CPU;
}
// Nanoseconds since 1970: too many for a double.
int64_t BeginOf(const profiler::KinetoEvent& event) {
  return static_cast<int64_t>(event.startNs());
}
int64_t EndOf(const profiler::KinetoEvent& event) { return static_cast<int64_t>(event.endNs()); }

}  // namespace

int64_t ProfiledStep(const job::JobSpec& spec) {
  return spec.profile && spec.steps > StepProfiler::kLead + 1 ? spec.steps - 1 : 0;
}

StepProfiler::~StepProfiler() {
  if (running_) model::CallTorch("the profile", [] { profiler::disableProfiler(); }).IgnoreError();
}

void StepProfiler::Begin() {
  std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
  std::unordered_set<at::RecordScope> scopes = {at::RecordScope::USER_SCOPE};
  if (gpu_) {
    activities.insert(profiler::ActivityType::CUDA);
  } else {
    scopes.insert(at::RecordScope::FUNCTION);
  }
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, scopes);
  running_ = true;
}

absl::Status StepProfiler::End() {
  running_ = false;
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  std::vector<int64_t> decided;
  for (const profiler::KinetoEvent& event : result->events()) {
    if (!OnDevice(event) && event.name() == kDecided) decided.push_back(BeginOf(event));
  }
  if (decided.size() != 2) {
    return absl::InternalError(absl::StrCat("the profile of step ", step_, " has ", decided.size(),
                                            " marks where it should have 2"));
  }
  std::sort(decided.begin(), decided.end());
  const auto since = [&](int64_t time) { return static_cast<double>(time - decided[0]) * 1e-9; };
  std::vector<KernelTime> kernels;
  for (const profiler::KinetoEvent& event : result->events()) {
    std::string name = event.name();
    if (OnDevice(event) != gpu_ || name == kDecided) continue;
    kernels.push_back({std::move(name), since(BeginOf(event)), since(EndOf(event))});
  }
  profile_ = BreakDown(step_, kernels, 0, since(decided[1]));
  return absl::OkStatus();
}

absl::Status StepProfiler::OnDecided(int64_t step) {
  if (step_ == 0 || profile_.has_value()) return absl::OkStatus();
  return model::CallTorch("the profile", [&]() -> absl::Status {
    if (step == step_ - kLead) {
      begun_ = true;
      Begin();
    }
    if (!running_ || step < step_ - 1) return absl::OkStatus();
    MarkDecided();
    return step == step_ ? End() : absl::OkStatus();
  });
}

}  // namespace phalanx::rank
