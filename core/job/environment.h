// core/job/environment.h: what a job may put into the environment of its ranks.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::job {

// Why a job may not set the variable: a phrase for people; nullopt: it may. Thread-safe.
std::optional<std::string> WhyNotVariable(absl::string_view name);
// The same of a secret, which is what a file of that name in the node's folder holds.
std::optional<std::string> WhyNotSecret(absl::string_view name, absl::string_view file);

}  // namespace phalanx::job
