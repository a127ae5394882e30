// phalanx-bench-profile --output FILE [--name KIND] [--seconds N]: a profile
// (core/schedule/profile.h) of the slowest GPU of this machine, and of the links between the first
// two where there are two. All runs on one GPU take N seconds (150) together, of at least 30 and at
// most 170, and more where the board's counter of joules does not move twice in one; the kind is
// what the device's name says ("NVIDIA H200": h200).
//
// What a kernel is given is made beforehand, and nothing else may use the board. Prints one line,
// and exits with 0 where there is no GPU to be measured.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/headeronly/version.h>

#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/posix/whole_file.h"
#include "core/schedule/profile.h"
#include "tests/bench/board/board.h"
#include "tests/bench/profile/links.h"
#include "tests/bench/profile/meter.h"
#include "tests/bench/profile/slowest.h"
#include "tests/bench/profile/work.h"
#include "worker/device/cuda_device.h"

namespace phalanx::bench {
namespace {

constexpr double kSecondsOfSlowest = 6;
constexpr double kSeconds = 150, kSecondsMin = 30, kSecondsMax = 170;

struct Options {
  std::string output, name;
  double seconds = kSeconds;
};

// "NVIDIA H100 80GB HBM3": h100.
std::string KindOf(const std::string& device) {
  const std::vector<std::string> words = absl::StrSplit(device, ' ');
  return absl::AsciiStrToLower(words.size() > 1 && words[0] == "NVIDIA" ? words[1] : words[0]);
}

std::string Software() {
  return absl::StrFormat("torch %s, CUDA %d, cuDNN %d", TORCH_VERSION,
                         at::detail::getCUDAHooks().versionCUDART(),
                         at::detail::getCUDAHooks().versionRuntimeCuDNN());
}

int32_t CountDevices() {
  return static_cast<int32_t>(c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount());
}

// "" of one GPU.
std::string WhichOf(int32_t devices, const Slowest& slowest) {
  if (devices < 2) return "";
  return absl::StrFormat("; device %d of %d, the slowest, %.1f %% behind the fastest",
                         slowest.device, devices, 100 * slowest.behind);
}

schedule::ProfileConditions ConditionsOf(const Board& board, const Meter& meter, double clock_mhz,
                                         double seconds, absl::string_view which) {
  return {.device = board.Name(),
          .software = Software(),
          .driver = board.Driver(),
          .source = absl::StrFormat(
              "phalanx-bench profile --seconds %g: each call in short bursts with pauses and "
              "without pauses, of random values, by the functions of training%s",
              seconds, which),
          .power_limit_watts = board.LimitWatts(),
          .temperature_celsius = meter.hottest_celsius(),
          .clock_mhz = clock_mhz};
}

// Of `profile`, whose clock is the fast one. Without a slow one there is no power.
std::optional<schedule::PowerRates> PowerOf(const Work& work, const Clocks& clocks,
                                            double idle_watts, double launch) {
  if (clocks.slow_mhz <= 0) return std::nullopt;
  const auto rates = [&](double clock_mhz, bool joules) {
    schedule::WorkRates all = RatesAt(work, clock_mhz, idle_watts, joules);
    all.launch = joules ? 0 : launch;
    return all;
  };
  return schedule::PowerRates{.idle_watts = idle_watts,
                              .joules = rates(clocks.fast_mhz, true),
                              .slow_clock_mhz = clocks.slow_mhz,
                              .slow = rates(clocks.slow_mhz, false),
                              .slow_joules = rates(clocks.slow_mhz, true)};
}

// Links take no time where they were not measured.
absl::Status AddLinks(double idle_watts, schedule::DeviceProfile& profile) {
  profile.message = profile.collective = {std::numeric_limits<double>::infinity(), 0};
  if (CountDevices() < 2) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Links links, MeasureLinks(idle_watts));
  profile.message = links.message;
  profile.collective = links.collective;
  profile.process->communicators = links.bytes;
  // Of two ranks with one of each of the kinds that there always are.
  const auto with_peer = [](const schedule::CommunicatorBytes& bytes) {
    return bytes.made + bytes.each_peer;
  };
  profile.unestimated_bytes +=
      links.bytes.library + with_peer(links.bytes.control) + with_peer(links.bytes.wide);
  return absl::OkStatus();
}

absl::StatusOr<schedule::DeviceProfile> Measure(const Options& options) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  const int32_t devices = CountDevices();
  ASSIGN_OR_RETURN(const Slowest slowest, FindSlowest(devices, kSecondsOfSlowest));
  RETURN_IF_ERROR(device::UseCudaDevice(slowest.device));
  ASSIGN_OR_RETURN(const std::unique_ptr<Board> board, Board::Open(slowest.device));
  Meter meter(*board, options.seconds / (2 * static_cast<double>(MeasuresOfWork())));
  const Work work = MeasureWork(meter);
  const Clocks clocks = ClocksOf(work);
  schedule::DeviceProfile profile;
  static_cast<schedule::WorkRates&>(profile) =
      RatesAt(work, clocks.fast_mhz, meter.idle_watts(), /*joules=*/false);
  profile.launch = LaunchSeconds();
  profile.name = options.name.empty() ? KindOf(board->Name()) : options.name;
  profile.measured =
      ConditionsOf(*board, meter, clocks.fast_mhz, options.seconds, WhichOf(devices, slowest));
  profile.power = PowerOf(work, clocks, meter.idle_watts(), profile.launch);
  // What is left is the context's and the libraries'.
  at::getDeviceAllocator(at::kCUDA)->emptyCache();
  profile.unestimated_bytes = device::MemoryInUse();
  profile.process = schedule::ProcessBytes{.context = profile.unestimated_bytes};
  RETURN_IF_ERROR(AddLinks(meter.idle_watts(), profile));
  return profile;
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const schedule::DeviceProfile profile, Measure(options));
  const std::string text = schedule::WriteProfile(profile);
  RETURN_IF_ERROR(WriteWholeFile(options.output, text));
  const schedule::ProfileConditions& at = profile.measured;
  std::printf("%s: %s at %.0f MHz", options.output.c_str(), at.device.c_str(), at.clock_mhz);
  if (profile.power.has_value()) {
    std::printf(" and %.0f MHz, %.0f W idle of %.0f W", profile.power->slow_clock_mhz,
                profile.power->idle_watts, at.power_limit_watts);
  }
  std::printf(", at most %.0f degrees\n", at.temperature_celsius);
  return schedule::ReadProfile(text).status();  // measured nonsense does not go unnoticed
}

int Fail(absl::string_view message) {
  std::fprintf(stderr, "phalanx-bench profile: %s\n", std::string(message).c_str());
  return 1;
}

// False: usage.
bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const absl::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--output") {
      options.output = value;
    } else if (flag == "--name") {
      options.name = value;
    } else if (flag != "--seconds" || !absl::SimpleAtod(value, &options.seconds)) {
      return false;
    }
  }
  return argc % 2 == 1 && !options.output.empty() && options.seconds >= kSecondsMin &&
         options.seconds <= kSecondsMax;
}

}  // namespace
}  // namespace phalanx::bench

int main(int argc, char** argv) {
  using namespace phalanx;  // NOLINT(google-build-using-namespace)
  bench::Options options;
  if (!bench::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: phalanx-bench profile --output FILE [--name KIND] [--seconds N]\n"
                 "N: from %.0f to %.0f; default %.0f\n",
                 bench::kSecondsMin, bench::kSecondsMax, bench::kSeconds);
    return 2;
  }
  if (const absl::Status gpu = device::UseCudaDevice(0); !gpu.ok()) {
    if (absl::IsResourceExhausted(gpu)) return bench::Fail(gpu.message());  // somebody else has it
    std::puts("no GPU here");
    return 0;
  }
  try {
    const absl::Status status = bench::Run(options);
    return status.ok() ? 0 : bench::Fail(status.message());
  } catch (const std::exception& error) {
    return bench::Fail(error.what());
  }
}
