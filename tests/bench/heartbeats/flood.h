// tests/bench/heartbeats/flood.h: people who call a coordinator beyond its limits and do not wait
// when they are asked to.
//
// Few people who call often, so that limits of one person are met at little cost to whoever floods:
// on a small machine it shares the processors with the coordinator. One submits and one asks,
// kCallsASecond each, where one person may call 200 times a second and 2,000 times before that
// counts; two send requests larger than a message may be. Each has an identity and a connection of
// their own, and makes the next call whether the ones before have been answered or not.
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
  static constexpr int kOversizers = 2;
  static constexpr int kCallsASecond = 600;
  // Each is 9 MiB, read whole and answered by gRPC. One more than a dozen of one person, and their
  // connection is closed for it (coordinator/rpc/caller_connections.h).
  static constexpr int kOversizedASecond = 1, kOversizedOfOne = 10;
  // Calls of one person that are under way; the next one waits.
  static constexpr int kOpenMax = 64;

  struct Counts {
    int64_t taken = 0;
    int64_t refused = 0;       // RESOURCE_EXHAUSTED, but for those that are too large
    int64_t without_hint = 0;  // of those: nothing says when to ask again
    int64_t oversized = 0;     // refused so, too: asking again is of no use, and nothing says when
    int64_t unexpected = 0;    // ended otherwise
    int64_t spared = 0;        // people of whom no call was refused: they call too seldom
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

  // One call that is under way.
  struct Open;

  void Call(const std::stop_token& stop, const std::string& address, const Person& person);
  static void Note(const Open& call, const Person& person, Counts& counts);

  std::vector<Person> people_;
  Mutex mu_;
  Counts counts_ ABSL_GUARDED_BY(mu_);  // of those who have stopped
  std::vector<std::jthread> threads_;   // last member: join before the rest ends
};

}  // namespace phalanx::coordinator
