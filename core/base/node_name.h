// core/base/node_name.h: what a node may be called. Pure.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace phalanx {

inline constexpr size_t kNodeNameBytesMax = 253;

// Whether `name` is 1 to kNodeNameBytesMax letters, digits, '.', '_' and '-'.
bool IsNodeName(absl::string_view name);

}  // namespace phalanx
