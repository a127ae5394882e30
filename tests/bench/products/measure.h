// tests/bench/products/measure.h: what a product costs by each algorithm that cuBLASLt proposes.
// On the current GPU; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/schedule/product_table.h"
#include "tests/bench/profile/meter.h"

namespace phalanx::bench {

struct Measured {
  schedule::ProductKey key;
  schedule::ProductCost before;                        // as it is computed without a table
  std::vector<schedule::ProductAlgorithm> algorithms;  // those that were measured
  std::vector<schedule::ProductCost> costs;            // of each
  int proposed = 0;                                    // by the library
  int refused = 0;                                     // of those: not taken back from a table
  int unequal = 0;                                     // not the same bits again
  int wrong = 0;                                       // another result than without a table
};

// Of random operands. Each algorithm that gives the same bits twice, and within rounding what is
// computed without a table, is timed in a short burst, and the quickest few without pauses, between
// two such measures of what there is without a table. Throws c10::Error.
Measured MeasureProduct(Meter& meter, const schedule::ProductKey& key);

// What is written of it: nullopt where no algorithm is better.
std::optional<schedule::ProductEntry> EntryOf(const Measured& measured, double limit_watts);
// "1.204 ms, 0.843 J -> 1.180 ms, 0.826 J (-2.0 %)": a line for people.
std::string LineOf(const Measured& measured, const std::optional<schedule::ProductEntry>& entry,
                   double limit_watts);

}  // namespace phalanx::bench
