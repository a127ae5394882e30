// worker/rank/product_tables.h: the tables of algorithms of products (core/schedule/
// product_table.h) that ranks have: those compiled in, and before them the file that the variable
// PHALANX_PRODUCTS names, if it does. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/schedule/product_table.h"

namespace phalanx::rank {

inline constexpr char kProductsVariable[] = "PHALANX_PRODUCTS";

// The reference of the table for devices that their driver calls so and for this process's
// cuBLASLt; "none" where there is none, or the variable says "none". Errors: those of the file.
absl::StatusOr<std::string> ProductsOfDevice(const std::string& device_name);

// The table that a plan names; nullptr: it names none. `library`: this process's cuBLASLt. Errors:
// of kind kVersionMismatch (core/job/failure.h), with its name, for one that this rank does not
// have, or whose library is another one.
absl::StatusOr<schedule::SharedProductTable> ProductsOfPlan(const std::string& reference,
                                                            int64_t library);

// `--products DEVICE_NAME`: prints "products REFERENCE". Returns an exit code.
int ProductsMain(const std::vector<std::string>& arguments);

}  // namespace phalanx::rank
