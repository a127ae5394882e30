#include "worker/rank/step_profile.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"

namespace phalanx::rank {
namespace {

struct NamePart {
  absl::string_view text;
  WorkPart part;
};

// The first that the name contains decides: "aten::_scaled_dot_product_attention" is no product.
constexpr NamePart kNameParts[] = {
    {"nccl", WorkPart::kCommunication},
    {"phalanx", WorkPart::kOurs},
    {"sdpa", WorkPart::kAttention},
    {"flash", WorkPart::kAttention},
    {"fmha", WorkPart::kAttention},
    {"scaled_dot_product", WorkPart::kAttention},
    {"nvjet", WorkPart::kProducts},
    {"cutlass", WorkPart::kProducts},
    {"cublas", WorkPart::kProducts},
    {"gemm", WorkPart::kProducts},
    {"gemv", WorkPart::kProducts},
    {"xmma", WorkPart::kProducts},
    {"splitKreduce", WorkPart::kProducts},
    {"aten::matmul", WorkPart::kProducts},
    {"aten::linear", WorkPart::kProducts},
    {"aten::mm", WorkPart::kProducts},
    {"aten::bmm", WorkPart::kProducts},
    {"aten::addmm", WorkPart::kProducts},
    {"aten::baddbmm", WorkPart::kProducts},
    {"Memcpy", WorkPart::kCopies},
    {"Memset", WorkPart::kCopies},
    {"direct_copy_kernel", WorkPart::kCopies},
    {"CatArrayBatchedCopy", WorkPart::kCopies},
    {"FillFunctor", WorkPart::kCopies},
    {"aten::copy_", WorkPart::kCopies},
    {"aten::cat", WorkPart::kCopies},
    {"aten::fill_", WorkPart::kCopies},
    {"aten::zero_", WorkPart::kCopies},
};

// A moment at which a kernel begins or ends.
struct Change {
  double time = 0;
  size_t part = 0;
  int32_t by = 0;
};

void AddShares(std::vector<Change> changes, StepProfile& profile) {
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.time, a.part, a.by) < std::tie(b.time, b.part, b.by);
  });
  std::array<int64_t, kWorkParts> running = {};
  double covered = 0;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    running[changes[i].part] += changes[i].by;
    const double span = changes[i + 1].time - changes[i].time;
    // Two kernels of one stream may meet in one moment, in either order.
    const auto first =
        std::find_if(running.begin(), running.end(), [](int64_t n) { return n > 0; });
    if (first == running.end()) continue;
    profile.parts[static_cast<size_t>(first - running.begin())].share += span;
    covered += span;
  }
  profile.waiting = std::max(0.0, profile.seconds - covered);
}

// Seconds of [from, to) in which one of these runs, which are in the order of their beginnings.
double Covered(const std::vector<KernelTime>& kernels, double from, double to) {
  double covered = 0, at = from;
  for (const KernelTime& kernel : kernels) {
    const double begin = std::max(at, kernel.begin), end = std::min(to, kernel.end);
    if (begin >= end) continue;
    covered += end - begin;
    at = end;
  }
  return covered;
}

void AddGaps(const std::vector<KernelTime>& kernels, double begin, double end,
             StepProfile& profile) {
  std::vector<KernelTime> computing, communicating;
  for (const KernelTime& kernel : kernels) {
    const bool speaks = PartOfKernel(kernel.name) == WorkPart::kCommunication;
    if (kernel.end > begin && kernel.begin < end)
      (speaks ? communicating : computing).push_back(kernel);
  }
  const auto earlier = [](const KernelTime& a, const KernelTime& b) { return a.begin < b.begin; };
  std::stable_sort(computing.begin(), computing.end(), earlier);
  std::stable_sort(communicating.begin(), communicating.end(), earlier);
  computing.push_back({.name = "", .begin = end, .end = end});
  StepProfile::Gap gap{.at = begin};
  for (const KernelTime& kernel : computing) {
    if (kernel.begin > gap.at) {
      gap.seconds = kernel.begin - gap.at;
      gap.communication = Covered(communicating, gap.at, kernel.begin);
      gap.before = kernel.name;
      profile.gaps.push_back(gap);
      profile.gaps.back().at -= begin;
    }
    if (kernel.end <= gap.at) continue;
    gap.at = kernel.end;
    gap.after = kernel.name;
  }
  std::stable_sort(
      profile.gaps.begin(), profile.gaps.end(),
      [](const StepProfile::Gap& a, const StepProfile::Gap& b) { return a.seconds > b.seconds; });
  profile.gaps.resize(std::min(profile.gaps.size(), kGapsMax));
}

}  // namespace

const char* WorkPartName(WorkPart part) {
  constexpr const char* kNames[kWorkParts] = {"attention", "products", "ours",
                                              "other",     "copies",   "communication"};
  return kNames[static_cast<size_t>(part)];
}

WorkPart PartOfKernel(absl::string_view name) {
  for (const NamePart& known : kNameParts) {
    if (absl::StrContains(name, known.text)) return known.part;
  }
  return WorkPart::kOther;
}

StepProfile BreakDown(int64_t step, const std::vector<KernelTime>& kernels, double begin,
                      double end) {
  StepProfile profile{.step = step, .seconds = end - begin};
  std::vector<Change> changes;
  std::map<std::string, StepProfile::Kernel> by_name;
  for (const KernelTime& kernel : kernels) {
    const double from = std::max(begin, kernel.begin), to = std::min(end, kernel.end);
    if (from >= to) continue;
    const WorkPart of = PartOfKernel(kernel.name);
    const auto p = static_cast<size_t>(of);
    changes.push_back({from, p, 1});
    changes.push_back({to, p, -1});
    ++profile.parts[p].kernels;
    profile.parts[p].seconds += to - from;
    StepProfile::Kernel& named = by_name[kernel.name];
    named.part = of;
    ++named.count;
    named.seconds += to - from;
  }
  AddShares(std::move(changes), profile);
  AddGaps(kernels, begin, end, profile);
  for (auto& [name, kernel] : by_name) {
    kernel.name = name;
    profile.kernels.push_back(std::move(kernel));
  }
  std::stable_sort(profile.kernels.begin(), profile.kernels.end(),
                   [](const StepProfile::Kernel& a, const StepProfile::Kernel& b) {
                     return a.seconds > b.seconds;
                   });
  return profile;
}

}  // namespace phalanx::rank
