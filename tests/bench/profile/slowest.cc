#include "tests/bench/profile/slowest.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "tests/bench/profile/meter.h"
#include "worker/device/cuda_device.h"

namespace phalanx::bench {
namespace {

constexpr int64_t kSide = 8192, kCalls = 20;
// Of the time, before what is counted: the clock follows the power in some tenths of a second.
constexpr double kWarmUp = 1.0 / 3;

// Seconds of one product.
absl::StatusOr<double> Pace(int32_t device, double seconds) {
  RETURN_IF_ERROR(device::UseCudaDevice(device));
  using Clock = std::chrono::steady_clock;
  const auto since = [begin = Clock::now()] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  try {
    const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
    const at::Tensor a = at::randn({kSide, kSide}, options), b = at::randn_like(a);
    at::Tensor product = at::empty_like(a);
    double busy = 0;
    int64_t calls = 0;
    while (since() < seconds || calls == 0) {
      const bool counts = since() > kWarmUp * seconds;
      const double burst = Burst([&] { at::mm_out(product, a, b); }, kCalls);
      if (!counts) continue;
      busy += burst;
      calls += kCalls;
    }
    return busy / static_cast<double>(calls);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace

absl::StatusOr<Slowest> FindSlowest(int32_t devices, double seconds) {
  if (devices < 2) return Slowest();
  std::vector<absl::StatusOr<double>> paces(static_cast<size_t>(devices),
                                            absl::UnknownError("not run"));
  {
    std::vector<std::jthread> threads;
    for (int32_t device = 0; device < devices; ++device) {
      threads.emplace_back(
          [&, device] { paces[static_cast<size_t>(device)] = Pace(device, seconds); });
    }
  }
  Slowest slowest;
  double least = 0, most = 0;
  for (int32_t device = 0; device < devices; ++device) {
    ASSIGN_OR_RETURN(const double pace, paces[static_cast<size_t>(device)]);
    least = device == 0 ? pace : std::min(least, pace);
    if (pace <= most) continue;
    most = pace;
    slowest.device = device;
  }
  slowest.behind = most / least - 1;
  return slowest;
}

}  // namespace phalanx::bench
