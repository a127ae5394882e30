#include "coordinator/rpc/session_registry.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/incident.h"
#include "coordinator/wire/command_codec.h"
#include "coordinator/wire/common_codec.h"

namespace phalanx::coordinator {
namespace {

struct BytesOf {
  size_t operator()(const PrepareData& c) const { return c.request->document.text.size(); }
  size_t operator()(const Assign& c) const { return c.request->document.text.size(); }
  size_t operator()(const Rendezvous& c) const { return c.bytes; }
  size_t operator()(const PublishCheckpoint& c) const { return c.parts_digest.size(); }
  size_t operator()(const Wish&) const { return 0; }
  size_t operator()(const InjectFault&) const { return 0; }
  size_t operator()(const TryPeer& c) const { return c.word.size() + c.listens_at.size(); }
  size_t operator()(const WriteIncident&) const { return kEvidenceMax * 512; }
  size_t operator()(const BeginEpoch&) const { return 0; }
  // The layout: about so many of a device, as plans list them.
  size_t operator()(const PrepareStandby& c) const {
    size_t devices = 0;
    for (const NodeDevices& node : c.layout->nodes) devices += node.devices.size();
    return c.set.size() + c.plan_digest.size() + devices * 64;
  }
  size_t operator()(const StopRanks& c) const { return c.reason.size(); }
  size_t operator()(const FetchLogs& c) const {
    size_t bytes = c.ranks.size() * sizeof(int32_t);
    for (const auto& [rank, place] : c.after) bytes += sizeof(rank) + place.size();
    return bytes;
  }
};

}  // namespace

absl::StatusOr<SessionId> SessionRegistry::Add(std::shared_ptr<SessionStream> stream) {
  MutexLock lock(&mu_);
  if (!closed_.ok()) return closed_;
  if (sessions_.size() >= options_.sessions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(sessions_.size(), " sessions are open; at most ", options_.sessions_max,
                     ": stop daemons that nobody needs"));
  }
  const SessionId session{++last_session_};
  sessions_.emplace(session, std::move(stream));
  return session;
}

void SessionRegistry::Remove(SessionId session) {
  std::shared_ptr<SessionStream> stream;  // destroyed outside the lock
  MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  stream = std::move(it->second);
  sessions_.erase(it);
}

void SessionRegistry::CloseAll(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    closed_ = status;
  }
  for (const auto& stream : All()) stream->Close(status);
}

void SessionRegistry::CloseOf(const std::function<bool(const grpc::AuthContext& peer)>& such,
                              const absl::Status& status) {
  for (const auto& stream : All()) {
    if (stream->peer() != nullptr && such(*stream->peer())) stream->Close(status);
  }
}

std::vector<std::shared_ptr<SessionStream>> SessionRegistry::All() const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<SessionStream>> streams;
  for (const auto& [session, stream] : sessions_) streams.push_back(stream);
  return streams;
}

size_t SessionRegistry::size() const {
  MutexLock lock(&mu_);
  return sessions_.size();
}

std::shared_ptr<SessionStream> SessionRegistry::Find(SessionId session) const {
  MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

void SessionRegistry::Welcome(SessionId session) {
  const std::shared_ptr<SessionStream> stream = Find(session);
  if (stream == nullptr) return;
  stream->Welcomed();
  stream->Send({.encode = [this](v1::OpenSessionResponse& out) {
    v1::Welcome* welcome = out.mutable_welcome();
    ToProto(options_.heartbeat_interval, welcome->mutable_heartbeat_interval());
    ToProto(options_.heartbeat_timeout, welcome->mutable_heartbeat_timeout());
    welcome->set_coordinator_incarnation(incarnation_.value);
    welcome->set_store(options_.store);
  }});
}

void SessionRegistry::Send(SessionId session, uint64_t command_number, const Command& command) {
  const std::shared_ptr<SessionStream> stream = Find(session);
  if (stream == nullptr) return;
  stream->Send({.encode =
                    [command_number, command](v1::OpenSessionResponse& out) {
                      ToProto(command_number, command, out.mutable_command());
                    },
                .bytes = std::visit(BytesOf(), command)});
}

void SessionRegistry::Close(SessionId session, const absl::Status& status) {
  if (const std::shared_ptr<SessionStream> stream = Find(session)) stream->Close(status);
}

void SessionRegistry::EndLogs(const std::string& fetch_id, const std::string& reason) {
  logs_.End(fetch_id, absl::UnavailableError(reason));
}

}  // namespace phalanx::coordinator
