// Who gets in over mutual TLS, and who may do what.
#include "coordinator/rpc/access.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/audit.h"
#include "coordinator/rpc/call_rate.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "tests/rpc/fixture.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "transport/revocation.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Eq;
using ::testing::HasSubstr;

// Every method of ours, as "/phalanx.v1.JobService/GetJob".
std::vector<std::string> Methods() {
  std::vector<std::string> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::SubmitJobRequest::descriptor()->file(), v1::WorkerHello::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor& service = *file->service(i);
      for (int k = 0; k < service.method_count(); ++k)
        methods.push_back(absl::StrCat("/", service.full_name(), "/", service.method(k)->name()));
    }
  }
  return methods;
}

// What is not for viewers and up, as docs/security.md has it.
bool Expected(Role role, const std::string& path) {
  static const std::set<std::string> submitters = {"SubmitJob", "CancelJob", "SuspendJob",
                                                   "ResumeJob", "DeleteJob", "InjectFault"};
  static const std::set<std::string> operators = {"CordonNode", "UncordonNode", "DrainNode"};
  const std::string method = path.substr(path.rfind('/') + 1);
  if (path.find("WorkerService") != std::string::npos) return role == Role::kWorker;
  if (role == Role::kWorker) return false;
  if (operators.contains(method)) return role == Role::kOperator;
  return role != Role::kViewer || !submitters.contains(method);
}

class AccessTest : public RpcTest {
 protected:
  void SetUp() override { Open(); }
  void Open(CallRateOptions rate = {.calls_per_second = 0}) {
    ServerOptions options;
    options.rate = rate;
    options.tls = authority().Coordinator();
    options.revoked = authority().revoked();
    options.driver.machine.allow_inject = true;
    options.audit = [this](const std::string& line) {
      MutexLock lock(&mutex_);
      audit_.push_back(line);
    };
    Start(std::move(options));
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
  // The calls of RpcTest come from this person.
  void Be(const std::string& name, const std::string& role) {
    channel = ChannelOf(authority().User(name, role));
    jobs = v1::JobService::NewStub(channel);
  }

  // Any call, with an empty request.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& to, const std::string& path) {
    grpc::GenericStub stub(to);
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::CompletionQueue queue;
    const grpc::Slice nothing("", 0);
    const grpc::ByteBuffer request(&nothing, 1);
    auto call = stub.PrepareUnaryCall(&context, path, request, &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
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

  Mutex mutex_;
  std::vector<std::string> audit_ ABSL_GUARDED_BY(mutex_);
};

TEST(AccessTableTest, EveryMethod_HasARow) {
  ASSERT_GT(Methods().size(), 18u);
  for (const std::string& method : Methods()) {
    bool any = false;
    for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kWorker})
      any = any || MayCall(role, method).ok();
    EXPECT_TRUE(any) << method << " has no row in coordinator/rpc/access.cc";
  }
}

TEST(AccessTableTest, MethodWithoutARow_IsForNobody) {
  for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kWorker}) {
    for (const char* path : {"/phalanx.v1.JobService/Other", "GetJob", ""})
      EXPECT_TRUE(absl::IsPermissionDenied(MayCall(role, path))) << path;
  }
  EXPECT_EQ(MethodOf("/phalanx.v1.JobService/Other"), "unknown");
}

TEST(AccessTableTest, Identity_IsARoleAndAName) {
  const absl::StatusOr<Identity> identity = ParseIdentity("phalanx:operator/olga@example.org");
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->name, "olga@example.org");
  EXPECT_EQ(identity->role, Role::kOperator);
  for (const std::string& uri :
       {std::string("phalanx:operator/"), std::string("phalanx:root/a"),
        std::string("phalanx:operator"), std::string("operator/a"),
        std::string("phalanx:operator/a b"), std::string("phalanx:operator/a/b"),
        std::string("phalanx:operator/a\n"),
        absl::StrCat("phalanx:viewer/", std::string(254, 'a'))}) {
    EXPECT_TRUE(absl::IsUnauthenticated(ParseIdentity(uri).status())) << uri;
  }
}

TEST(AuditTest, TextOfACaller_EndsNeitherTheQuotesNorTheLine) {
  EXPECT_EQ(AuditLine(Identity{"sam", Role::kSubmitter}, "CancelJob", "",
                      absl::NotFoundError("no \"x\\\" outcome=OK\n\x1b[2J")),
            "audit who=sam role=submitter method=CancelJob outcome=NOT_FOUND "
            "reason=\"no \\\"x\\\\\\\" outcome=OK\\n\\x1b[2J\"");
  EXPECT_EQ(AuditLine(std::nullopt, "DrainNode", "node=\"a\"", absl::OkStatus()),
            "audit who=- role=- method=DrainNode node=\"a\" outcome=OK");
}

class RoleTest : public AccessTest, public ::testing::WithParamInterface<Role> {};

TEST_P(RoleTest, EachMethod_IsForItsRolesAlone) {
  const std::shared_ptr<grpc::Channel> to = ChannelOf(FilesOf(GetParam()));
  for (const std::string& method : Methods()) {
    const grpc::Status status = Call(to, method);
    const bool denied = status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
    EXPECT_EQ(!denied, Expected(GetParam(), method)) << method << ": " << status.error_message();
    // What is let pass gets to our code, and an empty request says nothing to it.
    EXPECT_THAT(status.error_code(),
                AnyOf(grpc::StatusCode::OK, grpc::StatusCode::PERMISSION_DENIED,
                      grpc::StatusCode::NOT_FOUND, grpc::StatusCode::INVALID_ARGUMENT))
        << method << ": " << status.error_message();
  }
  EXPECT_TRUE(Call(to, "/grpc.health.v1.Health/Check").ok());
  EXPECT_EQ(Call(to, "/phalanx.v1.JobService/Other").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  if (GetParam() == Role::kOperator) return;
  const std::string refused = absl::StrCat("role=", RoleName(GetParam()), " method=DrainNode ");
  EXPECT_THAT(Audit(), Contains(AllOf(HasSubstr(refused), HasSubstr("PERMISSION_DENIED"))));
}

INSTANTIATE_TEST_SUITE_P(All, RoleTest,
                         ::testing::Values(Role::kViewer, Role::kSubmitter, Role::kOperator,
                                           Role::kWorker),
                         [](const auto& info) { return std::string(RoleName(info.param)); });

TEST_F(AccessTest, CertificateThatIsNotOurs_GetsNowhere) {
  const support::Authority foreign;
  const std::string get = "/phalanx.v1.JobService/ListJobs";
  transport::TlsFiles stranger = foreign.User("olga", "operator");
  stranger.ca = authority().User("olga", "operator").ca;
  EXPECT_EQ(Call(ChannelOf(stranger), get).error_code(), grpc::StatusCode::UNAVAILABLE);

  const transport::TlsFiles expired = authority().User("late", "operator", -1);
  EXPECT_EQ(Call(ChannelOf(expired), get).error_code(), grpc::StatusCode::UNAVAILABLE);

  // That of a coordinator is for serving.
  EXPECT_EQ(Call(ChannelOf(authority().Coordinator()), get).error_code(),
            grpc::StatusCode::UNAVAILABLE);

  grpc::experimental::TlsChannelCredentialsOptions none;
  none.set_certificate_provider(std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      support::ReadFile(stranger.ca)));
  none.watch_root_certs();
  EXPECT_EQ(Call(ChannelWith(grpc::experimental::TlsCredentials(none)), get).error_code(),
            grpc::StatusCode::UNAVAILABLE);

  EXPECT_EQ(Call(ChannelWith(grpc::InsecureChannelCredentials()), get).error_code(),
            grpc::StatusCode::UNAVAILABLE);

  // And somebody else's coordinator is not ours.
  transport::TlsFiles elsewhere = authority().User("olga", "operator");
  EXPECT_TRUE(Call(ChannelOf(elsewhere), get).ok());
  elsewhere.ca = foreign.folder() + "/ca.pem";
  EXPECT_EQ(Call(ChannelOf(elsewhere), get).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AccessTest, Job_IsOfWhoeverSubmittedIt) {
  Be("sue", "submitter");
  MustSubmit(JobText("sues"));
  Be("sam", "submitter");
  const int64_t job = MustSubmit(JobText("sams"));
  EXPECT_EQ(Get("sams").owner(), "sam");
  EXPECT_THAT(NamesOf("sam"), ::testing::ElementsAre("sams"));
  EXPECT_THAT(NamesOf("nobody"), ::testing::IsEmpty());

  server_.reset();
  Open();
  Be("sue", "submitter");
  v1::SuspendJobResponse suspended;
  EXPECT_THAT(Cancel("sams").error_message(),
              Eq("job-2 is sam's; only they or an operator may cancel it"));
  EXPECT_EQ(Ask(&v1::JobService::Stub::SuspendJob, "sams", &suspended).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Get("sams").phase(), v1::JOB_PHASE_QUEUED) << "nothing has changed";
  EXPECT_FALSE(Get("sams").suspended());

  Be("olga", "operator");
  EXPECT_TRUE(Ask(&v1::JobService::Stub::SuspendJob, "sams", &suspended).ok());
  EXPECT_EQ(Get("sams").reason(), "suspended by olga");
  Be("sam", "submitter");
  EXPECT_TRUE(Cancel("sams").ok());
  EXPECT_EQ(Get("sams").reason(), "cancelled by sam");
  EXPECT_THAT(Audit(), Contains(absl::StrCat("audit who=sam role=submitter method=CancelJob job=",
                                             job, " outcome=OK")));
  EXPECT_THAT(Audit(),
              Contains(HasSubstr(absl::StrCat("audit who=sue role=submitter method=CancelJob job=",
                                              job, " outcome=PERMISSION_DENIED reason="))));
}

TEST_F(AccessTest, JobThatHasEnded_IsStillItsOwners) {
  Be("sam", "submitter");
  MustSubmit(JobText("sams"));
  EXPECT_TRUE(Cancel("sams").ok());
  server_.reset();
  Open();
  Be("sue", "submitter");
  EXPECT_EQ(Get("sams").owner(), "sam");
  EXPECT_EQ(Delete("sams").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Cancel("sams").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  Be("sam", "submitter");
  EXPECT_TRUE(Delete("sams").ok());
}

TEST_F(AccessTest, JobOfTimesOfPlaintext_IsForOperators) {
  server_.reset();
  Start();  // in plaintext
  MustSubmit(JobText("old"));
  EXPECT_EQ(Get("old").owner(), "");
  server_.reset();
  Open();
  Be("sam", "submitter");
  EXPECT_THAT(Cancel("old").error_message(),
              Eq("job-1 has no owner; only an operator may cancel it"));
  Be("olga", "operator");
  EXPECT_TRUE(Cancel("old").ok());
}

TEST_F(AccessTest, RequestIdOfSomebodyElse_IsAnother) {
  v1::SubmitJobResponse first, second, again;
  Be("sam", "submitter");
  ASSERT_TRUE(Submit(JobText("sams"), first, "1").ok());
  Be("sue", "submitter");
  const grpc::Status status = Submit(JobText("sues"), second, "1");
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_TRUE(Submit(JobText("sues"), again, "1").ok());
  EXPECT_NE(second.job().id(), first.job().id());
  EXPECT_EQ(again.job().id(), second.job().id());
}

TEST_F(AccessTest, Worker_ServesTheNodeOfItsCertificate) {
  const std::shared_ptr<grpc::Channel> to = ChannelOf(authority().Worker("here"));
  FakeWorker other(to);
  other.SayHello(FakeWorker::Hello("there", 1, 1));
  EXPECT_FALSE(other.Read().has_value());
  const grpc::Status refused = other.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("of node here"));
  FakeWorker own(to);
  own.Join("here", 1);
}

TEST_F(AccessTest, CertificateThatIsRevoked_GetsNoFurther) {
  const std::string list = "/phalanx.v1.JobService/ListJobs";
  const transport::TlsFiles rex = authority().User("rex", "operator");
  const std::shared_ptr<grpc::Channel> open = ChannelOf(rex);
  ASSERT_TRUE(Call(open, list).ok());
  channel = open;
  jobs = v1::JobService::NewStub(channel);
  MustSubmit(JobText("rexs"));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  request.set_job("rexs");
  v1::WatchJobResponse response;
  const auto watch = jobs->WatchJob(&context, request);
  ASSERT_TRUE(watch->Read(&response));
  FakeWorker gone(ChannelOf(authority().Worker("gone")));
  gone.Join("gone", 1);
  FakeWorker stays(ChannelOf(authority().Worker("here")));
  stays.Join("here", 1);

  authority().Revoke("user-rex");
  authority().Revoke("worker-gone");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (Call(open, list).ok() && absl::Now() < deadline) continue;
  for (const auto& to : {open, ChannelOf(rex)}) {
    const grpc::Status refused = Call(to, list);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(refused.error_message(), "the certificate of rex is revoked; ask for another one");
  }
  EXPECT_THAT(Audit(),
              Contains(HasSubstr("audit who=rex role=operator method=ListJobs "
                                 "outcome=UNAUTHENTICATED reason=\"the certificate of rex is")));
  while (watch->Read(&response)) continue;
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED) << "it was open";
  while (gone.Read().has_value()) continue;
  EXPECT_EQ(gone.Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED) << "it was open";

  // Others, and a new certificate of the same name, are as they were.
  EXPECT_TRUE(Call(ChannelOf(authority().User("rex", "operator")), list).ok());
  EXPECT_TRUE(stays.Write(v1::OpenSessionRequest()));
  Be("olga", "operator");
  EXPECT_EQ(Get("rexs").owner(), "rex");
}

TEST_F(AccessTest, PersonWhoCallsTooOften_IsToldWhenToAskAgain_AndOthersNoticeNothing) {
  server_.reset();
  Open({.calls_per_second = 0.001, .calls_at_once = 3});
  Be("vera", "viewer");
  const std::string list = "/phalanx.v1.JobService/ListJobs";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Call(channel, list).ok()) << i;
  const grpc::Status refused = Call(channel, list);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(),
            "vera calls more often than 0.001 times a second; ask again in 1 s");
  EXPECT_THAT(refused.error_details(), HasSubstr("google.rpc.RetryInfo"));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  request.set_job("job-1");
  v1::WatchJobResponse response;
  const auto watch = jobs->WatchJob(&context, request);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Call(channel, "/grpc.health.v1.Health/Check").ok()) << "is not counted";
  Be("sam", "submitter");
  EXPECT_TRUE(Call(channel, list).ok());
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  worker.Join("here", 1);
}

TEST(CallRateTest, Store_FillsAtItsRate_UpToItsSize) {
  CallRate rate({.calls_per_second = 2, .calls_at_once = 4});
  const Caller vera = Identity{"vera", Role::kViewer};
  const SteadyTime start;
  const auto taken = [&](absl::Duration since, const Caller& caller) {
    int calls = 0;
    while (calls < 100 && rate.Take(caller, start + absl::ToChronoNanoseconds(since)).ok()) ++calls;
    return calls;
  };
  EXPECT_EQ(taken(absl::ZeroDuration(), vera), 4);
  EXPECT_EQ(taken(absl::Milliseconds(400), vera), 0);
  EXPECT_EQ(taken(absl::Milliseconds(500), vera), 1);
  EXPECT_EQ(taken(absl::Hours(1), vera), 4);
  EXPECT_EQ(taken(absl::Hours(1), Identity{"here", Role::kWorker}), 100);
  EXPECT_EQ(taken(absl::Hours(1), std::nullopt), 100) << "in plaintext";
}

TEST(CallRateTest, AtTheBound_FullStoresMakeRoom) {
  CallRate rate({.calls_per_second = 1, .calls_at_once = 1, .callers_max = 2});
  const SteadyTime start;
  for (const char* name : {"a", "b"})
    EXPECT_TRUE(rate.Take(Identity{name, Role::kViewer}, start).ok());
  const Caller third = Identity{"c", Role::kViewer};
  EXPECT_TRUE(absl::IsResourceExhausted(rate.Take(third, start)));
  EXPECT_TRUE(rate.Take(third, start + std::chrono::seconds(1)).ok());
}

TEST(RevocationsTest, WhatIsWrong_IsNamed) {
  const support::Authority own, foreign;
  const std::string ca = own.Coordinator().ca;
  const std::string foreign_ca = foreign.Coordinator().ca;
  const auto fault = [&](const std::string& file) {
    return std::string(
        transport::Revocations::Open({.file = file, .ca = ca, .name = "--tls-revoked"})
            .status()
            .message());
  };
  EXPECT_EQ(fault(own.revoked()), "");
  EXPECT_EQ(fault("/nowhere"),
            "--tls-revoked: /nowhere: cannot be opened: No such file or directory");
  EXPECT_EQ(fault(ca), absl::StrCat("--tls-revoked: ", ca,
                                    ": must begin with a certificate revocation list in PEM"));
  EXPECT_EQ(fault(foreign.revoked()),
            absl::StrCat("--tls-revoked: ", foreign.revoked(),
                         ": a list in it is signed by no authority of ", ca));
}

TEST(RevocationsTest, ListThatIsSpoilt_ChangesNothing) {
  const support::Authority authority;
  const std::string bad = support::ReadFile(authority.User("bad", "viewer").certificate);
  const std::string good = support::ReadFile(authority.User("good", "viewer").certificate);
  authority.Revoke("user-bad");
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> lines;
  const auto revocations = transport::Revocations::Open({.file = authority.revoked(),
                                                         .ca = authority.folder() + "/ca.pem",
                                                         .name = "--tls-revoked",
                                                         .refresh_seconds = 1,
                                                         .log = [&](const std::string& line) {
                                                           MutexLock lock(&mutex);
                                                           lines.push_back(line);
                                                           changed.SignalAll();
                                                         }});
  ASSERT_TRUE(revocations.ok()) << revocations.status();
  EXPECT_TRUE((*revocations)->Has(bad));
  EXPECT_FALSE((*revocations)->Has(good));
  EXPECT_TRUE((*revocations)->Has(good + bad)) << "one of a chain";
  support::WriteFile(authority.revoked(), "spoilt");
  {
    MutexLock lock(&mutex);
    while (lines.size() < 2) changed.Wait(&mutex);
    EXPECT_EQ(lines[1], absl::StrCat("--tls-revoked: ", authority.revoked(),
                                     ": must begin with a certificate revocation list in PEM; "
                                     "what was read before holds"));
  }
  EXPECT_TRUE((*revocations)->Has(bad));
}

TEST_F(AccessTest, CertificateInPlaceOfAnother_IsShownWithoutARestart) {
  const transport::TlsFiles user = authority().User("vera", "viewer");
  // Empty: the call got nowhere.
  const auto shown = [&]() -> std::string {
    v1::ListNodesResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stub = v1::JobService::NewStub(ChannelOf(user));
    if (!stub->ListNodes(&context, v1::ListNodesRequest(), &response).ok()) return "";
    const std::vector<grpc::string_ref> pem =
        context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    return pem.empty() ? "" : std::string(pem[0].data(), pem[0].size());
  };
  EXPECT_EQ(shown(), support::ReadFile(authority().folder() + "/coordinator.pem"));
  const std::string renewed = support::ReadFile(authority().Coordinator().certificate);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  // Each round is a handshake of its own.
  while (shown() != renewed && absl::Now() < deadline) continue;
  EXPECT_EQ(shown(), renewed);
}

TEST(TlsFilesTest, WhatIsWrong_IsNamed) {
  const support::Authority authority;
  const transport::TlsFiles good = authority.User("sam", "submitter");
  EXPECT_TRUE(transport::CheckTlsFiles(good, "--tls-").ok());
  EXPECT_TRUE(transport::CheckTlsFiles({}, "--tls-").ok()) << "plaintext";
  const auto fault = [](const transport::TlsFiles& files) {
    return std::string(transport::CheckTlsFiles(files, "--tls-").message());
  };
  transport::TlsFiles bad = good;
  bad.key = "";
  EXPECT_THAT(fault(bad), HasSubstr("--tls-key is missing"));
  bad.key = authority.User("sue", "submitter").key;
  EXPECT_EQ(fault(bad),
            absl::StrCat("--tls-key: ", bad.key, ": is not the key of ", bad.certificate));
  bad = good;
  bad.ca = "/nowhere";
  EXPECT_EQ(fault(bad), "--tls-ca: /nowhere: cannot be read: No such file or directory");
  bad.ca = good.key;
  EXPECT_EQ(fault(bad),
            absl::StrCat("--tls-ca: ", good.key, ": must begin with a certificate in PEM"));
}

}  // namespace
}  // namespace phalanx::coordinator
