// tests/oracle/random_microbatch.h: microbatches of any job, for the plain model and for stages.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/job/job_spec.h"
#include "tests/oracle/plain_model.h"

namespace phalanx::oracle {

// A microbatch of random tokens, with `items` images or sounds for every encoder, their rows before
// the text. Labels of those rows and of the last `padding` positions of each odd sample do not
// count; decoders that feed others send all but that padding. With a regressor, each sample's first
// two text positions have target rows, of which one in three does not count.
struct MicrobatchShape {
  int64_t samples = 2, text = 7, padding = 2;
  int64_t items = 2;  // of each encoder, in all; sample i takes item i mod samples
  uint64_t seed = 1;
};
PlainMicrobatch RandomMicrobatch(const job::JobSpec& spec, const MicrobatchShape& shape,
                                 at::ScalarType type);

}  // namespace phalanx::oracle
