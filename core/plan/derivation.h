// core/plan/derivation.h: the version of what ranks derive.
#pragma once

#include <cstdint>

namespace phalanx::plan {

// Version of everything that ranks of one epoch derive from document and layout and have to agree
// on: plan, programs and their tickets, shares, and the form of what they send each other. It goes
// up with any change of these, the constants of costs included: tests/unit/core/schedule/
// derivation_test.cc fails for one that leaves it. What an older build does not read and no older
// layout has, such as failure domains, is in the digest instead: ranks of that build find that
// theirs is another one, and layouts without it go on as they are.
inline constexpr int32_t kDerivation = 5;

}  // namespace phalanx::plan
