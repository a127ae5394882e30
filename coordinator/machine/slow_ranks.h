// coordinator/machine/slow_ranks.h: which ranks of an epoch take longer for their work than those
// that do the same.
//
// Ranks say how long they work for a step (the median of their last steps, waits left out) and
// which of them do the same (core/plan/equal_work.h). Each is compared with the median of the
// others, in rounds: each time as many have spoken as there are in the group. It is slow once it
// has taken kRatioSlow times as long, and kExcessMin longer, in kRounds rounds in a row and over
// kSteps steps; it is so until it has taken less than kRatioOver times as long for as many. So a
// hiccup names nobody, nor does what all ranks do at one time, nor do steps that stand still. Of
// two ranks the one that takes longer is the slow one; a rank without a like is never judged.
//
// A sample is O(1), a round O(n log n) of n samples. Pure: equal samples give equal verdicts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace phalanx::coordinator {

// What a rank said last, at `step` of the epoch. seconds > 0; equal != 0.
struct WorkSample {
  int32_t rank = 0;
  uint64_t equal = 0;
  int64_t step = 0;
  double seconds = 0;
};

// Not thread-safe.
class SlowRanks {
 public:
  static constexpr double kRatioSlow = 1.3, kRatioOver = 1.15;
  static constexpr double kExcessMin = 0.005;  // seconds a step: less than that is scheduling
  static constexpr int32_t kRounds = 3;
  static constexpr int64_t kSteps = 16;  // as many as a rank's median is of

  // Against the median of the others.
  struct Verdict {
    bool slow = false;
    double seconds = 0, others_seconds = 0;  // of work a step
    int32_t others = 0;
    double ratio() const { return seconds / others_seconds; }
  };
  struct Change {
    int32_t rank = 0;
    Verdict verdict;
  };

  // Returns what it changes: ranks that are slow from now on, or not any more, in order.
  std::vector<Change> Add(const WorkSample& sample);

  // Those that are slow now, with what the last round found.
  const std::map<int32_t, Verdict>& slow() const { return slow_; }

 private:
  struct Member {
    double seconds = 0;
    int64_t step = 0;
    // Since when it has looked otherwise than its verdict says; -1: it does not.
    int64_t since = -1;
    int32_t rounds = 0;
  };
  struct Group {
    std::map<int32_t, Member> members;  // by rank
    size_t fresh = 0;                   // samples since the last round
  };
  std::vector<Change> Judge(Group& group);
  // Whether a member that looks otherwise, or does not, has done so for long enough.
  static bool Turns(Member& member, bool otherwise);

  std::map<uint64_t, Group> groups_;
  std::map<int32_t, uint64_t> group_of_;
  std::map<int32_t, Verdict> slow_;
};

}  // namespace phalanx::coordinator
