// core/job/data_shape.h: what the samples of a training set are like on the whole. Plain values.
#pragma once

namespace phalanx::job {

struct DataShape {
  double items = 0;           // images or sounds of a sample on average, whichever are more
  double labelled_share = 1;  // of all positions, those that the loss counts; [0, 1]
  friend bool operator==(const DataShape&, const DataShape&) = default;
};

}  // namespace phalanx::job
