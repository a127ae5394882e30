// InProcessWorld: messages between threads, handed over in place. A send completes when its
// receiver has taken it, as between processes, so that a caller who reuses memory too early is
// found here.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "worker/comm/communicator.h"
#include "worker/comm/peer_communicator.h"
#include "worker/comm/transport.h"

namespace phalanx::comm {
namespace {

constexpr std::chrono::minutes kOperationTimeout{2};

struct Post {
  const void* data = nullptr;
  int64_t bytes = 0;
  enum class Stage { kPosted, kTaken, kDone } stage = Stage::kPosted;
};
using Name = std::tuple<int32_t, int32_t, uint64_t>;  // source, destination, tag

}  // namespace

struct InProcessWorld::State {
  explicit State(int32_t world) : ranks(static_cast<size_t>(world)) {}
  struct PerRank {
    CondVar changed;  // something was posted to it, taken from it, or it failed
    absl::Status failure;
    bool blames_peer = false;  // `failure` names the rank that caused it
    bool gone = false;         // it has dropped its communicators
  };
  Mutex mutex;
  std::map<Name, std::shared_ptr<Post>> posts ABSL_GUARDED_BY(mutex);  // not yet taken
  std::vector<PerRank> ranks;  // as many as constructed; each is guarded by mutex

  void FailLocked(int32_t rank, const absl::Status& reason, bool blames_peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    PerRank& it = ranks[static_cast<size_t>(rank)];
    if (it.failure.ok()) {
      it.failure = reason;
      it.blames_peer = blames_peer;
    }
    it.changed.SignalAll();
  }
};

namespace {

template <typename State>
class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<State> state, int32_t self)
      : state_(std::move(state)), self_(self) {}
  ~InProcessTransport() override {
    MutexLock lock(&state_->mutex);
    Me().gone = true;
    const absl::Status gone = Me().blames_peer
                                  ? Me().failure
                                  : absl::UnavailableError(absl::StrCat(
                                        "rank ", self_, " is gone: ", Me().failure.message()));
    for (size_t rank = 0; rank < state_->ranks.size(); ++rank) {
      state_->ranks[rank].changed.SignalAll();
      // As between processes: one that leaves after a failure takes the others with it.
      if (!Me().failure.ok()) state_->FailLocked(static_cast<int32_t>(rank), gone, true);
    }
  }

  absl::Status Transfer(absl::Span<const Outbound> sends, absl::Span<const Inbound> receives,
                        PendingSends& pending, Consume consume) override {
    {
      MutexLock lock(&state_->mutex);
      if (!Me().failure.ok()) return Me().failure;
      for (const Outbound& send : sends) {
        const Name name{self_, send.peer, send.tag};
        auto post = std::make_shared<Post>(Post{.data = send.data, .bytes = send.bytes});
        state_->posts.emplace(name, post);
        pending.push_back(std::make_unique<Pending>(state_, name, std::move(post), send.keep));
        state_->ranks[static_cast<size_t>(send.peer)].changed.SignalAll();
      }
    }
    for (size_t i = 0; i < receives.size(); ++i) {
      std::shared_ptr<Post> post;
      if (absl::Status taken = Take(receives[i], post); !taken.ok()) return taken;
      // The sender may not leave while this reads.
      if (receives[i].data != nullptr)
        std::memcpy(receives[i].data, post->data, static_cast<size_t>(post->bytes));
      consume(i, receives[i].data != nullptr ? receives[i].data : post->data);
      MutexLock lock(&state_->mutex);
      post->stage = Post::Stage::kDone;
      state_->ranks[static_cast<size_t>(receives[i].peer)].changed.SignalAll();
    }
    return absl::OkStatus();
  }

  absl::Status Settle(PendingSends& pending) override {
    absl::Status status;
    {
      MutexLock lock(&state_->mutex);
      status = Me().failure;
    }
    for (const auto& send : pending) {
      if (!status.ok()) break;
      const auto& it = static_cast<const Pending&>(*send);
      const int32_t peer = std::get<1>(it.name);
      MutexLock lock(&state_->mutex);
      status = WaitLocked(peer, "send to", [&] { return it.post->stage == Post::Stage::kDone; });
    }
    pending.clear();
    return status;
  }

  void ForgetComplete(PendingSends& pending) override {
    PendingSends complete;  // they go after the lock, which they take themselves
    {
      MutexLock lock(&state_->mutex);
      const auto first = std::stable_partition(pending.begin(), pending.end(), [](auto& send) {
        return static_cast<const Pending&>(*send).post->stage != Post::Stage::kDone;
      });
      std::move(first, pending.end(), std::back_inserter(complete));
      pending.erase(first, pending.end());
    }
  }

  absl::Status Check() override {
    MutexLock lock(&state_->mutex);
    return Me().failure;
  }
  void Abort(absl::Status reason) override {
    MutexLock lock(&state_->mutex);
    state_->FailLocked(self_, reason, false);
  }

 private:
  struct Pending final : PendingSend {
    Pending(std::shared_ptr<State> state, Name name, std::shared_ptr<Post> post,
            std::shared_ptr<const void> keep)
        : PendingSend(std::move(keep)),
          state(std::move(state)),
          name(name),
          post(std::move(post)) {}
    // Withdraws what nobody has taken, and waits for a copy that is being taken right now.
    ~Pending() override {
      MutexLock lock(&state->mutex);
      if (post->stage == Post::Stage::kPosted) state->posts.erase(name);
      auto& me = state->ranks[static_cast<size_t>(std::get<0>(name))];
      while (post->stage == Post::Stage::kTaken) me.changed.Wait(&state->mutex);
    }
    const std::shared_ptr<State> state;
    const Name name;
    const std::shared_ptr<Post> post;
  };

  auto& Me() { return state_->ranks[static_cast<size_t>(self_)]; }

  absl::Status Take(const Inbound& receive, std::shared_ptr<Post>& post) {
    const Name name{receive.peer, self_, receive.tag};
    MutexLock lock(&state_->mutex);
    auto found = state_->posts.end();
    absl::Status status = WaitLocked(receive.peer, "receive from",
                                     [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
                                       found = state_->posts.find(name);
                                       return found != state_->posts.end();
                                     });
    if (!status.ok()) return status;
    if (found->second->bytes != receive.bytes) {
      status =
          absl::InternalError(absl::StrCat("rank ", receive.peer, " sends ", found->second->bytes,
                                           " bytes where ", receive.bytes, " are expected"));
      state_->FailLocked(self_, status, absl::IsUnavailable(status));
      return status;
    }
    post = found->second;
    post->stage = Post::Stage::kTaken;
    state_->posts.erase(found);
    return absl::OkStatus();
  }

  template <typename Done>
  absl::Status WaitLocked(int32_t peer, const char* what, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    const auto deadline = std::chrono::steady_clock::now() + kOperationTimeout;
    const auto& peer_state = state_->ranks[static_cast<size_t>(peer)];
    for (bool expired = false;; expired = Me().changed.WaitUntil(&state_->mutex, deadline)) {
      if (!Me().failure.ok()) return Me().failure;
      if (done()) return absl::OkStatus();
      if (expired || peer_state.gone) break;
    }
    absl::Status status =
        peer_state.gone
            ? absl::UnavailableError(absl::StrCat("rank ", peer, " is gone: it has left"))
            : absl::DeadlineExceededError(
                  absl::StrCat(what, " rank ", peer, ": nothing in two minutes"));
    state_->FailLocked(self_, status, absl::IsUnavailable(status));
    return status;
  }

  const std::shared_ptr<State> state_;
  const int32_t self_;
};

}  // namespace

InProcessWorld::InProcessWorld(int32_t world) : state_(std::make_shared<State>(world)) {}
InProcessWorld::~InProcessWorld() = default;

Communicators InProcessWorld::Connect(absl::Span<const plan::CommunicatorSpec> specs, Rank self) {
  return MakeCommunicators(std::make_shared<InProcessTransport<State>>(state_, self.value), specs,
                           self);
}

void InProcessWorld::Abort(absl::Status reason) {
  MutexLock lock(&state_->mutex);
  for (size_t rank = 0; rank < state_->ranks.size(); ++rank) {
    state_->FailLocked(static_cast<int32_t>(rank), reason, false);
  }
}

}  // namespace phalanx::comm
