// worker/agent/products.h: which table of algorithms of products this node's ranks have for its
// devices. They are asked themselves: the table goes with the cuBLASLt that they load, which the
// daemon does not.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace phalanx::agent {

// The reference of the table for devices of these names; "" without asking where they are not of
// one kind, or there is no table of it in this build and PHALANX_PRODUCTS names none; "none": there
// is none for their library. Takes as long as the program needs to load. Errors:
// DeadlineExceeded after a minute, when the program is ended; those of SpawnRank; what it says.
absl::StatusOr<std::string> ProductsOfRanks(const std::string& rank_program,
                                            const std::vector<std::string>& device_names);

}  // namespace phalanx::agent
