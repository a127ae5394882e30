// tests/rpc/access_fixture.h: a coordinator with certificates, and those who call it.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/access.h"
#include "coordinator/store/token_file.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "phalanx/v1/join_service.pb.h"
#include "tests/rpc/fixture.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {

// Every method of ours, as "/phalanx.v1.JobService/GetJob".
inline std::vector<std::string> Methods() {
  std::vector<std::string> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::SubmitJobRequest::descriptor()->file(), v1::WorkerHello::descriptor()->file(),
        v1::JoinRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor& service = *file->service(i);
      for (int k = 0; k < service.method_count(); ++k)
        methods.push_back(absl::StrCat("/", service.full_name(), "/", service.method(k)->name()));
    }
  }
  return methods;
}

class AccessTest : public RpcTest {
 protected:
  void SetUp() override { Open(); }
  void Open(const std::function<void(ServerOptions& options)>& change = [](ServerOptions&) {}) {
    ServerOptions options;
    options.rate = {.calls_per_second = 0};
    options.tls = authority().Coordinator();
    options.revoked = authority().revoked();
    options.driver.machine.allow_inject = true;
    options.audit = [this](const std::string& line) {
      MutexLock lock(&mutex_);
      audit_.push_back(line);
      audit_changed_.SignalAll();
    };
    change(options);
    Start(std::move(options));
  }
  // With tokens that are kept in `file`, and a key to sign with.
  static void LetNodesJoin(ServerOptions& options, const std::string& file) {
    const std::string& folder = authority().folder();
    options.join = {.store = std::make_shared<TokenFile>(file),
                    .signer = {.certificate = folder + "/ca.pem", .key = folder + "/ca-key.pem"},
                    .rate = {.calls_per_second = 0},
                    .network_rate = {.calls_per_second = 0}};
  }

  // One for all tests of the program: keys take their time.
  static support::Authority& authority() {
    static auto& one = *new support::Authority();
    return one;
  }
  static transport::TlsFiles FilesOf(Role role) {
    if (role == Role::kWorker) return authority().Worker("here");
    return authority().User(absl::StrCat("a-", RoleName(role)), std::string(RoleName(role)));
  }

  std::shared_ptr<grpc::Channel> ChannelWith(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()), credentials,
                                     arguments);
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const transport::TlsFiles& files) const {
    return ChannelWith(transport::ClientCredentials(files));
  }
  // Of whoever knows the authority and has no certificate.
  std::shared_ptr<grpc::Channel> ChannelOfStranger() const {
    return ChannelOf({.ca = authority().folder() + "/ca.pem"});
  }
  // The calls of RpcTest come from this person.
  void Be(const std::string& name, const std::string& role) {
    channel = ChannelOf(authority().User(name, role));
    jobs = v1::JobService::NewStub(channel);
  }

  // Any call of one request, which is empty unless `bytes` says otherwise. `answer`: nullptr: it is
  // not looked at.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& to, const std::string& path,
                           const std::string& bytes = "", std::string* answer = nullptr) {
    grpc::GenericStub stub(to);
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::CompletionQueue queue;
    const grpc::Slice text(bytes);
    const grpc::ByteBuffer request(&text, 1);
    auto call = stub.PrepareUnaryCall(&context, path, request, &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    grpc::Slice whole;
    if (answer != nullptr && status.ok() && response.DumpToSingleSlice(&whole).ok())
      answer->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
    return status;
  }
  template <typename Request, typename Response>
  grpc::Status Ask(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                   const std::string& job, Response* response) {
    Request request;
    request.set_job(job);
    grpc::ClientContext context;
    SetDeadline(context);
    return ((*jobs).*method)(&context, request, response);
  }
  grpc::Status Cancel(const std::string& job) {
    v1::CancelJobResponse response;
    return Ask(&v1::JobService::Stub::CancelJob, job, &response);
  }
  grpc::Status Delete(const std::string& job) {
    v1::DeleteJobResponse response;
    return Ask(&v1::JobService::Stub::DeleteJob, job, &response);
  }
  std::vector<std::string> NamesOf(const std::string& owner) {
    v1::ListJobsRequest request;
    request.set_owner(owner);
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(jobs->ListJobs(&context, request, &response).ok());
    std::vector<std::string> names;
    for (const v1::JobStatus& job : response.jobs()) names.push_back(job.name());
    return names;
  }
  std::vector<std::string> Audit() {
    MutexLock lock(&mutex_);
    return audit_;
  }

  // Waits until `count` lines of the audit have `part`, for kPatience at most; how many have it.
  int64_t AwaitAudit(const std::string& part, int64_t count) {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
    MutexLock lock(&mutex_);
    while (true) {
      const int64_t told =
          std::count_if(audit_.begin(), audit_.end(),
                        [&part](const std::string& line) { return absl::StrContains(line, part); });
      if (told >= count || audit_changed_.WaitUntil(&mutex_, deadline)) return told;
    }
  }

  // How many handshakes of the port, "grpc" or "http", came to nothing for the reason.
  int HandshakesFailed(const std::string& port, const std::string& reason) const {
    const std::string metrics = server_->MetricsText();
    const std::string series = absl::StrCat("phalanx_tls_handshakes_failed_total{port=\"", port,
                                            "\",reason=\"", reason, "\"} ");
    const size_t at = metrics.find(series);
    return at == std::string::npos ? 0 : std::stoi(metrics.substr(at + series.size()));
  }
  // One more than `before` fails, and the audit says of where and why. The server comes to its
  // verdict after its client.
  void ExpectFailedHandshake(const std::string& port, const std::string& reason, int before,
                             const std::string& why) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (HandshakesFailed(port, reason) == before && absl::Now() < deadline) continue;
    EXPECT_GT(HandshakesFailed(port, reason), before) << reason;
    const auto told = [&] {
      return ::testing::Value(
          Audit(),
          ::testing::Contains(::testing::AllOf(
              ::testing::HasSubstr(absl::StrCat("audit who=- role=- method=handshake port=", port,
                                                " peer=ipv4:127.0.0.1:")),
              ::testing::HasSubstr(
                  absl::StrCat(" outcome=UNAUTHENTICATED reason=\"", why, "\"")))));
    };
    // The count comes before the line.
    while (!told() && absl::Now() < deadline) continue;
    EXPECT_TRUE(told()) << why;
  }
  // What an operator sees of jobs, nodes and events, and how much is stored.
  std::string Everything() {
    static const transport::TlsFiles olga = authority().User("olga", "operator");
    const auto operators = v1::JobService::NewStub(ChannelOf(olga));
    const auto answer = [](const auto& ask) {
      grpc::ClientContext context;
      SetDeadline(context);
      return ask(&context);
    };
    v1::ListJobsResponse list;
    EXPECT_TRUE(
        answer([&](auto* context) { return operators->ListJobs(context, {}, &list); }).ok());
    v1::ListNodesResponse nodes;
    EXPECT_TRUE(
        answer([&](auto* context) { return operators->ListNodes(context, {}, &nodes); }).ok());
    for (v1::NodeStatus& node : *nodes.mutable_nodes()) node.clear_last_heartbeat();
    std::string text =
        absl::StrCat(disk->records().size(), " records\n", list.DebugString(), nodes.DebugString());
    for (const v1::JobStatus& job : list.jobs()) {
      v1::ListEventsRequest request;
      request.set_job(job.name());
      v1::ListEventsResponse events;
      EXPECT_TRUE(answer([&](auto* context) {
                    return operators->ListEvents(context, request, &events);
                  }).ok());
      absl::StrAppend(&text, events.DebugString());
    }
    return text;
  }

  Mutex mutex_;
  CondVar audit_changed_;
  std::vector<std::string> audit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace phalanx::coordinator
