// tests/bench/faults/throughput.h: whether steps are as fast behind losses as before them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace phalanx::e2e {

// Of pairs of medians: of steps without losses, and of steps of the same layout behind them. A pair
// is of one job, before its first loss and behind its last return, or of one behind its losses and
// one that has had none, at the same time. A machine that does other things as well is slower at
// one time than at another; what lies between the two times is in each pair, with either sign, and
// so is not taken for the losses' work where there are enough pairs. The ratio is the median of
// those of the pairs; the interval around it follows from their order alone (a sign test at 95 %),
// and is there from six pairs on.
//
// Not thread-safe.
class Throughput {
 public:
  static constexpr double kBack = 0.99;

  // Seconds of many steps, of both at least one.
  void Add(std::vector<double> before, std::vector<double> after);
  void Add(const Throughput& other);
  // Whether there are enough pairs to tell anything.
  bool Tells() const { return Bounds().has_value(); }
  // Whether kBack of the throughput are back: all of the interval says so, none of it does, or the
  // pairs are too few, or too far apart, for either.
  enum class Verdict : uint8_t { kShown, kRuledOut, kNeither };
  Verdict IsBack() const;
  bool IsRuledOut() const { return IsBack() == Verdict::kRuledOut; }
  // Ratio, its interval (null where there are not enough pairs), the verdict, what they are of.
  nlohmann::ordered_json ToJson() const;
  std::string ToWords() const;  // "99.8 % of the throughput (98.9 to 100.6, 12 pairs)"
  // "that 99 % are back is neither shown nor ruled out"
  std::string VerdictWords() const;
  // Milliseconds, of all steps behind the last returns; 0: there are none.
  double HealthyStep() const;

 private:
  struct Interval {
    double low = 0, high = 0;
  };
  std::optional<Interval> Bounds() const;  // nullopt: too few pairs

  std::vector<double> ratios_;  // before / after, ascending
  std::vector<double> after_;   // seconds
  int64_t steps_ = 0;           // of both sides of all pairs
};

}  // namespace phalanx::e2e
