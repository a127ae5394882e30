#include "worker/comm/gloo_transport.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/accused.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/posix/activity.h"
#include "worker/comm/farewell.h"
#include "worker/comm/gloo_farewells.h"
#include "worker/comm/gloo_mesh.h"
#include "worker/comm/shared_memory.h"

namespace phalanx::comm {
namespace {

using std::chrono::milliseconds;
using GlooBuffer = ::gloo::transport::UnboundBuffer;
using GlooContext = ::gloo::transport::Context;

// Beside those of farewells.
constexpr uint64_t kHandleTag = kFarewellTag | 2;
constexpr uint64_t kAttachedTag = kFarewellTag | 3;
constexpr int64_t kHandleBytesMax = 96;
// Between two looks whether a rank is still cut off.
constexpr milliseconds kContactInterval{5};

milliseconds ToMilliseconds(absl::Duration duration) {
  const int64_t count = absl::ToInt64Milliseconds(duration);
  return std::clamp(milliseconds(count), milliseconds(1), kGlooForever);
}

absl::Status Silence(absl::string_view what, int32_t peer, milliseconds timeout) {
  return Accusing(Rank{peer}, absl::DeadlineExceededError(
                                  absl::StrCat(what, " rank ", peer, ": nothing in ",
                                               absl::FormatDuration(absl::FromChrono(timeout)))));
}

class GlooTransport final : public Transport {
 public:
  // `shared` may be null.
  GlooTransport(std::shared_ptr<GlooContext> context, std::vector<int32_t> peers,
                std::unique_ptr<SharedMemory> shared, const WorldOptions& options)
      : context_(std::move(context)),
        peers_(std::move(peers)),
        shared_(std::move(shared)),
        in_reach_(static_cast<size_t>(context_->size), false),
        operation_timeout_(ToMilliseconds(options.operation_timeout)),
        isolation_(options.isolation),
        elsewhere_(options.elsewhere),
        lost_(options.lost),
        farewells_(context_, peers_) {
    watcher_ = std::thread([this] { Watch(); });
  }
  ~GlooTransport() override;

  // Finds out which peers can be reached through shared memory. Every rank calls it first.
  absl::Status MeetInSharedMemory();

  absl::Status Transfer(absl::Span<const Outbound> sends, absl::Span<const Inbound> receives,
                        PendingSends& pending, Consume consume) override {
    if (lost_ != nullptr && !sends.empty() && lost_->Take()) sends.remove_prefix(1);
    return TransferAll(sends, receives, pending, consume);
  }
  absl::Status Settle(PendingSends& pending) override;
  void ForgetComplete(PendingSends& pending) override;
  absl::Status Check() override { return failure(); }
  void Abort(absl::Status reason) override;

 private:
  struct Pending final : PendingSend {
    using PendingSend::PendingSend;
    int32_t peer = 0;
    std::unique_ptr<GlooBuffer> buffer;
  };
  // A wait that Abort() can reach, for as long as it lives.
  class Waiting;

  absl::Status TransferAll(absl::Span<const Outbound> sends, absl::Span<const Inbound> receives,
                           PendingSends& pending, Consume consume);
  bool CutOff() const { return isolation_ != nullptr && isolation_->active(); }
  bool IsElsewhere(int32_t peer) const {
    const auto place = static_cast<size_t>(peer);
    return place < elsewhere_.size() && elsewhere_[place];
  }
  // Until this rank is not cut off any more. Errors: the transport's failure.
  absl::Status AwaitContact();
  absl::Status failure() {
    if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    MutexLock lock(&mutex_);
    return failure_;
  }
  bool InReach(int32_t peer) const { return in_reach_[static_cast<size_t>(peer)]; }
  absl::Status Wait(GlooBuffer& buffer, int32_t peer, bool receive);
  absl::Status TakeShared(const Inbound& receive, absl::FunctionRef<void(const void*)> consume);
  void Stop(absl::Status reason, Blame blame);
  // Stops, and returns the first failure of this transport.
  absl::Status Fail(absl::Status reason);
  void SayFarewell();
  void Watch();
  // Why the connections broke: a wait of this rank that ran out of time, or a peer that died.
  absl::Status Diagnose();

  const std::shared_ptr<GlooContext> context_;
  const std::vector<int32_t> peers_;  // world ranks
  const std::unique_ptr<SharedMemory> shared_;
  std::vector<bool> in_reach_;  // by rank; constant once connected
  const milliseconds operation_timeout_;
  const Isolation* const isolation_;
  const std::vector<bool> elsewhere_;  // by rank
  LostMessage* const lost_;
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Blame blame_ ABSL_GUARDED_BY(mutex_) = Blame::kSelf;  // kPeer: failure_ names it
  std::set<Waiting*> waiting_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  std::atomic<bool> ending_{false};
  GlooFarewells farewells_;
  std::thread watcher_;
};

class GlooTransport::Waiting {
 public:
  Waiting(GlooTransport& transport, GlooBuffer& buffer, int32_t peer, bool receive)
      : transport_(transport),
        buffer_(buffer),
        peer_(peer),
        receive_(receive),
        deadline_(std::chrono::steady_clock::now() + transport.operation_timeout_) {
    MutexLock lock(&transport_.mutex_);
    transport_.waiting_.insert(this);
  }
  ~Waiting() {
    MutexLock lock(&transport_.mutex_);
    transport_.waiting_.erase(this);
  }
  void Wake() { receive_ ? buffer_.abortWaitRecv() : buffer_.abortWaitSend(); }
  bool TimedOut() const { return std::chrono::steady_clock::now() >= deadline_; }
  absl::Status TimeoutStatus() const {
    return Silence(receive_ ? "receive from" : "send to", peer_, transport_.operation_timeout_);
  }

 private:
  GlooTransport& transport_;
  GlooBuffer& buffer_;
  const int32_t peer_;
  const bool receive_;
  const std::chrono::steady_clock::time_point deadline_;
};

GlooTransport::~GlooTransport() {
  ending_ = true;
  if (shared_ != nullptr && failure().ok()) shared_->Leave();
  SayFarewell();
  farewells_.Wake();
  watcher_.join();
}

absl::Status GlooTransport::AwaitContact() {
  const phalanx::Waiting for_contact;
  while (CutOff() && !ending_) {
    RETURN_IF_ERROR(failure());
    std::this_thread::sleep_for(kContactInterval);
  }
  return failure();
}

void GlooTransport::SayFarewell() {
  std::string farewell;
  {
    MutexLock lock(&mutex_);
    farewell = FarewellOf(context_->rank, failure_, blame_);
  }
  const bool cut_off = CutOff();
  farewells_.Say(std::move(farewell), [&](int32_t peer) { return !cut_off || !IsElsewhere(peer); });
}

void GlooTransport::Abort(absl::Status reason) {
  if (reason.ok()) reason = absl::AbortedError("aborted");
  const Blame blame = absl::IsCancelled(reason) ? Blame::kNobody : Blame::kSelf;
  Stop(std::move(reason), blame);
}

void GlooTransport::Stop(absl::Status reason, Blame blame) {
  {
    MutexLock lock(&mutex_);
    if (failure_.ok()) {
      failure_ = std::move(reason);
      blame_ = blame;
    }
    failed_.store(true, std::memory_order_release);
    for (Waiting* waiting : waiting_) waiting->Wake();
  }
  if (shared_ != nullptr) shared_->Wake();
}

absl::Status GlooTransport::Fail(absl::Status reason) {
  const Blame blame = AccusedIn(reason).has_value() ? Blame::kPeer
                      : absl::IsAborted(reason)     ? Blame::kNobody
                                                    : Blame::kSelf;
  Stop(std::move(reason), blame);
  return failure();
}

absl::Status GlooTransport::Wait(GlooBuffer& buffer, int32_t peer, bool receive) {
  const phalanx::Waiting for_peer(phalanx::Waiting::kNeed);
  Waiting waiting(*this, buffer, peer, receive);
  try {
    for (;;) {
      if (absl::Status failed = failure(); !failed.ok()) return failed;
      if (receive ? buffer.waitRecv(operation_timeout_) : buffer.waitSend(operation_timeout_))
        return absl::OkStatus();
    }
  } catch (const std::exception& error) {
    return Fail(waiting.TimedOut() ? waiting.TimeoutStatus() : farewells_.Broken(peer, error));
  }
}

absl::Status GlooTransport::TransferAll(absl::Span<const Outbound> sends,
                                        absl::Span<const Inbound> receives, PendingSends& pending,
                                        Consume consume) {
  if (absl::Status failed = failure(); !failed.ok()) return failed;
  if (CutOff()) {
    const auto elsewhere = [this](const auto& message) { return IsElsewhere(message.peer); };
    if (std::any_of(sends.begin(), sends.end(), elsewhere) ||
        std::any_of(receives.begin(), receives.end(), elsewhere)) {
      RETURN_IF_ERROR(AwaitContact());
    }
  }
  // The buffers go before the memory that Gloo's thread may be writing through them.
  std::vector<std::vector<char>> lent;
  std::vector<std::unique_ptr<GlooBuffer>> buffers(receives.size());
  std::vector<Outbound> shared;
  int32_t peer = -1;
  try {
    // Receives first: a peer that finds one posted sends at once.
    for (size_t i = 0; i < receives.size(); ++i) {
      peer = receives[i].peer;
      if (InReach(peer)) continue;
      const auto bytes = static_cast<size_t>(receives[i].bytes);
      void* data = receives[i].data != nullptr ? receives[i].data : lent.emplace_back(bytes).data();
      buffers[i] = context_->createUnboundBuffer(data, bytes);
      buffers[i]->recv(peer, receives[i].tag);
    }
    for (const Outbound& send : sends) {
      peer = send.peer;
      if (InReach(peer)) {
        shared.push_back(send);
        continue;
      }
      auto entry = std::make_unique<Pending>(send.keep);
      entry->peer = peer;
      entry->buffer = context_->createUnboundBuffer(const_cast<void*>(send.data),
                                                    static_cast<size_t>(send.bytes));
      entry->buffer->send(peer, send.tag);
      pending.push_back(std::move(entry));
    }
  } catch (const std::exception& error) {
    return Fail(farewells_.Broken(peer, error));
  }
  if (!shared.empty()) {
    if (absl::Status sent = shared_->Send(shared); !sent.ok()) return Fail(std::move(sent));
  }
  for (size_t i = 0; i < receives.size(); ++i) {
    if (buffers[i] == nullptr) {
      RETURN_IF_ERROR(TakeShared(receives[i], [&](const void* data) { consume(i, data); }));
    } else {
      RETURN_IF_ERROR(Wait(*buffers[i], receives[i].peer, true));
      consume(i, buffers[i]->ptr);
    }
  }
  return absl::OkStatus();
}

absl::Status GlooTransport::TakeShared(const Inbound& receive,
                                       absl::FunctionRef<void(const void*)> consume) {
  const auto deadline = std::chrono::steady_clock::now() + operation_timeout_;
  auto received =
      shared_->Receive(receive.peer, receive.tag, deadline, [this] { return failure(); });
  if (absl::IsDeadlineExceeded(received.status()))
    return Fail(Silence("receive from", receive.peer, operation_timeout_));
  if (!received.ok()) return Fail(received.status());
  if (received->bytes() != receive.bytes) {
    return Fail(
        absl::InternalError(absl::StrCat("rank ", receive.peer, " sends ", received->bytes(),
                                         " bytes where ", receive.bytes, " are expected")));
  }
  const void* data = received->data();
  if (receive.data != nullptr)
    data = std::memcpy(receive.data, data, static_cast<size_t>(receive.bytes));
  consume(data);
  return absl::OkStatus();
}

absl::Status GlooTransport::MeetInSharedMemory() {
  std::string mine = shared_ != nullptr ? shared_->Handle() : "";
  mine.resize(kHandleBytesMax);
  const auto world = static_cast<size_t>(context_->size);
  std::vector<std::string> handles(world, std::string(kHandleBytesMax, '\0'));
  std::vector<char> attached(world, 0), attached_to_us(world, 0);
  std::vector<Outbound> sends;
  std::vector<Inbound> receives;
  const auto exchange = [&](auto sent, auto received, uint64_t tag, int64_t bytes) {
    sends.clear();
    receives.clear();
    for (const int32_t peer : peers_) {
      sends.push_back({peer, tag, sent(peer), bytes});
      receives.push_back({peer, tag, received(peer), bytes});
    }
    PendingSends pending;
    RETURN_IF_ERROR(TransferAll(sends, receives, pending, [](size_t, const void*) {}));
    return Settle(pending);
  };
  RETURN_IF_ERROR(exchange([&](int32_t) { return mine.data(); },
                           [&](int32_t peer) { return handles[peer].data(); }, kHandleTag,
                           kHandleBytesMax));
  for (const int32_t peer : peers_) {
    if (shared_ == nullptr) break;
    attached[peer] = shared_->Attach(peer, handles[peer].c_str());
  }
  RETURN_IF_ERROR(exchange([&](int32_t peer) { return &attached[peer]; },
                           [&](int32_t peer) { return &attached_to_us[peer]; }, kAttachedTag, 1));
  if (shared_ != nullptr) shared_->Settled();
  for (const int32_t peer : peers_)
    in_reach_[peer] = attached[peer] != 0 && attached_to_us[peer] != 0;
  return absl::OkStatus();
}

absl::Status GlooTransport::Settle(PendingSends& pending) {
  absl::Status status = failure();
  for (const auto& send : pending) {
    auto& entry = static_cast<Pending&>(*send);
    if (!status.ok()) break;
    status = Wait(*entry.buffer, entry.peer, false);
  }
  pending.clear();
  return status;
}

void GlooTransport::ForgetComplete(PendingSends& pending) {
  std::erase_if(pending, [](const std::unique_ptr<PendingSend>& send) {
    return IsSent(*static_cast<Pending&>(*send).buffer);
  });
}

absl::Status GlooTransport::Diagnose() {
  {
    // A wait that runs out of time makes Gloo break all connections.
    MutexLock lock(&mutex_);
    for (const Waiting* waiting : waiting_) {
      if (waiting->TimedOut()) return waiting->TimeoutStatus();
    }
  }
  return farewells_.FindBroken();
}

void GlooTransport::Watch() {
  try {
    for (size_t farewells = 0; !ending_;) {
      if (!farewells_.AwaitOne()) continue;  // woken to end
      ++farewells;
      AwaitContact().IgnoreError();
      if (absl::Status failed = farewells_.Read(farewells); !failed.ok()) {
        Fail(std::move(failed)).IgnoreError();
        return;
      }
    }
  } catch (const std::exception&) {
    AwaitContact().IgnoreError();
    if (!ending_) Fail(Diagnose()).IgnoreError();
  }
}

absl::Status Interrupted() { return absl::CancelledError("asked to stop while connecting"); }

absl::StatusOr<std::unique_ptr<Transport>> Connect(int32_t self, int32_t world,
                                                   std::vector<int32_t> peers,
                                                   Rendezvous& rendezvous,
                                                   const WorldOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<GlooContext> context,
                   ConnectGlooMesh(self, world, peers, rendezvous, options));
  std::unique_ptr<SharedMemory> shared;
  if (options.shared_memory) {
    // Without it everything goes over TCP.
    if (auto created = SharedMemory::Create(self, world); created.ok())
      shared = *std::move(created);
  }
  try {
    auto transport = std::make_unique<GlooTransport>(std::move(context), std::move(peers),
                                                     std::move(shared), options);
    const std::stop_callback abort(options.stop,
                                   [made = transport.get()] { made->Abort(Interrupted()); });
    RETURN_IF_ERROR(transport->MeetInSharedMemory());
    return transport;
  } catch (const std::exception& error) {
    return ConnectingFailed(error);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectGlooTransport(int32_t self, int32_t world,
                                                                std::vector<int32_t> peers,
                                                                Rendezvous& rendezvous,
                                                                const WorldOptions& options) {
  absl::StatusOr<std::unique_ptr<Transport>> connected =
      Connect(self, world, std::move(peers), rendezvous, options);
  if (connected.ok()) return connected;
  // Whatever broke then broke because of it.
  return Annotate(options.stop.stop_requested() ? Interrupted() : connected.status(),
                  "connecting over Gloo");
}

}  // namespace phalanx::comm
