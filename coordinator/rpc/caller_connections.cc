#include "coordinator/rpc/caller_connections.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {
namespace {

// Of a call beside its request: headers, heads of frames and records, and what acknowledges its
// answer. Those of gRPC's clients have less.
constexpr int64_t kBytesAroundRequest = 256;
// Of one message of a stream, with pings that come between two heartbeats.
constexpr int64_t kBytesAroundMessage = 96;
// Heads of frames and records within a long message are less than this part of it.
constexpr int64_t kPartOfHeads = 64;
constexpr char kNotWhole[] = " bytes that have come, and are not whole; at most ";

}  // namespace

// Thread-safe.
class CallerConnections::All {
 public:
  class Connection;

  All(ConnectionBounds bounds, World world) : bounds_(bounds), world_(std::move(world)) {}
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    world_ = {};
    while (tellers_ > 0) told_.Wait(&mu_);
  }

  void Open(Connection& connection) ABSL_LOCKS_EXCLUDED(mu_);
  void Close(Connection& connection) ABSL_LOCKS_EXCLUDED(mu_);
  void Came(Connection& connection, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // `around`: that came with them.
  absl::Status WholeCame(const std::string& peer, int64_t bytes, int64_t around)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Held {
    size_t connections = 0;
    int64_t bytes = 0;
    // When much more had come than there was, at least since then, and how much there was.
    SteadyTime grown;
    int64_t grown_bytes = 0;
  };

  struct Ended {
    Caller caller;
    bool bytes = false;
    absl::Status why;
  };

  // Tells of those that have been ended since.
  void Tell() ABSL_LOCKS_EXCLUDED(mu_);
  // What came long ago counts no longer.
  void FadeLocked(Connection& connection, SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether more has come than may, of the caller or of all people; ends one with it then.
  void CheckLocked(const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds to what the connection, its caller and all have; `bytes` may be below 0.
  void CountLocked(Connection& connection, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(Connection& connection, bool bytes, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t BytesMaxOf(const Identity& caller) const {
    return caller.role == Role::kWorker ? bounds_.worker_bytes_max : bounds_.person_bytes_max;
  }
  // Ends the connection with most, of the caller or (empty) of all people.
  void EndMostLocked(const std::string& key, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ConnectionBounds bounds_;
  Mutex mu_;
  World world_ ABSL_GUARDED_BY(mu_);                               // none: nobody is ended any more
  std::map<std::string, Held> callers_ ABSL_GUARDED_BY(mu_);       // by KeyOf
  std::map<std::string, Connection*> peers_ ABSL_GUARDED_BY(mu_);  // the newest of each
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;                         // of people
  std::vector<Ended> to_tell_ ABSL_GUARDED_BY(mu_);
  int32_t tellers_ ABSL_GUARDED_BY(mu_) = 0;
  CondVar told_;  // by one of them
};

class CallerConnections::All::Connection final : public transport::OpenConnection {
 public:
  Connection(std::shared_ptr<All> all, std::string peer, Identity caller)
      : peer(std::move(peer)),
        caller(std::move(caller)),
        key(KeyOf(this->caller)),
        all_(std::move(all)) {
    all_->Open(*this);
  }
  ~Connection() override { all_->Close(*this); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Came(int64_t bytes) override { all_->Came(*this, bytes); }

  const std::string peer;
  const Identity caller;
  const std::string key;
  // Under the lock of all.
  int64_t bytes = 0;
  int64_t earlier = 0;  // of these, those that came before `since`
  SteadyTime since = SteadyNow();
  bool ended = false;

 private:
  const std::shared_ptr<All> all_;
};

void CallerConnections::All::Open(Connection& connection) {
  const size_t max =
      connection.caller.role == Role::kWorker ? bounds_.of_worker_max : bounds_.of_person_max;
  {
    MutexLock lock(&mu_);
    peers_[connection.peer] = &connection;
    const size_t count = ++callers_[connection.key].connections;
    if (max == 0 || count <= max) return;
    EndLocked(connection, false,
              absl::StrCat(connection.caller.name, " has ", count, " connections open; at most ",
                           max, ", those that are refused included"));
  }
  Tell();
}

void CallerConnections::All::Tell() {
  std::vector<Ended> ended;
  World world;
  {
    MutexLock lock(&mu_);
    if (to_tell_.empty()) return;
    ended = std::exchange(to_tell_, {});
    if (world_.ended == nullptr) return;
    world = world_;
    ++tellers_;
  }
  for (const Ended& one : ended) world.ended(one.caller, one.bytes, one.why);
  MutexLock lock(&mu_);
  --tellers_;
  told_.SignalAll();
}

void CallerConnections::All::Close(Connection& connection) {
  MutexLock lock(&mu_);
  CountLocked(connection, -connection.bytes);
  if (const auto found = peers_.find(connection.peer);
      found != peers_.end() && found->second == &connection) {
    peers_.erase(found);
  }
  const auto held = callers_.find(connection.key);
  if (--held->second.connections == 0) callers_.erase(held);
}

void CallerConnections::All::CountLocked(Connection& connection, int64_t bytes) {
  Held& held = callers_[connection.key];
  connection.bytes += bytes;
  connection.earlier = std::min(connection.earlier, connection.bytes);
  held.bytes += bytes;
  if (connection.caller.role != Role::kWorker) bytes_ += bytes;
  held.grown_bytes = std::min(held.grown_bytes, held.bytes);
}

void CallerConnections::All::FadeLocked(Connection& connection, SteadyTime now) {
  const absl::Duration age = absl::FromChrono(now - connection.since);
  if (now == connection.since || age < bounds_.counts_for) return;
  if (world_.waits != nullptr && world_.waits(connection.caller)) return;
  CountLocked(connection, -(age < 2 * bounds_.counts_for ? connection.earlier : connection.bytes));
  connection.earlier = connection.bytes;
  connection.since = now;
}

void CallerConnections::All::Came(Connection& connection, int64_t bytes) {
  {
    MutexLock lock(&mu_);
    if (connection.ended) return;
    const SteadyTime now = SteadyNow();
    FadeLocked(connection, now);
    CountLocked(connection, bytes);
    Held& held = callers_[connection.key];
    const int64_t bytes_max = BytesMaxOf(connection.caller);
    if (held.bytes - held.grown_bytes >= bytes_max / 8) {
      held.grown = now;
      held.grown_bytes = held.bytes;
    }
    if (held.bytes <= bytes_max && bytes_ <= bounds_.bytes_max) return;
    for (const auto& [peer, other] : peers_) FadeLocked(*other, now);
    CheckLocked(connection);
  }
  Tell();
}

void CallerConnections::All::CheckLocked(const Connection& connection) {
  const Held& held = callers_[connection.key];
  const int64_t bytes_max = BytesMaxOf(connection.caller);
  if (held.bytes > bytes_max) {
    EndMostLocked(connection.key, absl::StrCat("messages of ", connection.caller.name, " have ",
                                               held.bytes, kNotWhole, bytes_max));
  } else if (bytes_ > bounds_.bytes_max) {
    EndMostLocked(
        "", absl::StrCat("messages of all people have ", bytes_, kNotWhole, bounds_.bytes_max));
  }
}

void CallerConnections::All::EndMostLocked(const std::string& key, const std::string& why) {
  Connection* most = nullptr;
  for (const auto& [peer, connection] : peers_) {
    if (key.empty() ? connection->caller.role == Role::kWorker : connection->key != key) continue;
    if (most == nullptr || connection->bytes > most->bytes) most = connection;
  }
  if (most == nullptr || most->bytes == 0) return;
  EndLocked(*most, true,
            absl::StrCat(why, ": the connection of ", most->peer, " is closed, which has ",
                         most->bytes, " of them"));
}

void CallerConnections::All::EndLocked(Connection& connection, bool bytes, const std::string& why) {
  CountLocked(connection, -connection.bytes);
  connection.ended = true;
  if (world_.end == nullptr) return;
  world_.end(connection.peer);
  to_tell_.push_back({connection.caller, bytes, absl::ResourceExhaustedError(why)});
}

absl::Status CallerConnections::All::WholeCame(const std::string& peer, int64_t bytes,
                                               int64_t around) {
  MutexLock lock(&mu_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return absl::OkStatus();
  Connection& connection = *found->second;
  FadeLocked(connection, SteadyNow());
  CountLocked(connection, -std::min(connection.bytes, bytes + bytes / kPartOfHeads + around));
  const Held& held = callers_[connection.key];
  const int64_t bytes_max = BytesMaxOf(connection.caller) / 2;
  if (held.bytes <= bytes_max || Since(held.grown) >= bounds_.refused_for) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("messages of ", connection.caller.name, " have ",
                                                   held.bytes, kNotWhole, bytes_max,
                                                   ": ask again in 1 s"));
}

CallerConnections::CallerConnections(ConnectionBounds bounds, World world)
    : all_(std::make_shared<All>(bounds, std::move(world))) {}

CallerConnections::~CallerConnections() { all_->Stop(); }

std::unique_ptr<transport::OpenConnection> CallerConnections::Begin(
    const std::string& peer, const std::vector<std::string>& uris) {
  absl::StatusOr<Identity> caller = IdentityOfUris(uris);
  if (!caller.ok()) return nullptr;
  return std::make_unique<All::Connection>(all_, peer, *std::move(caller));
}

absl::Status CallerConnections::RequestCame(const std::string& peer, size_t bytes) {
  return all_->WholeCame(peer, static_cast<int64_t>(bytes), kBytesAroundRequest);
}

void CallerConnections::MessageCame(const std::string& peer, size_t bytes) {
  // Of streams that are open nothing is refused.
  static_cast<void>(all_->WholeCame(peer, static_cast<int64_t>(bytes), kBytesAroundMessage));
}

}  // namespace phalanx::coordinator
