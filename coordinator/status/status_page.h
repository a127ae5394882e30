// coordinator/status/status_page.h: the page for people at / of the coordinator's HTTP port, and
// the JSON and pictures behind it (docs/sight.md).
//
// Reads the board, and the store for jobs that have ended; the driver is asked for the queue alone
// (queue_watch.h), and nobody waits for it. Every answer is bounded: kNodesMax nodes, kJobsMax
// jobs, kEventsShown events, texts of kTextBytesMax. Answers are made on two threads, pictures of
// pipelines, which need a plan, on one more behind all others.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "coordinator/runtime/board.h"
#include "coordinator/runtime/system_clock.h"
#include "coordinator/runtime/work_pool.h"
#include "coordinator/status/queue_watch.h"
#include "core/base/mutex.h"
#include "transport/http/http_response.h"

namespace phalanx::coordinator {

struct JobPage;
struct Overview;

// Thread-safe.
class StatusPage {
 public:
  static constexpr size_t kNodesMax = 512, kJobsMax = 200, kEventsShown = 100;
  static constexpr size_t kTextBytesMax = 2048;
  static constexpr size_t kPicturesKept = 16;

  // `board`, and what `queue` asks, outlive it.
  StatusPage(const Board& board, QueueWatch::Ask queue);

  // The answer to GET of a target: 404 for what is not there, 503 when too many wait. Does not
  // block.
  void Serve(const std::string& target, transport::HttpAnswer answer) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for what is under way and refuses the rest. Idempotent.
  void Stop();

 private:
  absl::StatusOr<Overview> OverviewOf();
  absl::StatusOr<JobPage> PageOf(const std::string& name);
  transport::HttpResponse Make(const std::string& path);
  transport::HttpResponse OfJob(absl::string_view rest);
  transport::HttpResponse Timeline(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);

  const Board& board_;
  const SystemClock clock_;
  QueueWatch queue_;
  Mutex mu_;
  std::map<std::string, std::string> pictures_ ABSL_GUARDED_BY(mu_);  // by job and plan
  WorkPool readers_, drawers_;  // last members: their threads end before the rest
};

}  // namespace phalanx::coordinator
