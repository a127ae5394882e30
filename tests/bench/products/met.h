// tests/bench/products/met.h: which products of matrices a job computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/schedule/product_table.h"

namespace phalanx::bench {

struct Weighted {
  schedule::ProductKey key;
  int64_t count = 0;  // of a few steps, of all ranks
  double flops() const { return static_cast<double>(count) * schedule::FlopsOf(key); }
};

// Trains a few steps of the job through `phalanx run` beside this executable, without a table, and
// reads what its ranks met, most work first. Before this process touches a GPU: the ranks need
// theirs. Errors: what went wrong.
absl::StatusOr<std::vector<Weighted>> ProductsOfJob(const std::string& job);
// Of several jobs.
std::vector<Weighted> Merged(const std::vector<std::vector<Weighted>>& jobs);

}  // namespace phalanx::bench
