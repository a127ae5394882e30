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
// Samples differ in length, and ranks may be dealt more or less of them. So ranks also say how long
// they work for a floating-point operation, and it is the smaller one of the two ratios that
// counts. Of sound ranks one is about 1 or less, whatever they were given: where a step takes
// a + b * work, who had more to do takes longer for the step, and less for each operation.
//
// A rank that was slow before, and is dealt less since, is *presumed* slow: it is judged for each
// operation alone, and with the root of the ratio that it had for a bound, since what does not
// depend on samples weighs more in few of them. Of kExcessMin it has to fall below half of what is
// left of it by that ratio: a step of fewer samples is a shorter one, whoever computes it.
//
// A sample is O(1), a round O(n log n) of n samples. Pure: equal samples give equal verdicts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace phalanx::coordinator {

// What a rank said last, at `step` of the epoch. seconds > 0; equal != 0: that of ranks with which
// it is compared.
struct WorkSample {
  int32_t rank = 0;
  uint64_t equal = 0;
  int64_t step = 0;
  double seconds = 0;
  double per_gflop = 0;  // seconds for 10^9 operations; 0: not known, or the same as for the others
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
    // Of work a step, and what it would be at the pace of the others.
    double seconds = 0, others_seconds = 0;
    int32_t others = 0;
    double ratio() const { return seconds / others_seconds; }
  };
  struct Change {
    int32_t rank = 0;
    Verdict verdict;
  };

  // The rank was slow by this ratio, above 1, and is dealt less since. It is until it is found not
  // to be any more; slow() has it from the first round on.
  void Presume(int32_t rank, double ratio) { presumed_[rank] = ratio; }

  // Returns what it changes: ranks that are slow from now on, or not any more, in order.
  std::vector<Change> Add(const WorkSample& sample);

  // Those that are slow now, with what the last round found.
  const std::map<int32_t, Verdict>& slow() const { return slow_; }

 private:
  struct Member {
    double seconds = 0, per_gflop = 0;
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
  // What all members of a group said last, each ascending.
  struct Sorted {
    std::vector<double> seconds, per_gflop;
  };
  // What this round finds of a member, `slow` as it was before.
  Verdict Find(const Sorted& sorted, int32_t rank, const Member& member) const;
  bool LooksOtherwise(int32_t rank, const Verdict& verdict) const;
  // Whether a member that looks otherwise, or does not, has done so for long enough.
  static bool Turns(Member& member, bool otherwise);

  std::map<uint64_t, Group> groups_;
  std::map<int32_t, uint64_t> group_of_;
  std::map<int32_t, Verdict> slow_;
  std::map<int32_t, double> presumed_;  // by rank: its ratio
};

}  // namespace phalanx::coordinator
