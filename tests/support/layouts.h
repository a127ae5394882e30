// tests/support/layouts.h: layouts that no planner makes yet.
#pragma once

#include <cstdint>

#include "core/base/prng.h"
#include "core/plan/plan.h"

namespace phalanx::support {

// Gives a module of a healthy plan's layout a random table: every slot keeps some of its ranks,
// some replicas but one have nobody, and replicas have unequal speeds and any order.
void Damage(Prng& prng, const plan::Plan& plan, int32_t module, plan::Layout& layout);

}  // namespace phalanx::support
