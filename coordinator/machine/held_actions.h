// coordinator/machine/held_actions.h: what is told once the record that it follows from is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <variant>
#include <vector>

#include "coordinator/machine/actions.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// A command that waits for its record; the worker's process must still be the same one then.
struct NodeCommand {
  NodeName node;
  Incarnation incarnation;
  Command command;
};
// Empty: a view that a newer one has replaced. NodeMarked: the node is shown so.
using Held = std::variant<std::monostate, Action, NodeCommand, NodeMarked>;

// Not thread-safe.
class HeldActions {
 public:
  void Add(uint64_t record_number, Held held);
  // How much was added for the record, and still waits.
  size_t CountFor(uint64_t record_number) const;
  // In the place of the one that was added for the record after `index` others, which still waits.
  void Replace(uint64_t record_number, size_t index, Held held);
  // Takes out what waits for no record behind `stored`, in order of records.
  std::vector<Held> Take(uint64_t stored);

  bool empty() const { return by_record_.empty(); }
  size_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }  // in memory that nothing else keeps

 private:
  std::map<uint64_t, std::vector<Held>> by_record_;
  size_t count_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace phalanx::coordinator
