// core/base/status.h: short forms for functions that return absl::Status.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace phalanx {

// The same code with `context` before the message; OK stays OK. Payloads are kept.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace phalanx

#define PHALANX_CONCAT_INNER(a, b) a##b
#define PHALANX_CONCAT(a, b) PHALANX_CONCAT_INNER(a, b)

// Returns the status from the enclosing function unless it is OK.
#define RETURN_IF_ERROR(expression)                  \
  do {                                               \
    absl::Status phalanx_status = (expression);      \
    if (!phalanx_status.ok()) return phalanx_status; \
  } while (false)

// ASSIGN_OR_RETURN(auto plan, MakePlan(spec)): declares, or returns the error.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(PHALANX_CONCAT(phalanx_or_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(name, declaration, expression) \
  auto name = (expression);                                  \
  if (!name.ok()) return std::move(name).status();           \
  declaration = *std::move(name)
