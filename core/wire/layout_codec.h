// core/wire/layout_codec.h: plan::Layout and its message, both ways; and plan::Placement.
#pragma once

#include "absl/status/statusor.h"
#include "core/plan/layout.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::wire {

void ToProto(const plan::Layout& layout, v1::Layout* out);
void ToProto(const plan::Placement& placement, v1::Placement* out);
plan::Placement FromProto(const v1::Placement& placement);
plan::RankList RanksOf(const google::protobuf::RepeatedField<int32_t>& values);

// Whether the layout fits a document is plan::Expand's to say. Errors: InvalidArgument for a
// schedule or a state home that this version does not know, naming it.
absl::StatusOr<plan::Layout> FromProto(const v1::Layout& layout);

}  // namespace phalanx::wire
