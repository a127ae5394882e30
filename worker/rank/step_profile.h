// worker/rank/step_profile.h: what one step of a rank consists of: its kernels by part, and the
// time in which none runs.
//
// Kernels of several streams run at once. So a part has two times: the sum of its kernels', and the
// share of the step that counts as its own, where each instant belongs to the first part, in the
// order of WorkPart, of which a kernel runs. Shares and `waiting` add up to the step; what is
// hidden behind compute is the difference of the two.
//
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace phalanx::rank {

// kOurs: kernels of worker/model and worker/train. kOther: pointwise kernels of libraries.
enum class WorkPart : uint8_t { kAttention, kProducts, kOurs, kOther, kCopies, kCommunication };
inline constexpr size_t kWorkParts = 6;
inline constexpr size_t kGapsMax = 12;
const char* WorkPartName(WorkPart part);

// The part of a kernel, by its demangled name. On CPU the names are those of ATen's operators.
WorkPart PartOfKernel(absl::string_view name);

// A kernel as it ran, on any stream.
struct KernelTime {
  std::string name;
  double begin = 0, end = 0;  // seconds on one clock
};

struct StepProfile {
  struct Part {
    int64_t kernels = 0;
    double seconds = 0;  // of the kernels together
    double share = 0;    // seconds of the step
  };
  struct Kernel {
    std::string name;
    WorkPart part = WorkPart::kOther;
    int64_t count = 0;
    double seconds = 0;
  };
  // A span in which nothing computes: no kernel runs, or only ones of communication.
  struct Gap {
    double at = 0;  // seconds behind the beginning of the step
    double seconds = 0;
    double communication = 0;   // seconds of it in which kernels of communication run
    std::string after, before;  // the kernels that compute around it; "" at an end of the step
  };
  int64_t step = 0;
  double seconds = 0;
  std::array<Part, kWorkParts> parts;  // by WorkPart
  double waiting = 0;                  // seconds in which no kernel runs
  std::vector<Kernel> kernels;         // the longest first
  std::vector<Gap> gaps;               // the longest kGapsMax of them, the longest first
};

// Of the step [begin, end): of a kernel that is only in part within it, that part.
StepProfile BreakDown(int64_t step, const std::vector<KernelTime>& kernels, double begin,
                      double end);

}  // namespace phalanx::rank
