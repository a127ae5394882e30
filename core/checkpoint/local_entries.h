// core/checkpoint/local_entries.h: where entries lie in the memory of a rank.
//
// State of a rank is of runs of its flat buffers (core/plan/parameters.h), laid end to end; weights
// that do not train are one run. Pieces turn runs into rectangles of logical tensors, which any
// layout can look for: a writer makes entries of them, a reader asks an EntryIndex for them.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/checkpoint/entry.h"
#include "core/plan/parameters.h"
#include "core/plan/units.h"

namespace phalanx::checkpoint {

struct LocalEntry {
  Entry entry;           // without kind, type, offset and digest
  int64_t position = 0;  // of its first element, counted over the runs
  int64_t stride = 0;    // elements from the begin of one of its lines to that of the next
};

enum class Copies : uint8_t {
  kLed,  // what the rank leads (core/plan/copies.h): copies of one replica are written once
  kAll,  // what it follows too
};

// All that stands in the runs but padding, run by run, none with more than kEntryElementsMax
// elements. Together the runs cover each element at most once.
std::vector<LocalEntry> EntriesOf(const plan::StageParameters& parameters,
                                  const std::string& module, absl::Span<const plan::UnitRange> runs,
                                  Copies copies);

// Where the elements of a part of an entry lie: that of its row r and column c at first + r * row +
// c * col.
struct Steps {
  int64_t first = 0, row = 0, col = 0;
};
// In the entry's own bytes, as the file has them. `part` lies in the entry.
Steps StepsIn(const Entry& entry, const Rectangle& part);
// In the runs.
Steps StepsIn(const LocalEntry& local, const Rectangle& part);

}  // namespace phalanx::checkpoint
