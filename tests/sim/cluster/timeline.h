// tests/sim/cluster/timeline.h: simulated time, the one source of chance, and what has happened.
//
// Whatever happens is a closure at an instant; closures of one instant run in the order in which
// they were asked for. All chance comes from one generator, so a seed gives one run, and the hash
// of the trace shows that it did.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/prng.h"
#include "core/base/time.h"

namespace phalanx::sim {

class Timeline {
 public:
  explicit Timeline(uint64_t seed) : prng_(seed) {}

  Instant now() const { return now_; }
  void At(Instant when, std::function<void()> what);
  void After(absl::Duration delay, std::function<void()> what) {
    At(now_ + delay, std::move(what));
  }
  // The earliest closure runs. False: there is none.
  bool RunNext();
  uint64_t events() const { return events_; }

  // Chance.
  uint64_t Below(uint64_t bound) { return prng_.Below(bound); }
  bool Chance(double probability) { return prng_.Uniform() < probability; }
  absl::Duration Between(absl::Duration low, absl::Duration high);
  // Of the time until something that happens so often on average.
  absl::Duration Exponential(absl::Duration mean);

  // Something worth reading has happened: `format` with $0 to $4 for the numbers and the text. It
  // must be a literal.
  void Note(const char* format, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0,
            std::string text = "");
  uint64_t hash() const { return hash_; }
  // The last `count` lines at most.
  std::string Tail(size_t count) const;

 private:
  static constexpr size_t kNotesMax = 400;
  struct Entry {
    Instant when;
    uint64_t number = 0;
    std::function<void()> what;
  };
  // Of a heap whose first entry is the earliest.
  static bool Later(const Entry& a, const Entry& b) {
    return a.when != b.when ? a.when > b.when : a.number > b.number;
  }
  struct Line {
    Instant when;
    const char* format;
    int64_t numbers[4];
    std::string text;
  };

  Prng prng_;
  Instant now_ = absl::FromUnixSeconds(1'700'000'000);
  std::vector<Entry> heap_;
  uint64_t number_ = 0, events_ = 0;
  std::deque<Line> notes_;
  uint64_t hash_ = 0;
};

}  // namespace phalanx::sim
