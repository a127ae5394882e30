// client/local_cluster.h: a coordinator and a worker of one's own, on loopback, for one job.
//
// Store, daemon state and logs live in a temporary folder that goes with the cluster. Neither
// process outlives this one: they are ended in order when all is well, and killed by the kernel
// when not.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/child.h"
#include "client/watch.h"

namespace phalanx::client {

struct LocalClusterOptions {
  std::string programs;        // folder of phalanx-coordinator and phalanx-worker
  std::string device = "cpu";  // or gpu
  int32_t devices = 1;
  bool allow_inject = false;
  std::string temporary;  // where the folder is made; empty: TMPDIR or /tmp
  absl::Duration start_timeout = absl::Seconds(60);
  absl::Duration worker_grace = absl::Seconds(60), coordinator_grace = absl::Seconds(5);
};

// Not thread-safe, but for AnyEnded and Hurry.
class LocalCluster {
 public:
  explicit LocalCluster(LocalClusterOptions options) : options_(std::move(options)) {}
  ~LocalCluster() { Stop(); }
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // Returns once the worker is registered. Call it on the thread that will live longest.
  // Errors: NotFound for a missing program; FailedPrecondition for one that ended at once, with the
  // end of its log; DeadlineExceeded; Cancelled once `stopper` is stopped.
  absl::Status Start(const Stopper& stopper);
  // The coordinator's address.
  const std::string& server() const { return server_; }
  // SIGTERM to the worker, then to the coordinator, each with its grace; removes the folder.
  void Stop();
  // One of the two is no longer there, though it should be.
  bool AnyEnded() const;
  // Stop() no longer waits.
  void Hurry() { hurry_ = true; }
  // The last lines of both logs.
  std::string LogTails() const;

 private:
  absl::Status MakeFolder();
  // The content of `ready`, once the child has written it.
  absl::StatusOr<std::string> WaitForFile(const Child& child, const std::string& name,
                                          const std::string& ready, const Stopper& stopper) const;

  const LocalClusterOptions options_;
  std::string folder_;
  std::string server_;
  Child coordinator_, worker_;
  std::atomic<pid_t> coordinator_pid_ = 0, worker_pid_ = 0;
  std::atomic<bool> hurry_ = false;
};

}  // namespace phalanx::client
