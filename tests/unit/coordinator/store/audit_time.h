// tests/unit/coordinator/store/audit_time.h: when lines of an audit log were written.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace phalanx::coordinator {

inline const absl::Time kAuditTime = absl::FromUnixMillis(1'700'000'000'123);
// What a line written then begins with.
inline constexpr absl::string_view kAuditTimeText = "2023-11-14T22:13:20.123Z ";

}  // namespace phalanx::coordinator
