// worker/comm/gloo_farewells.h: what the ranks of a Gloo mesh say to each other as they leave.
//
// One receive stands open on every connection: a peer that leaves in order completes it, a peer
// that dies breaks it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/comm/gloo_mesh.h"

namespace phalanx::comm {

// Tags of the transport itself have the top bit set, those of messages have it clear. Farewells
// take this one and those with a 1 or a 4 beside it.
inline constexpr uint64_t kFarewellTag = uint64_t{1} << 63;
// For waits that only an event ends. Gloo adds it to a clock, so it must not be the largest.
inline constexpr std::chrono::milliseconds kGlooForever = std::chrono::hours(24 * 365);

// One thread awaits and reads; all else is thread-safe.
class GlooFarewells {
 public:
  // `peers`: as of ConnectGlooMesh(). Throws what Gloo throws.
  GlooFarewells(std::shared_ptr<::gloo::transport::Context> context, std::vector<int32_t> peers);
  ~GlooFarewells();

  // Until another one has come. False: woken. Throws what Gloo throws where a connection broke.
  bool AwaitOne();
  void Wake();
  // What those say that have come so far, `count` of them; OK while all are healthy.
  absl::Status Read(size_t count);
  // Why the connection to the peer broke: its own words, if it had time for any.
  absl::Status Broken(int32_t peer, const std::exception& error);
  // Whose connection is broken, and why, as one is that had not left in order.
  absl::Status FindBroken();

  // Tells the peers that `reaches` has nothing against that the end of the connection is meant, or
  // why this rank failed (FarewellOf). One that did not waits, for two seconds at most, until all
  // that it sent is with them: closing a socket may throw away what is still in it.
  void Say(std::string farewell, absl::FunctionRef<bool(int32_t peer)> reaches);

 private:
  using Buffer = ::gloo::transport::UnboundBuffer;

  const std::shared_ptr<::gloo::transport::Context> context_;
  const std::vector<int32_t> peers_;  // world ranks
  std::vector<char> texts_;           // [world, kFarewellBytes]
  const std::unique_ptr<Buffer> buffer_;
  // Empty messages that each wait for a peer to ask. The request comes after all that the peer
  // sent, and Gloo's own thread answers it, so the answer is a receipt.
  std::vector<std::unique_ptr<Buffer>> receipts_;
};

}  // namespace phalanx::comm
