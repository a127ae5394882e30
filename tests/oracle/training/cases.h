// tests/oracle/training/cases.h: a layout as a case of a test, and the measure that all are held to.
#pragma once

#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "tests/oracle/training/harness.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {

struct Case {
  std::string name;
  support::Layout vision;  // dp 0: language alone
  support::Layout language;
  support::LlamaShape shape = {};
};

// Vision feeding language, four microbatches a replica, the last ones shorter; gradients are clipped.
// In fp32 the optimizer's epsilon is as large as an element of the clipped gradient. With a small one
// AdamW's first updates are the gradient's sign, which for gradients near zero is rounding noise; so
// the update is a smooth function of the gradient, and parameters can be held as tightly as it.
job::JobSpec SpecOf(const Case& c, job::Precision precision);

// Loss, gradient norm, every gradient and every parameter after each step, by Compare().
void ExpectSteps(const std::vector<TrainedStep>& trained, const std::vector<TrainedStep>& plain,
                 const job::JobSpec& spec, double tolerance);

}  // namespace phalanx::oracle
