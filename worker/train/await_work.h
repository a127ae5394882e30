// worker/train/await_work.h: before the host reads what its device has worked out.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/train/executor.h"

namespace phalanx::train {

// Waits until the device is past what its current stream has been given: a read that comes behind
// it does not block, where the read alone would wait for a missing peer for ever. `missing` says
// what is not there at the end of its patience. Errors: as Executor::Await.
absl::Status AwaitWork(Executor& executor, absl::string_view missing);

}  // namespace phalanx::train
