#include "worker/comm/gloo_farewells.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <utility>

#include "core/base/accused.h"
#include "worker/comm/farewell.h"

namespace phalanx::comm {
namespace {

constexpr uint64_t kProbeTag = kFarewellTag | 1;
constexpr uint64_t kReceiptTag = kFarewellTag | 4;
constexpr std::chrono::milliseconds kReceiptTimeout{2000};

}  // namespace

GlooFarewells::GlooFarewells(std::shared_ptr<::gloo::transport::Context> context,
                             std::vector<int32_t> peers)
    : context_(std::move(context)),
      peers_(std::move(peers)),
      texts_(static_cast<size_t>(context_->size) * kFarewellBytes),
      buffer_(context_->createUnboundBuffer(texts_.data(), texts_.size())) {
  for (const int32_t peer : peers_) {
    buffer_->recv(peer, kFarewellTag, static_cast<size_t>(peer) * kFarewellBytes, kFarewellBytes);
    receipts_.push_back(context_->createUnboundBuffer(nullptr, 0));
    receipts_.back()->send(peer, kReceiptTag);
  }
}

GlooFarewells::~GlooFarewells() = default;

bool GlooFarewells::AwaitOne() { return buffer_->waitRecv(kGlooForever); }

void GlooFarewells::Wake() { buffer_->abortWaitRecv(); }

absl::Status GlooFarewells::Read(size_t count) {
  size_t arrived = 0;
  absl::Status status;
  for (size_t end = kFarewellBytes; end <= texts_.size(); end += kFarewellBytes) {
    char* farewell = &texts_[end - kFarewellBytes];
    arrived += HowLeft(farewell) != Leaving::kNotYet ? 1 : 0;
    // A failure explains more than a stop, which may follow from it.
    if (absl::Status passed = Passed(farewell); status.ok() || AccusedIn(passed).has_value())
      status = std::move(passed);
  }
  // One more than was reported is one that is being written: its own report comes at once.
  return arrived > count ? absl::OkStatus() : status;
}

absl::Status GlooFarewells::Broken(int32_t peer, const std::exception& error) {
  // Written before the connection broke, by the thread that noticed.
  char* text = &texts_[static_cast<size_t>(peer) * kFarewellBytes];
  absl::Status passed = Passed(text);
  return passed.ok() ? Gone(peer, error.what()) : passed;
}

absl::Status GlooFarewells::FindBroken() {
  for (const int32_t peer : peers_) {
    // Who has left in order has closed its connection, too, and that is no failure.
    if (HowLeft(&texts_[static_cast<size_t>(peer) * kFarewellBytes]) == Leaving::kHealthy) continue;
    try {
      buffer_->recv(peer, kProbeTag, 0, 0);  // throws where the connection is broken
    } catch (const std::exception& error) {
      return Broken(peer, error);
    }
  }
  return absl::UnavailableError("a peer is gone");
}

void GlooFarewells::Say(std::string farewell, absl::FunctionRef<bool(int32_t peer)> reaches) {
  const bool failed = HowLeft(farewell.data()) == Leaving::kFailed;
  std::vector<std::unique_ptr<Buffer>> farewells, receipts;
  for (const int32_t peer : peers_) {
    if (!reaches(peer)) continue;
    try {
      farewells.push_back(context_->createUnboundBuffer(farewell.data(), farewell.size()));
      farewells.back()->send(peer, kFarewellTag);
      if (failed) continue;
      std::unique_ptr<Buffer> receipt = context_->createUnboundBuffer(nullptr, 0);
      receipt->recv(peer, kReceiptTag);
      receipts.push_back(std::move(receipt));
    } catch (const std::exception&) {
      // The peer went first, may be between the two: it needs no farewell and sends no receipt.
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + kReceiptTimeout;
  for (const auto& receipt : receipts) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    try {
      receipt->waitRecv(std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception&) {
    }
  }
}

}  // namespace phalanx::comm
