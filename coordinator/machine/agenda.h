// coordinator/machine/agenda.h: whose deadline is next.
//
// Most deadlines are moved later many times before they come (each heartbeat moves its node's), and
// to follow every move would cost more than the moves. So an agenda holds for each key an instant
// that is no later than its deadline: moves to later are not told, and a key that comes up is
// looked at and noted anew.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/base/time.h"

namespace phalanx::coordinator {

// Not thread-safe.
template <typename Key>
class Agenda {
 public:
  // `key` has a deadline, which may be earlier than the one noted before. O(log keys).
  void Note(const Key& key, Instant deadline) {
    if (deadline == absl::InfiniteFuture()) return;
    const auto [noted, added] = times_.try_emplace(key, deadline);
    if (!added) {
      if (noted->second <= deadline) return;
      order_.erase({noted->second, key});
      noted->second = deadline;
    }
    order_.emplace(deadline, key);
  }

  void Forget(const Key& key) {
    const auto noted = times_.find(key);
    if (noted == times_.end()) return;
    order_.erase({noted->second, key});
    times_.erase(noted);
  }

  // No deadline comes before it.
  Instant next() const { return order_.empty() ? absl::InfiniteFuture() : order_.begin()->first; }

  // Takes out whose time may have come, in order of key; each is to be noted again while it has a
  // deadline.
  std::vector<Key> Take(Instant now) {
    std::vector<Key> due;
    while (!order_.empty() && order_.begin()->first <= now) {
      due.push_back(order_.begin()->second);
      times_.erase(due.back());
      order_.erase(order_.begin());
    }
    std::sort(due.begin(), due.end());
    return due;
  }

 private:
  std::map<Key, Instant> times_;
  std::set<std::pair<Instant, Key>> order_;
};

}  // namespace phalanx::coordinator
