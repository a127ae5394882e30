// core/schedule/built_in_profiles.h: the texts of core/schedule/profiles, compiled in. Pure.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace phalanx::schedule {

// One a file, in the order of their names.
absl::Span<const absl::string_view> BuiltInProfiles();

}  // namespace phalanx::schedule
