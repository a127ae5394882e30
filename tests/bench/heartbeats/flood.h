// tests/bench/heartbeats/flood.h: people who call a coordinator beyond its limits and do not wait
// when they are asked to.
//
// Each has an identity and a connection of their own. Some submit and some ask, kCallsASecond each,
// where one person may call 200 times a second; some send requests larger than a message may be.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/support/authority.h"

namespace phalanx::coordinator {

class Flood {
 public:
  static constexpr int kSubmitters = 4, kAskers = 4, kOversizers = 2;
  static constexpr int kCallsASecond = 1000;
  // Each is 9 MiB, read whole and answered by gRPC. So few that in a minute nobody has 1,024 of
  // them, past which their calls are refused before their requests are read, in words alone.
  static constexpr int kOversizedASecond = 10;

  struct Counts {
    int64_t taken = 0;
    int64_t refused = 0;       // RESOURCE_EXHAUSTED, but for those that are too large
    int64_t without_hint = 0;  // of those: nothing says when to ask again
    int64_t oversized = 0;     // refused so, too: asking again is of no use, and nothing says when
    int64_t unexpected = 0;    // ended otherwise
    std::string first;         // what the first of the unexpected, or without a hint, was told
    int64_t calls() const { return taken + refused + oversized + unexpected; }
    void Add(const Counts& other);
  };

  // Makes their certificates, which takes seconds.
  explicit Flood(const support::Authority& authority);
  // They call until Stop. Their jobs are for devices of kind cpu.
  void Start(const std::string& address);
  Counts Stop();

 private:
  enum class Wish : uint8_t { kSubmit, kAsk, kOversize };
  struct Person {
    std::string name;
    Wish wish = Wish::kSubmit;
    std::shared_ptr<grpc::ChannelCredentials> credentials;
  };

  void Call(const std::stop_token& stop, const std::string& address, const Person& person);
  static grpc::Status CallOnce(v1::JobService::Stub& stub, const Person& person, int64_t number);

  std::vector<Person> people_;
  Mutex mu_;
  Counts counts_ ABSL_GUARDED_BY(mu_);  // of those who have stopped
  std::vector<std::jthread> threads_;   // last member: join before the rest ends
};

}  // namespace phalanx::coordinator
