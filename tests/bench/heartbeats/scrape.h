// tests/bench/heartbeats/scrape.h: what reads the metrics of a coordinator now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "transport/tls.h"

namespace phalanx::coordinator {

// Reads /metrics over mutual TLS, at once and then in each interval, until it goes, each time over
// a connection of its own. Thread-safe.
class Scraper {
 public:
  // `address`: "HOST:PORT".
  Scraper(const std::string& address, const transport::TlsFiles& files,
          std::chrono::nanoseconds interval);
  // It has read them so often; throws std::runtime_error where they once could not be read.
  int64_t reads() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  int64_t reads_ ABSL_GUARDED_BY(mu_) = 0;
  std::string failure_ ABSL_GUARDED_BY(mu_);  // the first
  std::jthread thread_;                       // last member: joins before the rest ends
};

}  // namespace phalanx::coordinator
