// core/wire/examination_codec.h: examinations of machines and their messages, both ways.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/job/node_examination.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "phalanx/v1/common.pb.h"
#include "phalanx/v1/job_service.pb.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::wire {

using FindingMessages = google::protobuf::RepeatedPtrField<v1::MachineFinding>;

// Texts must be UTF-8.
void ToProto(const std::vector<job::Finding>& findings, FindingMessages* out);

// Of another process, which is not trusted: of more than job::kFindingsMax the first are taken;
// what has no name of a check, a verdict that this version does not know, or a check that came
// before, is passed over; texts are cut to their bounds, and on one
// line.
std::vector<job::Finding> FromProto(const FindingMessages& findings);

// Of a worker, which is not trusted. `received`: when it came, by the clock that the node's is
// compared with; clocks are apart by 100 years at most. A message takes no time at least, and at
// most what the worker says that one takes there and back.
job::NodeExamination FromProto(const v1::MachineExamination& examination, absl::Time received);

void ToProto(const job::NodeExamination& examination, v1::NodeExamination* out);
// Findings and clocks, of a coordinator.
job::NodeExamination FromProto(const v1::NodeExamination& examination);

// At most `bytes_max` bytes, with what CutText says of the rest. What was cut once stays as it is.
std::string KeptText(const std::string& text, size_t bytes_max);

}  // namespace phalanx::wire
