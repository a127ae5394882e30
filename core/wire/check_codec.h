// core/wire/check_codec.h: job::NodeCheck and its message, both ways.
#pragma once

#include "core/job/node_check.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::wire {

void ToProto(const job::DeviceCheck& check, v1::DeviceCheck* out);
void ToProto(const job::LoopbackCheck& check, v1::LoopbackCheck* out);
void ToProto(const job::NodeCheck& check, v1::NodeCheck* out);

// A verdict that this version does not know is kNone, a figure that nothing can have is 0, and a
// reason is cut to kCheckReasonBytesMax.
job::DeviceCheck FromProto(const v1::DeviceCheck& check);
job::LoopbackCheck FromProto(const v1::LoopbackCheck& check);
// Of more devices than `devices_max` the first are taken.
job::NodeCheck FromProto(const v1::NodeCheck& check, int devices_max);

}  // namespace phalanx::wire
