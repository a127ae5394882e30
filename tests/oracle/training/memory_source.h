// tests/oracle/training/memory_source.h: a data set in memory.
#pragma once

#include <cstdint>
#include <memory>

#include "core/job/job_spec.h"
#include "worker/data/job_data.h"
#include "worker/train/batches.h"

namespace phalanx::oracle {

// Random tokens, images, sounds and targets, unequal in number from sample to sample, and captions
// of unequal length. A pure function of its arguments.
struct DataShape {
  int64_t samples = 64;
  int64_t vocabulary = 96;
  data::ItemShapes items;
  int32_t images_min = 0, images_max = 2;  // a sample, where images have rows
  int32_t sounds_min = 0, sounds_max = 2;
  int32_t text_min = 3, text_max = 9;
  int32_t target_rows_max = 3;  // at least 0, where there are targets
  // Samples [text_only_first, text_only_end) of every text_only_period have no items: whole
  // microbatches of text.
  int64_t text_only_period = 0, text_only_first = 0, text_only_end = 0;
  // This sample's items do not decode; -1: none.
  int64_t corrupt_sample = -1;
  // This sample's target is not finite; -1: none.
  int64_t corrupt_target = -1;
};
std::unique_ptr<train::SampleSource> MakeData(const DataShape& shape);
// What fits the spec's modules.
DataShape DataShapeOf(const job::JobSpec& spec);

}  // namespace phalanx::oracle
