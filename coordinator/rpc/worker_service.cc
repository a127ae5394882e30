#include "coordinator/rpc/worker_service.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/status_translation.h"
#include "coordinator/wire/session_codec.h"
#include "core/job/log_dropped.h"

namespace phalanx::coordinator {
namespace {

// Commands that a worker has left unread; past it the session is closed.
constexpr size_t kOutboxMax = 4096;
constexpr size_t kOutboxBytesMax = 64 << 20;

constexpr absl::string_view kSessionMethod = "OpenSession", kUploadMethod = "UploadLogs";

// One worker's stream. It reads its next message when the machine has seen the one before; only
// behind a heartbeat without news, which nobody hurries to see, it reads on at once. So a session
// has at most two events in the driver's inbox, one of them a heartbeat.
class SessionReactor final
    : public grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>,
      public SessionStream,
      public std::enable_shared_from_this<SessionReactor> {
 public:
  SessionReactor(const WorkerServiceImpl::World& world,
                 std::shared_ptr<const grpc::AuthContext> peer)
      : driver_(world.driver),
        sessions_(world.sessions),
        peer_(std::move(peer)),
        caller_(CallerOf(*peer_)),
        holds_(world.holds),
        metrics_(world.metrics),
        admission_(world.admission),
        audit_(world.audit) {}

  // Called once, right after construction. `address`: as gRPC names the other end.
  void Begin(const std::string& address) {
    self_ = shared_from_this();
    address_ = address;
    if (absl::Status status = admission_.Open(WorkerStream::kSession, caller_, address);
        !status.ok()) {
      return Close(status);
    }
    counted_ = true;
    absl::StatusOr<SessionId> session = sessions_.Add(self_);
    if (!session.ok()) return Close(session.status());
    session_ = *session;
    hello_alarm_.Set(absl::ToChronoTime(absl::Now() + sessions_.options().hello_timeout),
                     [weak = weak_from_this()](bool expired) {
                       if (!expired) return;
                       if (auto self = weak.lock()) self->OnHelloTimeout();
                     });
    ReadNext();
  }

  void Send(Outgoing message) override {
    absl::Status full;
    {
      MutexLock lock(&mu_);
      if (finished_) return;
      if (outbox_.size() < kOutboxMax &&
          (outbox_.empty() || outbox_bytes_ + message.bytes <= kOutboxBytesMax)) {
        outbox_bytes_ += message.bytes;
        outbox_.push_back(std::move(message));
        if (outbox_.size() == 1) EncodeNext();
        return;
      }
      full =
          absl::ResourceExhaustedError(absl::StrCat(outbox_.size(), " commands of ", outbox_bytes_,
                                                    " bytes are unread; the session is closed"));
    }
    Close(full);
  }

  void Close(const absl::Status& status) override {
    std::string object;
    bool refused = false;
    {
      MutexLock lock(&mu_);
      if (std::exchange(finished_, true)) return;
      // One that its worker leaves before it is let in is no refusal.
      refused = !welcomed_ && !status.ok() && !absl::IsCancelled(status);
      if (absl::IsUnauthenticated(status)) turned_away_ = std::string(status.message());
      object = object_;
    }
    metrics_.StreamEnded(kSessionMethod, status.code());
    if (refused) audit_.Tell(caller_, kSessionMethod, object, status);
    Finish(ToGrpc(status));  // last: may end this object
  }

  void Welcomed() override {
    std::string object;
    {
      MutexLock lock(&mu_);
      if (finished_) return;
      welcomed_ = true;
      object = object_;
    }
    audit_.Tell(caller_, kSessionMethod, object, absl::OkStatus());
  }

  const grpc::AuthContext* peer() const override { return peer_.get(); }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(absl::OkStatus());  // the worker has said all it will say
    admission_.MessageCame(address_, request_.ByteSizeLong());
    const auto next = [self = shared_from_this()] { self->ReadNext(); };
    if (opened_) {
      if (request_.rank_report().event().type() == job::kLogDropped)
        metrics_.LogBytesDropped(job::BytesDropped(request_.rank_report().event().message()));
      std::optional<Event> event = EventFromProto(session_, request_, absl::Now());
      // A kind of message that this version does not know is passed over.
      if (!event.has_value()) return ReadNext();
      if (OnlyLives(*event) && !heartbeat_waits_.exchange(true)) {
        driver_.PostUnhurried(*std::move(event),
                              [self = shared_from_this()] { self->heartbeat_waits_ = false; });
        return ReadNext();
      }
      return driver_.Post(*std::move(event), next);
    }
    if (!request_.has_hello()) {
      return Close(absl::InvalidArgumentError("the first message of a session must be a hello"));
    }
    if (!request_.hello().node().empty()) {
      MutexLock lock(&mu_);
      object_ = absl::StrCat("node=", Quoted(request_.hello().node()));
    }
    absl::StatusOr<WorkerHello> hello = HelloFromProto(request_.hello());
    if (!hello.ok()) return Close(hello.status());
    if (absl::Status status = MayServe(caller_, hello->node); !status.ok()) return Close(status);
    // Whoever revokes it from here on finds this session in the registry.
    if (absl::Status status = holds_(*peer_); !status.ok()) return Close(status);
    opened_ = true;
    {
      MutexLock lock(&mu_);
      hello_seen_ = true;
    }
    hello_alarm_.Cancel();
    driver_.Post(SessionOpened{session_, *std::move(hello)}, next);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    outbox_bytes_ -= outbox_.front().bytes;
    outbox_.pop_front();
    // A layout in it may be large, and until the next command nothing else takes its place.
    response_.Clear();
    if (ok && !finished_ && !outbox_.empty()) EncodeNext();
  }

  void OnCancel() override { Close(absl::CancelledError("the stream broke")); }

  void OnDone() override {
    hello_alarm_.Cancel();
    if (opened_) {
      MutexLock lock(&mu_);
      driver_.Post(SessionClosed{session_, turned_away_});
    }
    sessions_.Remove(session_);
    if (counted_) admission_.Close(WorkerStream::kSession, caller_);
    self_.reset();  // last: may end this object
  }

 private:
  // A heartbeat that says nothing for which somebody waits. Steps are no news: ranks report them.
  bool OnlyLives(const Event& event) {
    const auto* heartbeat = std::get_if<HeartbeatReceived>(&event);
    return heartbeat != nullptr &&
           std::exchange(draining_, heartbeat->draining) == heartbeat->draining;
  }

  // The outbox has a front that nobody encodes yet.
  void EncodeNext() {
    sessions_.encoders().Add([self = shared_from_this()](const absl::Status& go) {
      if (go.ok()) self->WriteNext();
    });
  }
  void WriteNext() {
    std::function<void(v1::OpenSessionResponse&)> encode;
    {
      MutexLock lock(&mu_);
      if (finished_) return;
      encode = std::move(outbox_.front().encode);
    }
    response_.Clear();
    encode(response_);
    MutexLock lock(&mu_);
    if (!finished_) StartWrite(&response_);
  }
  void ReadNext() {
    MutexLock lock(&mu_);
    if (finished_) return;
    request_.Clear();
    StartRead(&request_);
  }

  void OnHelloTimeout() {
    {
      MutexLock lock(&mu_);
      if (hello_seen_) return;
    }
    Close(absl::InvalidArgumentError("no hello came in time"));
  }

  Driver& driver_;
  SessionRegistry& sessions_;
  const std::shared_ptr<const grpc::AuthContext> peer_;
  const Caller caller_;
  std::string address_;                    // of the other end; written in Begin
  const WorkerServiceImpl::Holds& holds_;  // of the service
  Metrics& metrics_;
  Admission& admission_;
  Audit& audit_;
  std::shared_ptr<SessionReactor> self_;  // until OnDone
  SessionId session_;
  bool counted_ = false;  // written in Begin, read in OnDone
  grpc::Alarm hello_alarm_;
  // Of the read in flight and its reaction, which never run side by side.
  v1::OpenSessionRequest request_;
  bool opened_ = false;
  bool draining_ = false;                      // as its last heartbeat said
  std::atomic<bool> heartbeat_waits_ = false;  // in the driver's inbox
  v1::OpenSessionResponse response_;  // the front of the outbox: of who encodes it, then of gRPC

  Mutex mu_;
  std::deque<Outgoing> outbox_ ABSL_GUARDED_BY(mu_);  // front: being encoded or written
  size_t outbox_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::string object_ ABSL_GUARDED_BY(mu_);  // for the audit: the node that it says it is
  bool hello_seen_ ABSL_GUARDED_BY(mu_) = false;
  bool welcomed_ ABSL_GUARDED_BY(mu_) = false;
  std::string turned_away_ ABSL_GUARDED_BY(mu_);  // why its worker may not come back as it is
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

// One upload of a worker. It reads on while the pipe has room.
class UploadReactor final : public grpc::ServerReadReactor<v1::UploadLogsRequest>,
                            public std::enable_shared_from_this<UploadReactor> {
 public:
  UploadReactor(const WorkerServiceImpl::World& world, grpc::CallbackServerContext& context)
      : logs_(world.logs),
        metrics_(world.metrics),
        admission_(world.admission),
        audit_(world.audit),
        context_(context),
        caller_(CallerOf(*context.auth_context())),
        peer_(context.peer()) {}

  void Begin() {
    self_ = shared_from_this();
    if (absl::Status status = admission_.Open(WorkerStream::kUpload, caller_, context_.peer());
        !status.ok()) {
      return End(status);
    }
    counted_ = true;
    ReadNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(context_.IsCancelled() ? Broken() : absl::OkStatus());
    const size_t bytes = request_.ByteSizeLong();
    admission_.MessageCame(peer_, bytes);
    admission_.ReadOfUpload(caller_, kMessageCost + static_cast<int64_t>(bytes));
    if (source_.pipe == nullptr) {
      std::optional<LogRelay::Source> source = logs_.Find(request_.fetch_id());
      if (!source.has_value()) return End(absl::NotFoundError("nobody waits for these logs"));
      if (absl::Status status = MayServe(caller_, source->node); !status.ok()) return End(status);
      fetch_id_ = request_.fetch_id();
      source_ = *std::move(source);
      MutexLock lock(&mu_);
      node_ = absl::StrCat("node ", source_.node);
    }
    if (source_.pipe->closed())
      return End(absl::NotFoundError("nobody waits for these logs any more"));
    // Only a question whether somebody still reads.
    if (request_.text().empty()) return ReadOn();
    v1::GetLogsResponse chunk;
    chunk.set_rank(request_.rank());
    chunk.set_node(source_.node);
    chunk.set_text(std::move(*request_.mutable_text()));
    chunk.set_place(std::move(*request_.mutable_place()));
    chunk.set_epoch(request_.epoch());
    if (source_.pipe->Push(std::move(chunk), [self = shared_from_this()] { self->ReadOn(); })) {
      ReadOn();
    }
  }

  void OnCancel() override { End(Broken()); }

  void OnDone() override {
    if (source_.pipe != nullptr) logs_.End(fetch_id_, outcome_);
    if (counted_) admission_.Close(WorkerStream::kUpload, caller_);
    self_.reset();
  }

 private:
  // Of a message in bytes, beside its own: one without any text is read, too.
  static constexpr int64_t kMessageCost = 1024;

  // Once the worker may send more.
  void ReadOn() {
    const absl::Duration wait = admission_.ReadOfUpload(caller_, 0);
    if (wait == absl::ZeroDuration()) return ReadNext();
    metrics_.UploadWaits();
    // The one before may still be calling back, and lives until it has.
    pause_ = std::make_unique<grpc::Alarm>();
    pause_->Set(absl::ToChronoTime(absl::Now() + wait), [weak = weak_from_this()](bool expired) {
      if (!expired) return;
      if (auto self = weak.lock()) self->ReadNext();
    });
  }
  void ReadNext() {
    MutexLock lock(&mu_);
    if (!finished_) StartRead(&request_);
  }
  absl::Status Broken() {
    MutexLock lock(&mu_);
    return absl::UnavailableError(
        absl::StrCat(node_,
                     " stopped sending logs: it went away, or newer readers of logs took the place "
                     "of this one; ask again"));
  }
  void End(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (std::exchange(finished_, true)) return;
      outcome_ = status;
    }
    metrics_.StreamEnded(kUploadMethod, status.code());
    // That nobody waits for logs any more is no refusal.
    if (absl::IsPermissionDenied(status) || absl::IsResourceExhausted(status))
      audit_.Tell(caller_, kUploadMethod, "", status);
    Finish(ToGrpc(status));  // last: may end this object
  }

  LogRelay& logs_;
  Metrics& metrics_;
  Admission& admission_;
  Audit& audit_;
  grpc::CallbackServerContext& context_;
  const Caller caller_;
  const std::string peer_;
  bool counted_ = false;                 // written in Begin, read in OnDone
  std::shared_ptr<UploadReactor> self_;  // until OnDone
  // Of reads and OnDone, which never run side by side. OnCancel may run beside them.
  v1::UploadLogsRequest request_;
  std::string fetch_id_;
  LogRelay::Source source_;
  absl::Status outcome_;                // written before Finish, read in OnDone
  std::unique_ptr<grpc::Alarm> pause_;  // the last one between reads
  Mutex mu_;
  std::string node_ ABSL_GUARDED_BY(mu_) = "the worker";  // until it says for whom it sends
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>*
WorkerServiceImpl::OpenSession(grpc::CallbackServerContext* context) {
  auto reactor = std::make_shared<SessionReactor>(world_, context->auth_context());
  reactor->Begin(context->peer());
  return reactor.get();
}

grpc::ServerReadReactor<v1::UploadLogsRequest>* WorkerServiceImpl::UploadLogs(
    grpc::CallbackServerContext* context, v1::UploadLogsResponse*) {
  auto reactor = std::make_shared<UploadReactor>(world_, *context);
  reactor->Begin();
  return reactor.get();
}

}  // namespace phalanx::coordinator
