#include "tests/sim/cluster/timeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"

namespace phalanx::sim {

void Timeline::At(Instant when, std::function<void()> what) {
  // Whole nanoseconds, which is what messages and records hold.
  const Instant whole = absl::FromUnixNanos(absl::ToUnixNanos(when));
  when = whole < when ? whole + absl::Nanoseconds(1) : whole;
  heap_.push_back({std::max(when, now_), ++number_, std::move(what)});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

bool Timeline::RunNext() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), Later);
  const Entry next = std::move(heap_.back());
  heap_.pop_back();
  now_ = next.when;
  ++events_;
  next.what();
  return true;
}

absl::Duration Timeline::Between(absl::Duration low, absl::Duration high) {
  return low + (high - low) * prng_.Uniform();
}

absl::Duration Timeline::Exponential(absl::Duration mean) {
  return mean * -std::log(1 - prng_.Uniform());
}

void Timeline::Note(const char* format, int64_t a, int64_t b, int64_t c, int64_t d,
                    std::string text) {
  hash_ = Mix64(hash_ ^ static_cast<uint64_t>(absl::ToUnixNanos(now_)));
  for (const int64_t number : {a, b, c, d}) hash_ = Mix64(hash_ ^ static_cast<uint64_t>(number));
  hash_ = Mix64(hash_ ^ StreamOf(format) ^ Mix64(StreamOf(text)));
  if (notes_.size() == kNotesMax) notes_.pop_front();
  notes_.push_back({now_, format, {a, b, c, d}, std::move(text)});
}

std::string Timeline::Tail(size_t count) const {
  std::string tail;
  for (size_t i = notes_.size() - std::min(count, notes_.size()); i < notes_.size(); ++i) {
    const Line& line = notes_[i];
    absl::StrAppend(&tail, absl::FormatTime("%H:%M:%E6S ", line.when, absl::UTCTimeZone()),
                    absl::Substitute(line.format, line.numbers[0], line.numbers[1], line.numbers[2],
                                     line.numbers[3], line.text),
                    "\n");
  }
  return tail;
}

}  // namespace phalanx::sim
