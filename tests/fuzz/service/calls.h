// tests/fuzz/service/calls.h: every method of every service, by its descriptor, as steps of a
// script.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tests/fuzz/support/script.h"

namespace phalanx::fuzz {

// A kind of step: a request of a method. `caller`: which of two workers sends it, of a session.
struct Kind {
  const google::protobuf::MethodDescriptor* method = nullptr;  // null: time passes
  const google::protobuf::Message* request = nullptr;          // an empty one
  int caller = 0;
};
// Of all services whose code is in this program.
const std::vector<Kind>& Kinds();
// The kind of the step that calls it, such as "phalanx.v1.JobService.GetJob"; there must be one.
Step CallOf(const std::string& method, const google::protobuf::Message& request, int caller = 0);
Step TimeOf(int64_t seconds);

// What came of a script.
struct Outcome {
  std::string wrong;                  // empty: nothing
  std::vector<std::string> answered;  // methods that the coordinator knows
};
Outcome Run(absl::Span<const Step> steps);

}  // namespace phalanx::fuzz
