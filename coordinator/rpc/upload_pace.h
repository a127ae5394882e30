// coordinator/rpc/upload_pace.h: how much log the uploads of one worker bring in, all together.
//
// Everybody has a store of bytes that fills at a steady rate. What was read is taken out of it,
// also below nothing; who is below it has the next message read when it has filled again. So
// nothing is lost: what was not read waits at the worker, where its files are. Callers in plaintext
// are not counted: nobody knows who they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "coordinator/rpc/access.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

// Thread-safe.
class UploadPace {
 public:
  static constexpr int64_t kSecondsAtOnce = 8;
  // Whose stores are not full. Of one more nothing is read for a second at a time.
  static constexpr size_t kCallersMax = 16'384;

  // 0: no limit.
  explicit UploadPace(int64_t bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  // `bytes` of the caller's were read. For how long nothing more of theirs is to be read.
  absl::Duration Take(const Caller& caller, int64_t bytes, SteadyTime now = SteadyNow())
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Store {
    double bytes = 0;
    SteadyTime at;
  };
  double BytesOf(const Store& store, SteadyTime now) const;

  const double rate_;
  Mutex mu_;
  // By KeyOf. A full store is as good as none.
  std::map<std::string, Store> stores_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::coordinator
