// coordinator/wire/job_codec.h: published views as the messages of JobService.
#pragma once

#include "coordinator/machine/actions.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::coordinator {

// With the document unless it is to be left out (lists).
void ToProto(const JobView& job, bool with_document, v1::JobStatus* out);
// What the message does not carry of the request is as if it was never set.
JobView FromProto(const v1::JobStatus& status);
// Without its examination.
void ToProto(const NodeView& node, v1::NodeStatus* out);
void ToProto(const MarkedNode& node, v1::DrainNodeResponse* out);

}  // namespace phalanx::coordinator
