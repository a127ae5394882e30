#include "worker/train/await_work.h"

#include "worker/train/device_wait.h"
#include "worker/train/message_stream.h"

namespace phalanx::train {

absl::Status AwaitWork(Executor& executor, absl::string_view missing) {
  const Moment given = Moment::Now(executor.options().device);
  return executor.Await([&given] { return given.Passed(); }, kPatience, missing);
}

}  // namespace phalanx::train
