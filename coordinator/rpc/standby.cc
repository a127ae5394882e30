#include "coordinator/rpc/standby.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/net/connection_gate.h"
#include "coordinator/net/open_peers.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/audit.h"
#include "coordinator/rpc/join_service.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/posix/peer_name.h"
#include "core/posix/socket.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "transport/revocation.h"

namespace phalanx::coordinator {
namespace {

constexpr char kServices[][32] = {"", "phalanx.v1.JobService", "phalanx.v1.WorkerService"};

grpc::Status StandbyStatus(const std::string& leader) {
  const std::string message = absl::StrCat(
      "this coordinator stands by: ",
      leader.empty() ? "nobody leads at the moment, ask again" : absl::StrCat(leader, " leads"));
  google::rpc::ErrorInfo info;
  info.set_reason("STANDBY");
  info.set_domain("phalanx");
  (*info.mutable_metadata())["leader"] = leader;
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  google::rpc::Status details;
  details.set_code(static_cast<int>(grpc::StatusCode::UNAVAILABLE));
  details.set_message(message);
  details.add_details()->PackFrom(info);
  details.add_details()->PackFrom(retry);
  return {grpc::StatusCode::UNAVAILABLE, message, details.SerializeAsString()};
}

// Lives until its call is done.
class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class StandbyServerImpl final : public StandbyServer, public grpc::CallbackGenericService {
 public:
  StandbyServerImpl(const ServerOptions& options, Metrics& metrics)
      : options_(options),
        metrics_(metrics),
        audit_(options_.audit, options_.refusals, [this] { metrics_.AuditLineDropped(); }) {}
  ~StandbyServerImpl() override {
    gate_.reset();
    if (server_ == nullptr) return;
    // Calls that have come are answered, which takes no time.
    peers_.EndAll();
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
    server_->Wait();
  }

  absl::Status Begin() {
    ASSIGN_OR_RETURN(UniqueFd listening, ListenAlso(options_.listening));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    RefuseCompressed(builder);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                               options_.streams_per_connection_max);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    const std::shared_ptr<grpc::ServerCredentials> credentials =
        CredentialsOf(options_.tls, options_.join);
    if (options_.tls.on()) {
      ExpectFailedHandshakes(metrics_);
      RETURN_IF_ERROR(AddGatekeeper(*credentials));
    }
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC did not start");
    for (const char* service : kServices) {
      server_->GetHealthCheckService()->SetServingStatus(service, false);
    }
    ASSIGN_OR_RETURN(gate_, ConnectionGate::Open(
                                std::move(listening), options_.gate,
                                [this](int listener, int fd) { TakeConnection(listener, fd); }));
    return absl::OkStatus();
  }

  absl::Status AdmitToPage(const transport::ShownCertificate& who) override {
    const absl::StatusOr<Identity> identity = IdentityOfUris(who.uris);
    absl::Status status = identity.status();
    if (status.ok() && revocations_ != nullptr && revocations_->Has(who.chain)) {
      status = RevokedError(*identity);
    }
    if (status.ok()) status = MayCall(identity->role, kHttpPages);
    if (!status.ok()) audit_.Tell(std::nullopt, MethodOf(kHttpPages), "", status);
    return status;
  }

  void NoteFailedHandshake(absl::string_view port,
                           const transport::FailedHandshake& failed) override {
    metrics_.HandshakeFailed(port, transport::ToString(failed.fault));
    audit_.TellOfHandshake(port, failed);
  }

  std::string MetricsText() override {
    Gauges gauges{.certificates = transport::ExpiriesOf(options_.certificates),
                  .usage = UsageOfThisProcess()};
    {
      MutexLock lock(&mu_);
      gauges.standby = !leader_.empty();
    }
    return metrics_.Text(gauges);
  }

  void SetLeader(const std::string& leader) override {
    MutexLock lock(&mu_);
    leader_ = leader;
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    MutexLock lock(&mu_);
    return new Refusal(StandbyStatus(leader_));
  }

 private:
  absl::Status AddGatekeeper(grpc::ServerCredentials& credentials) {
    if (!options_.revoked.empty()) {
      ASSIGN_OR_RETURN(revocations_, transport::Revocations::Open(
                                         {.file = options_.revoked,
                                          .ca = options_.tls.ca,
                                          .name = "--tls-revoked",
                                          .refresh_seconds = options_.tls.refresh_seconds,
                                          .log = options_.driver.log,
                                          .warn = options_.warn,
                                          .changed = [] {}}));
    }
    credentials.SetAuthMetadataProcessor(std::make_shared<Gatekeeper>(
        [this](const grpc::AuthContext& peer) { return CheckNotRevoked(revocations_.get(), peer); },
        [this](const Caller& caller, absl::string_view path, const absl::Status& why) {
          audit_.Tell(caller, MethodOf(path), "", why);
        }));
    return absl::OkStatus();
  }

  void TakeConnection(int listener, int fd) {
    peers_.Note(fd);
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    handshakes_.Watch(PeerNameOf(fd), [&] { acceptor_->HandleNewConnection(&connection); });
  }

  // Destroyed from the last to the first.
  const ServerOptions options_;
  Metrics& metrics_;
  Audit audit_;
  OpenPeers peers_;
  transport::HandshakeWatch handshakes_{
      [this](const transport::FailedHandshake& failed) { NoteFailedHandshake("grpc", failed); }};
  Mutex mu_;
  std::string leader_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<transport::Revocations> revocations_;  // null: nothing is revoked
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<ConnectionGate> gate_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Start(const ServerOptions& options,
                                                                    Metrics& metrics) {
  RETURN_IF_ERROR(transport::CheckTlsFiles(options.tls, "--tls-"));
  auto server = std::make_unique<StandbyServerImpl>(options, metrics);
  RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace phalanx::coordinator
