// core/job/node_examination.h: what an examination of a node's machine found, in words.
//
// The machine itself is looked at by core/examine; here is what is told of it, and how much of that
// is taken from another process. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/time.h"

namespace phalanx::job {

struct Finding {
  // Numbered one below v1.MachineFinding.Verdict.
  enum class Verdict : uint8_t {
    kOk = 0,
    kSkipped = 1,  // nothing here to look at
    kWarning = 2,  // jobs run, some of them worse
    kProblem = 3,  // some job will fail of it
  };
  std::string check;  // "driver"
  Verdict verdict = Verdict::kOk;
  std::string found;  // a sentence
  std::string next;   // what to do; empty: nothing
  friend bool operator==(const Finding&, const Finding&) = default;
};
absl::string_view ToString(Finding::Verdict verdict);  // "ok", ...
// A warning or a problem.
bool IsTrouble(const Finding& finding);

// Of one examination, as processes tell each other: the first findings are taken, and texts are
// cut.
inline constexpr int kFindingsMax = 20;
inline constexpr size_t kCheckNameBytesMax = 32;
inline constexpr size_t kFoundBytesMax = 256;
inline constexpr size_t kNextBytesMax = 512;

// Of the folder that a worker keeps logs and data indexes in (--state). Where it is a problem no
// job can start on the node.
inline constexpr char kStateFolderCheck[] = "state folder";

// 1 to kCheckNameBytesMax of a-z, 0-9, blank and '-'.
bool IsCheckName(absl::string_view name);

// As a coordinator keeps it of each node.
struct NodeExamination {
  std::vector<Finding> findings;  // at most kFindingsMax, each of another check
  Instant received;               // by the coordinator's clock
  // By how much the node's clock was ahead of the coordinator's then; below zero: behind. It is
  // somewhere in [ahead_min, ahead_max], which are as far apart as a message takes there and back.
  absl::Duration ahead_min, ahead_max;
  friend bool operator==(const NodeExamination&, const NodeExamination&) = default;
};

}  // namespace phalanx::job
