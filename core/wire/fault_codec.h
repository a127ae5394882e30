// core/wire/fault_codec.h: job::InjectedFault and its message, both ways.
#pragma once

#include "core/job/injected_fault.h"
#include "phalanx/v1/fault.pb.h"

namespace phalanx::wire {

void ToProto(const job::InjectedFault& fault, v1::Fault* out);
// What this version does not know, and what cannot be, stays as it is: CheckFault tells of it.
job::InjectedFault FromProto(const v1::Fault& fault);

}  // namespace phalanx::wire
