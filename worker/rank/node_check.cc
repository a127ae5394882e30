#include "worker/rank/node_check.h"

#include <ATen/ATen.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/cut_text.h"
#include "core/posix/run_delay.h"
#include "core/wire/check_codec.h"
#include "google/protobuf/util/json_util.h"
#include "phalanx/v1/common.pb.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/loopback_check.h"

namespace phalanx::rank {
namespace {

using job::CheckVerdict;
using job::DeviceCheck;

// Of a device: as much as this, and an eighth of what is free.
constexpr int64_t kCpuMemoryBytes = int64_t{16} << 20, kGpuMemoryBytes = int64_t{256} << 20;
constexpr int64_t kMemoryBytesMin = int64_t{1} << 20;
// Sums of so many products of -1, 0 and 1, and all partial sums, are exact in bf16.
constexpr int64_t kInner = 256;
constexpr int64_t kCpuSide = 256, kGpuSide = 1024;
// A GPU's operands are so many of those beside each other, and its product their square: enough
// that its rate is not that of launches.
constexpr int64_t kGpuTiles = 4;
constexpr int kGpuProducts = 16;
constexpr absl::Duration kDevicePatience = absl::Seconds(30);

// What is found to be wrong: the device has failed.
struct Fault {
  std::string what;
};
// Nobody can say.
struct NoVerdict {
  std::string why;
};

bool Wants(const NodeCheckOptions& options, int32_t device, absl::string_view fault) {
  if (options.faults.empty()) return false;
  std::ifstream file(options.faults);
  const std::string wanted = absl::StrCat(device, " ", fault);
  for (std::string line; std::getline(file, line);) {
    if (line == wanted) return true;
  }
  return false;
}

at::Device Target(const NodeCheckOptions& options, int32_t device) {
  if (options.device_kind != "gpu") return at::kCPU;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device)};
}

void Await(const at::Device& target) {
  if (!target.is_cuda()) return;
  const absl::Status status = device::AwaitDevice(kDevicePatience);
  if (!status.ok()) throw Fault{std::string(status.message())};
}

// Seconds that this thread has run.
double ThreadSeconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(used));
}

// Seconds; never 0. Those in which this thread could run and others did are not the device's. The
// kernel notes some of them only later, so that they may be more than there were: what the thread
// has run is the least.
template <typename Work>
double Time(const at::Device& target, Work work) {
  const absl::Duration delay_before = RunDelay("thread-self");
  const double used_before = ThreadSeconds();
  const auto begin = std::chrono::steady_clock::now();
  work();
  Await(target);
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  const absl::Duration delay = RunDelay("thread-self") - delay_before;
  return std::max({absl::ToDoubleSeconds(took - delay), ThreadSeconds() - used_before, 1e-9});
}

// Words without a period, so that one that lands elsewhere is found.
at::Tensor Pattern(int64_t words, uint64_t seed) {
  at::Tensor pattern = at::empty({words}, at::kLong);
  int64_t* out = pattern.data_ptr<int64_t>();
  uint64_t state = seed;
  for (int64_t i = 0; i < words; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    out[i] = static_cast<int64_t>(state ^ (state >> 29));
  }
  return pattern;
}

void Compare(const at::Tensor& read, const at::Tensor& written, absl::string_view what) {
  if (at::equal(read, written)) return;
  const at::Tensor wrong = at::ne(read, written);
  const int64_t first = wrong.to(at::kInt).argmax().item<int64_t>();
  throw Fault{absl::StrFormat(
      "%s: %d of %d words are not what was written, the first is word %d: 0x%016x instead of "
      "0x%016x",
      what, wrong.sum().item<int64_t>(), read.numel(), first,
      static_cast<uint64_t>(read[first].item<int64_t>()),
      static_cast<uint64_t>(written[first].item<int64_t>()))};
}

void CheckMemory(const NodeCheckOptions& options, const at::Device& target, int32_t peer,
                 DeviceCheck& check) {
  int64_t bytes = kCpuMemoryBytes;
  if (target.is_cuda()) {
    bytes = std::min(kGpuMemoryBytes, device::MemoryFree() / 8);
    if (bytes < kMemoryBytesMin) throw NoVerdict{"somebody else has all of its memory"};
  }
  // Else copies would be as fast as the driver copies in the host's memory, not as its link is.
  const auto pinned = [&](const at::Tensor& words) {
    try {
      return target.is_cuda() ? words.pin_memory() : words;
    } catch (const c10::Error&) {  // the host's limits are not the device's fault
      return words;
    }
  };
  const at::Tensor pattern = Pattern(bytes / 8, 0x9E3779B97F4A7C15ULL + check.device);
  for (const bool inverted : {false, true}) {
    const at::Tensor written = pinned(inverted ? at::bitwise_not(pattern) : pattern);
    at::Tensor there = at::empty({written.numel()}, written.options().device(target));
    at::Tensor back = pinned(at::zeros_like(written));
    Await(target);
    const double to = Time(target, [&] { there.copy_(written); });
    const double from = Time(target, [&] { back.copy_(there); });
    if (inverted && Wants(options, check.device, "memory")) back[7] += 1;
    Compare(back, written, "memory");
    const auto size = static_cast<double>(bytes);
    check.memory_bytes = bytes;
    check.to_bytes_per_second = std::max(check.to_bytes_per_second, size / to);
    check.from_bytes_per_second = std::max(check.from_bytes_per_second, size / from);
    if (peer < 0) continue;
    const at::Tensor at_peer = written.to(Target(options, peer));
    there.zero_();
    Await(target);
    const double across = Time(target, [&] { there.copy_(at_peer); });
    if (inverted && Wants(options, check.device, "copy")) there[7] += 1;
    Compare(there.cpu(), written, absl::StrCat("copied from device ", peer));
    check.peer = peer;
    check.peer_bytes_per_second = std::max(check.peer_bytes_per_second, size / across);
  }
}

// -1, 0 and 1.
std::vector<int32_t> Entries(int64_t count, uint64_t seed) {
  std::vector<int32_t> entries(static_cast<size_t>(count));
  uint64_t state = seed;
  for (int32_t& entry : entries) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    entry = static_cast<int32_t>((state >> 33) % 3) - 1;
  }
  return entries;
}

// Of integers, without any library.
std::vector<int32_t> KnownProduct(const std::vector<int32_t>& left,
                                  const std::vector<int32_t>& right, int64_t side) {
  std::vector<int32_t> product(static_cast<size_t>(side * side));
  for (int64_t row = 0; row < side; ++row) {
    int32_t* out = product.data() + row * side;
    for (int64_t inner = 0; inner < kInner; ++inner) {
      const int32_t factor = left[static_cast<size_t>(row * kInner + inner)];
      const int32_t* from = right.data() + inner * side;
      for (int64_t column = 0; column < side; ++column) out[column] += factor * from[column];
    }
  }
  return product;
}

at::Tensor Matrix(std::vector<int32_t>& entries, int64_t rows, int64_t columns) {
  return at::from_blob(entries.data(), {rows, columns}, at::kInt);
}

void CheckArithmetic(const NodeCheckOptions& options, const at::Device& target,
                     DeviceCheck& check) {
  const int64_t side = target.is_cuda() ? kGpuSide : kCpuSide;
  std::vector<int32_t> left = Entries(side * kInner, 1), right = Entries(kInner * side, 2);
  std::vector<int32_t> known = KnownProduct(left, right, side);
  const at::Tensor want = Matrix(known, side, side);
  const int64_t tiles = target.is_cuda() ? kGpuTiles : 1;
  const std::vector<at::ScalarType> types =
      target.is_cuda() ? std::vector<at::ScalarType>{at::kDouble, at::kFloat, at::kBFloat16}
                       : std::vector<at::ScalarType>{at::kDouble, at::kFloat};
  for (const at::ScalarType type : types) {
    const at::Tensor a = Matrix(left, side, kInner).to(type).to(target).repeat({tiles, 1});
    const at::Tensor b = Matrix(right, kInner, side).to(type).to(target).repeat({1, tiles});
    at::Tensor product = at::mm(a, b);  // the first one loads what the others have
    Await(target);
    const int products = target.is_cuda() ? kGpuProducts : 1;
    const double seconds = Time(target, [&] {
      for (int i = 0; i < products; ++i) product = at::mm(a, b);
    });
    check.operations_per_second =
        2.0 * static_cast<double>(product.numel() * kInner) * products / seconds;
    if (Wants(options, check.device, "arithmetic")) product[0][1] += 1;
    const at::Tensor of_tile = want.to(type).to(target).view({1, side, 1, side});
    const at::Tensor wrong = at::ne(product.view({tiles, side, tiles, side}), of_tile);
    const int64_t count = wrong.sum().item<int64_t>();
    if (count == 0) continue;
    const int64_t row_entries = tiles * side;
    const int64_t first = wrong.view({-1}).to(at::kInt).argmax().item<int64_t>();
    const int64_t row = first / row_entries, column = first % row_entries;
    throw Fault{absl::StrFormat(
        "arithmetic: %d of %d entries of a product in %s are wrong, the first in row %d, column "
        "%d: %g instead of %d",
        count, product.numel(), at::toString(type), row, column,
        product[row][column].item<double>(),
        known[static_cast<size_t>(row % side * side + column % side)])};
  }
}

void Check(const NodeCheckOptions& options, int32_t peer, DeviceCheck& check) {
  while (Wants(options, check.device, "hang")) absl::SleepFor(absl::Milliseconds(100));
  if (Wants(options, check.device, "error")) throw Fault{"an error, as --check-faults wants it"};
  const at::Device target = Target(options, check.device);
  if (target.is_cuda()) {
    const absl::Status used = device::UseCudaDevice(check.device);
    if (absl::IsUnimplemented(used) || absl::IsResourceExhausted(used))
      throw NoVerdict{std::string(used.message())};
    if (!used.ok()) throw Fault{std::string(used.message())};
  }
  CheckMemory(options, target, peer, check);
  CheckArithmetic(options, target, check);
  check.verdict = CheckVerdict::kPassed;
  job::JudgeRates(target.is_cuda(), check);
}

void Print(const v1::NodeCheck& said, std::ostream& out) {
  std::string line;
  // Of our own message: it always can be written.
  if (google::protobuf::util::MessageToJsonString(said, &line).ok())
    out << line << "\n" << std::flush;
}

std::string FirstLine(absl::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// As allocators of the host, CUDA and cuBLAS word it.
bool TellsOfMemory(absl::string_view text) {
  return absl::StrContains(text, "can't allocate memory") ||
         absl::StrContains(text, "out of memory") ||
         absl::StrContains(text, "CUBLAS_STATUS_ALLOC_FAILED");
}

}  // namespace

std::pair<CheckVerdict, std::string> VerdictOfCurrentException(bool gpu) {
  // More derived types first.
  try {
    throw;
  } catch (const Fault& fault) {
    return {CheckVerdict::kFailed, fault.what};
  } catch (const NoVerdict& none) {
    return {CheckVerdict::kNone, none.why};
  } catch (const c10::OutOfMemoryError& error) {
    return {CheckVerdict::kNone, FirstLine(error.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return {CheckVerdict::kNone, "there is no memory for a check"};
  } catch (const c10::Error& error) {
    const std::string said = FirstLine(error.what_without_backtrace());
    const bool of_device = gpu || dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr;
    return {of_device && !TellsOfMemory(said) ? CheckVerdict::kFailed : CheckVerdict::kNone, said};
  } catch (const std::exception& error) {
    return {CheckVerdict::kNone, FirstLine(error.what())};
  }
}

DeviceCheck CheckDevice(const NodeCheckOptions& options, int32_t device, int32_t peer) {
  DeviceCheck check{.device = device};
  try {
    Check(options, peer, check);
  } catch (...) {
    auto [verdict, reason] = VerdictOfCurrentException(options.device_kind == "gpu");
    check.verdict = verdict;
    check.reason = CutText(std::move(reason), job::kCheckReasonBytesMax - 64);
  }
  return check;
}

void CheckNode(const NodeCheckOptions& options, std::ostream& out) {
  int32_t peer = -1;
  for (const int32_t device : options.devices) {
    const DeviceCheck check = CheckDevice(options, device, peer);
    v1::NodeCheck said;
    wire::ToProto(check, said.add_devices());
    Print(said, out);
    if (check.verdict == CheckVerdict::kNone)
      out << "device " << device << ": no verdict: " << check.reason << "\n";
    const bool failed = check.verdict == CheckVerdict::kFailed;
    if (failed && options.device_kind == "gpu" && device != options.devices.back()) return;
    const bool sound =
        check.verdict == CheckVerdict::kPassed || check.verdict == CheckVerdict::kSlow;
    // CPU slots are of one memory: there is nothing between them.
    if (sound && options.device_kind == "gpu") peer = device;
  }
  v1::NodeCheck said;
  wire::ToProto(CheckLoopback(), said.mutable_loopback());
  Print(said, out);
}

int CheckNodeMain(const std::vector<std::string>& arguments) {
  constexpr int kUsage = 2;
  NodeCheckOptions options;
  const bool counted = arguments.size() == 2 || arguments.size() == 3;
  bool sound = counted && (arguments[0] == "cpu" || arguments[0] == "gpu");
  if (sound) {
    options.device_kind = arguments[0];
    for (const absl::string_view device : absl::StrSplit(arguments[1], ',')) {
      sound = sound && absl::SimpleAtoi(device, &options.devices.emplace_back()) &&
              options.devices.back() >= 0;
    }
    if (arguments.size() == 3) options.faults = arguments[2];
  }
  if (!sound) {
    std::fprintf(stderr,
                 "--check-devices takes cpu or gpu, DEVICE,DEVICE... and a file of faults\n");
    return kUsage;
  }
  CheckNode(options, std::cout);
  return 0;
}

}  // namespace phalanx::rank
