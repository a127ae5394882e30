#include "coordinator/rpc/server.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/net/open_peers.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/audit.h"
#include "coordinator/rpc/caller_connections.h"
#include "coordinator/rpc/job_calls.h"
#include "coordinator/rpc/job_service.h"
#include "coordinator/rpc/log_relay.h"
#include "coordinator/rpc/worker_service.h"
#include "coordinator/runtime/board.h"
#include "coordinator/runtime/planning.h"
#include "coordinator/runtime/quota_file.h"
#include "coordinator/runtime/system_clock.h"
#include "core/base/random_word.h"
#include "core/base/status.h"
#include "core/posix/peer_name.h"
#include "core/posix/waker.h"
#include "transport/revocation.h"

namespace phalanx::coordinator {
namespace {

constexpr int kMessageBytesMax = 8 << 20;
constexpr int kUnreadBytesOfStream = 256 << 10;
constexpr int kEncryptedFrameBytes = 4 << 10;
// In the audit and the metrics, where of a method nothing is known.
constexpr absl::string_view kUnread = "unread";
// In the audit, of connections that one identity has too many of.
constexpr absl::string_view kHandshake = "handshake";
// Between two looks whether all that were answered have what they were told.
constexpr absl::Duration kLookInterval = absl::Milliseconds(1);
// Between two looks whether it still accepts work.
constexpr absl::Duration kHealthInterval = absl::Seconds(1);

int MillisecondsOf(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(ServerOptions options)
      : options_(std::move(options)),
        sessions_(options_.sessions, Incarnation{RandomWord()}, logs_),
        watches_(options_.watchers_max, options_.person_watchers_max, options_.watch_bytes_max,
                 OpenCalls::Full::kRefuse),
        log_calls_(options_.log_calls_max, options_.person_log_calls_max, options_.log_bytes_max,
                   OpenCalls::Full::kCloseOldest),
        admission_(
            options_.rate, options_.person_connections_max, options_.workers, unread_,
            [this](const std::string& peer) { return peers_.IsOpen(peer); },
            options_.person_plans_max, &connections_),
        audit_(options_.audit, options_.refusals, [this] { metrics_.AuditLineDropped(); }) {
    audit_.Keep(options_.keep_audit, [this] { metrics_.AuditLineNotKept(); });
  }

  ~ServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Begin(std::unique_ptr<Backend> backend) {
    DriverOptions driver = options_.driver;
    driver.machine.heartbeat_interval = options_.sessions.heartbeat_interval;
    driver.machine.heartbeat_timeout = options_.sessions.heartbeat_timeout;
    driver.machine.store = options_.sessions.store;
    if (!driver.plan) {
      driver.plan = [this](const ComputePlan& order) {
        const SteadyTime start = SteadyNow();
        absl::StatusOr<PlanSummary> plan = PlanJobOf(order);
        metrics_.Planned(Since(start));
        return plan;
      };
    }
    driver.on_store = [this, next = driver.on_store](const absl::Status& status) {
      {
        MutexLock lock(&mu_);
        PublishHealthLocked();
      }
      next(status);
    };
    absl::StatusOr<std::unique_ptr<Driver>> started =
        Driver::Start(std::move(driver), clock_, std::move(backend), board_, metrics_, sessions_);
    if (!started.ok()) return started.status();
    driver_ = *std::move(started);
    if (!options_.quotas.empty()) FollowQuotas();
    return Serve();
  }

  void Shutdown(absl::Duration grace) override {
    if (shut_down_.exchange(true)) return;
    StopServing();
    const absl::Status stopping = absl::UnavailableError("the coordinator is stopping");
    // Calls that ask for what is known are refused, too: whoever follows may know more.
    admission_.Stop(stopping);
    metrics_.CountNoMoreCalls();
    sessions_.CloseAll(stopping);
    watches_.CloseAll(stopping);
    log_calls_.CloseAll(stopping);
    gate_.reset();
    // Before the server: its shutdown waits for every call, and calls wait for the driver.
    if (job_service_ != nullptr) job_service_->Stop();
    if (join_service_ != nullptr) join_service_->Stop();
    if (driver_ != nullptr) driver_->Stop();
    if (server_ == nullptr) return;
    AwaitAnswered(grace);
    peers_.EndAll();
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
    server_->Wait();
  }

  int port() const override { return port_; }
  absl::Status ready() const override {
    if (shut_down_) return absl::UnavailableError("the coordinator is stopping");
    return driver_->accepting();
  }
  Health readiness() const override {
    const absl::Status stopping = absl::UnavailableError("the coordinator is stopping");
    return {{"serving", shut_down_ ? stopping : absl::OkStatus()},
            {"store", shut_down_ ? absl::OkStatus() : driver_->accepting()},
            {"driver", driver_->alive()}};
  }
  Health liveness() const override { return {{"driver", driver_->alive()}}; }

  std::string MetricsText() const override {
    Gauges gauges{.sessions = static_cast<int64_t>(sessions_.size()),
                  .watchers = static_cast<int64_t>(watches_.size()),
                  .inbox = static_cast<int64_t>(driver_->inbox_size()),
                  .serving = serving_,
                  .audit = options_.audit_counts(),
                  .certificates = transport::ExpiriesOf(options_.certificates),
                  .usage = UsageOfThisProcess()};
    unread_.Look();
    board_.Count(gauges);
    return metrics_.Text(gauges);
  }
  const Board& board() const override { return board_; }
  void AskQueue(std::vector<JobId> jobs, QueueCallback callback) override {
    driver_->AskQueue(std::move(jobs), std::move(callback));
  }
  absl::Status AdmitToPage(const transport::ShownCertificate& who) override {
    const absl::StatusOr<Identity> identity = JudgePage(who);
    absl::Status status = identity.status();
    if (status.ok()) status = MayCall(identity->role, kHttpPages);
    if (status.ok()) status = admission_.Take(*identity);
    metrics_.Rpc(MethodOf(kHttpPages), status.code(), absl::ZeroDuration());
    if (!status.ok()) {
      const Caller caller = identity.ok() ? Caller(*identity) : std::nullopt;
      audit_.Tell(caller, MethodOf(kHttpPages), "", status);
    }
    return status;
  }
  void NoteUnreadPage(const transport::ShownCertificate& who, const absl::Status& why) override {
    const absl::StatusOr<Identity> identity = JudgePage(who);
    metrics_.Rpc(MethodOf(kHttpPages), why.code(), absl::ZeroDuration());
    audit_.Tell(identity.ok() ? Caller(*identity) : std::nullopt, MethodOf(kHttpPages), "", why);
  }
  bool Holds(const transport::ShownCertificate& who) const override { return JudgePage(who).ok(); }
  void NoteFailedHandshake(absl::string_view port,
                           const transport::FailedHandshake& failed) override {
    metrics_.HandshakeFailed(port, transport::ToString(failed.fault));
    audit_.TellOfHandshake(port, failed);
  }
  void CountDamagedEntry() override { metrics_.DamagedEntry(); }

 private:
  absl::Status Serve() {
    ASSIGN_OR_RETURN(UniqueFd listening, options_.listening >= 0
                                             ? ListenAlso(options_.listening)
                                             : phalanx::Listen(options_.host, options_.port));
    RETURN_IF_ERROR(MakeServices());
    grpc::EnableDefaultHealthCheckService(true);
    if (options_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.SetMaxSendMessageSize(kMessageBytesMax);
    RefuseCompressed(builder);
    grpc::ResourceQuota quota("coordinator");
    quota.Resize(options_.buffer_bytes_max);
    builder.SetResourceQuota(quota);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                               options_.streams_per_connection_max);
    // A connection that does not say what it is, or has no call for long, makes room.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               MillisecondsOf(options_.handshake_timeout));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300000);
    // Workers that know several coordinators look every 2 s whether theirs is still there.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, MillisecondsOf(options_.ping_interval));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                               MillisecondsOf(options_.ping_timeout));
    // Thousands of sessions that each send a heartbeat a second: gRPC would answer each with a ping
    // of its own, to learn how much to let a sender have under way. It has this much.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kUnreadBytesOfStream);
    // And each has a buffer for what is encrypted next, of 16 KiB by default.
    builder.AddChannelArgument(GRPC_ARG_TSI_MAX_FRAME_SIZE, kEncryptedFrameBytes);
    // Also one that is in the midst of a frame that begins a call, and has none yet.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    const std::shared_ptr<grpc::ServerCredentials> credentials =
        CredentialsOf(options_.tls, options_.join);
    if (options_.tls.on()) {
      ExpectFailedHandshakes(metrics_);
      credentials->SetAuthMetadataProcessor(std::make_shared<Gatekeeper>(
          [this](const grpc::AuthContext& peer) { return CheckNotTakenBack(peer); },
          [this](const Caller& caller, absl::string_view path, const absl::Status& why) {
            metrics_.Rpc(MethodOf(path), why.code(), absl::ZeroDuration());
            audit_.Tell(caller, MethodOf(path), "", why);
          },
          [this](const Caller& caller) { return unread_.Begin(caller); },
          [this](const Caller& caller) { return checks_.Take(caller); }));
    }
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    builder.RegisterService(job_service_.get());
    builder.RegisterService(worker_service_.get());
    builder.RegisterService(join_service_.get());
    builder.RegisterCallbackGenericService(&join_service_->requests());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC did not start");
    port_ = PortOf(listening.get());
    // A worker that lives is never among the silent.
    GateOptions gate = options_.gate;
    gate.silence_min = std::max(gate.silence_min, 2 * options_.sessions.heartbeat_interval);
    ASSIGN_OR_RETURN(
        gate_, ConnectionGate::Open(std::move(listening), gate, [this](int listener, int fd) {
          peers_.Note(fd);
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
          connection.listener_fd = listener;
          connection.fd = fd;
          handshakes_.Watch(PeerNameOf(fd), [&] { acceptor_->HandleNewConnection(&connection); });
        }));
    MutexLock lock(&mu_);
    listening_ = true;
    PublishHealthLocked();
    health_ = std::jthread([this] { FollowHealth(); });
    return absl::OkStatus();
  }

  ConnectionBounds BoundsOfConnections() const {
    return {.of_person_max = 2 * options_.person_connections_max,
            .of_worker_max = 2 * options_.workers.connections_max,
            .person_bytes_max = options_.person_unread_bytes_max,
            .bytes_max = static_cast<int64_t>(options_.buffer_bytes_max / 2)};
  }
  void TellOfEnded(const Caller& caller, bool bytes, const absl::Status& why) {
    if (bytes) metrics_.Rpc(kUnread, why.code(), absl::ZeroDuration());
    audit_.Tell(caller, bytes ? kUnread : kHandshake, "", why);
  }

  absl::Status MakeServices() {
    if (options_.tls.on() && options_.join.store != nullptr) {
      ASSIGN_OR_RETURN(tokens_, JoinTokens::Open(options_.join.store));
    }
    if (options_.tls.on() && !options_.revoked.empty()) {
      ASSIGN_OR_RETURN(revocations_, transport::Revocations::Open(OfRevocations()));
    }
    job_service_ = std::make_unique<JobServiceImpl>(*driver_, board_, metrics_, logs_, watches_,
                                                    log_calls_, admission_, audit_);
    worker_service_ = std::make_unique<WorkerServiceImpl>(WorkerServiceImpl::World{
        .driver = *driver_,
        .sessions = sessions_,
        .logs = logs_,
        .metrics = metrics_,
        .admission = admission_,
        .audit = audit_,
        .holds = [this](const grpc::AuthContext& peer) { return CheckNotTakenBack(peer); }});
    const auto has_node = [this](const std::string& name) {
      return board_.FindNode(name).has_value();
    };
    join_service_ = std::make_unique<JoinServiceImpl>(
        tokens_.get(), options_.join,
        JoinServiceImpl::World{
            .metrics = metrics_,
            .admission = admission_,
            .audit = audit_,
            .has_node = has_node,
            .revoked = [this] { CloseRevoked(); },
            .received = [this](const std::string& peer) { return peers_.BytesFrom(peer); }});
    return absl::OkStatus();
  }

  transport::RevocationOptions OfRevocations() {
    return {.file = options_.revoked,
            .ca = options_.tls.ca,
            .name = "--tls-revoked",
            .refresh_seconds = options_.tls.refresh_seconds,
            .log = options_.driver.log,
            .warn = options_.warn,
            .changed = [this] { CloseRevoked(); }};
  }
  absl::StatusOr<Identity> JudgePage(const transport::ShownCertificate& who) const {
    if (who.chain.empty()) {
      return absl::UnauthenticatedError(
          "show a certificate of a viewer, submitter or operator; /livez and /readyz answer "
          "without one");
    }
    ASSIGN_OR_RETURN(Identity identity, IdentityOfUris(who.uris));
    if (revocations_ != nullptr && revocations_->Has(who.chain)) return RevokedError(identity);
    RETURN_IF_ERROR(CheckTokensOf(who.uris, tokens_.get()));
    return identity;
  }

  absl::Status CheckNotTakenBack(const grpc::AuthContext& peer) const {
    RETURN_IF_ERROR(CheckNotRevoked(revocations_.get(), peer));
    return CheckTokensOf(UrisOf(peer), tokens_.get());
  }
  void FollowQuotas() {
    quota_file_ = std::make_unique<QuotaFile>(QuotaFileOptions{
        .file = options_.quotas,
        .name = "--quotas",
        .quotas = options_.driver.machine.quotas,
        .refresh_interval = options_.quotas_refresh_interval,
        .warn = options_.warn,
        .changed = [this](const Quotas& quotas) { driver_->Post(QuotasChanged{quotas}); }});
  }
  // Calls that are open. Those who begin one are asked by the Gatekeeper.
  void CloseRevoked() {
    const auto such = [this](const grpc::AuthContext& peer) {
      return !CheckNotTakenBack(peer).ok();
    };
    const absl::Status revoked =
        absl::UnauthenticatedError("the certificate is revoked; ask for another one");
    sessions_.CloseOf(such, revoked);
    watches_.CloseOf(such, revoked);
    log_calls_.CloseOf(such, revoked);
  }

  // Until whoever called before has the answer that was given. Uploads of logs have none.
  void AwaitAnswered(absl::Duration patience) const {
    const SteadyTime start = SteadyNow();
    const auto open = [this] {
      return metrics_.calls_open() != 0 ||
             sessions_.size() + watches_.size() + log_calls_.size() != 0;
    };
    while (open() && Since(start) < patience) absl::SleepFor(kLookInterval);
  }

  // For good: a stopping coordinator does not come back.
  void StopServing() {
    MutexLock lock(&mu_);
    stopped_ = true;
    PublishHealthLocked();
    stops_.SignalAll();
  }

  // A store that does not answer and a driver that hangs tell nobody.
  void FollowHealth() ABSL_LOCKS_EXCLUDED(mu_) {
    pthread_setname_np(pthread_self(), "health");
    MutexLock lock(&mu_);
    while (!stopped_) {
      PublishHealthLocked();
      stops_.WaitUntil(&mu_, SteadyNow() + absl::ToChronoNanoseconds(kHealthInterval));
    }
  }

  // As readiness() has it. Whoever watches is told of changes alone.
  void PublishHealthLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool serving =
        listening_ && !stopped_ && driver_->accepting().ok() && driver_->alive().ok();
    serving_ = serving;
    grpc::HealthCheckServiceInterface* health =
        listening_ ? server_->GetHealthCheckService() : nullptr;
    if (health == nullptr || std::exchange(published_, serving) == serving) return;
    health->SetServingStatus("phalanx.v1.JobService", serving);
    health->SetServingStatus("phalanx.v1.WorkerService", serving);
    health->SetServingStatus(serving);
  }

  // Destroyed from the last to the first: services before the driver that they call.
  const ServerOptions options_;
  const SystemClock clock_;
  mutable Metrics metrics_;
  Board board_;
  LogRelay logs_;
  SessionRegistry sessions_;
  OpenCalls watches_;
  OpenCalls log_calls_;
  OpenPeers peers_;
  mutable UnreadRequests unread_{
      options_.unread, [this](const Caller& caller, int64_t count, const absl::Status& why) {
        for (int64_t i = 0; i < count; ++i) metrics_.Rpc(kUnread, why.code(), absl::ZeroDuration());
        audit_.Tell(caller, kUnread, "", why);
      }};
  Admission admission_;
  CallRate checks_{options_.rate};  // of health, which other calls keep nobody from
  Audit audit_;
  CallerConnections connections_{
      BoundsOfConnections(),
      {.end = [this](const std::string& peer) { peers_.End(peer); },
       .waits = [this](const Caller& caller) { return unread_.Has(caller); },
       .ended = [this](const Caller& caller, bool bytes,
                       const absl::Status& why) { TellOfEnded(caller, bytes, why); }}};
  transport::HandshakeWatch handshakes_{
      [this](const transport::FailedHandshake& failed) { NoteFailedHandshake("grpc", failed); },
      [this](const std::string& peer, const std::vector<std::string>& uris) {
        return connections_.Begin(peer, uris);
      }};
  std::unique_ptr<JoinTokens> tokens_;                   // null: there are none
  std::unique_ptr<transport::Revocations> revocations_;  // null: nothing is revoked
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<QuotaFile> quota_file_;  // null: none is followed
  std::unique_ptr<JobServiceImpl> job_service_;
  std::unique_ptr<WorkerServiceImpl> worker_service_;
  std::unique_ptr<JoinServiceImpl> join_service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<ConnectionGate> gate_;
  int port_ = 0;
  Mutex mu_;
  bool listening_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<bool> published_ ABSL_GUARDED_BY(mu_);  // none: nothing yet
  CondVar stops_;
  std::atomic<bool> serving_ = false;
  std::atomic<bool> shut_down_ = false;
  std::jthread health_;  // last member: ends before what it reads is destroyed
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options,
                                                      std::unique_ptr<Backend> backend) {
  if (options.sessions.heartbeat_interval <= absl::ZeroDuration() ||
      options.sessions.heartbeat_timeout < 2 * options.sessions.heartbeat_interval) {
    return absl::InvalidArgumentError(
        "the heartbeat timeout must be at least twice the heartbeat interval");
  }
  if (absl::Status status = transport::CheckTlsFiles(options.tls, "--tls-"); !status.ok()) {
    return status;
  }
  // Nobody gets in with it, and only they are told why.
  if (absl::Status holds = transport::CheckHolds(options.tls, "--tls-", absl::Now()); !holds.ok())
    options.warn(std::string(holds.message()));
  if (absl::Status status =
          transport::CheckSignerFiles(options.join.signer, options.tls.ca, "--join-ca-");
      !status.ok()) {
    return status;
  }
  // Kept for the life of the process: when its last user goes, gRPC 1.51 takes itself down and may
  // wait 10 s for a poller of its own.
  static const bool kept = (grpc_init(), true);
  static_cast<void>(kept);
#ifdef NDEBUG
  // Debian builds Abseil, whose locks gRPC takes too, with a search for deadlocks that passes every
  // lock of the process through one more.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  options.sessions.store = backend->identity();
  auto server = std::make_unique<ServerImpl>(std::move(options));
  if (absl::Status status = server->Begin(std::move(backend)); !status.ok()) return status;
  return server;
}

}  // namespace phalanx::coordinator
