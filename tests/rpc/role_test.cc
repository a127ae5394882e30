// Each role asks for each method, with a request that is good and everything there for it: what is
// allowed is done, what is not is denied and changes nothing, and the audit has a line of each
// change and of each refusal. Who asks for a change again, since its answer was lost, changes no
// more.
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/rpc/access_fixture.h"
#include "transport/issuance.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Of services that are not ours.
constexpr char kHealthWatch[] = "/grpc.health.v1.Health/Watch";
constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// What is not for viewers and up, as docs/security.md has it.
bool Expected(Role role, const std::string& path) {
  static const std::set<std::string> submitters = {"SubmitJob",  "CheckSubmit", "CancelJob",
                                                   "SuspendJob", "ResumeJob",   "DeleteJob",
                                                   "InjectFault"};
  static const std::set<std::string> operators = {
      "CordonNode",    "UncordonNode",  "DrainNode",           "ReserveNode",
      "UnreserveNode", "TryConnection", "CreateToken",         "ListTokens",
      "RevokeToken",   "Watch",         "ServerReflectionInfo"};
  const std::string method = path.substr(path.rfind('/') + 1);
  if (method == "Join") return true;
  if (absl::StrContains(path, "WorkerService") || method == "RenewCertificate")
    return role == Role::kWorker;
  if (role == Role::kWorker) return false;
  if (operators.contains(method)) return role == Role::kOperator;
  return role != Role::kViewer || !submitters.contains(method);
}

template <typename Message>
std::string Bytes(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message.SerializeAsString();
}

// A method as somebody tries it. What it needs is prepared by Olga, an operator, or by whoever
// tries it, where they may submit jobs.
struct Case {
  bool changes = false;  // and so has a line in the audit
  // Prepares what it needs, and says what is sent.
  std::function<std::string()> request;
  // Where it takes more than to send that. It prepares more only where the method is allowed.
  std::function<grpc::Status()> call;
  // What is answered to who asks again, since the answer was lost, and changes nothing; CANCELLED:
  // it must not be asked again.
  grpc::StatusCode again = grpc::StatusCode::OK;
};

// Node "there" has one device, and runs the job "runs" on it; node "spare" has one that is free, so
// a job of two waits for ever. Nobody serves node "here", the one of the worker who asks.
class RoleTest : public AccessTest, public ::testing::WithParamInterface<Role> {
 protected:
  static constexpr int kSeconds = 100;  // that a session may take, while all methods are tried
  void SetUp() override {
    Open([&](ServerOptions& options) {
      LetNodesJoin(options, folder_ + "/join-tokens");
      options.reflection = true;
      options.sessions.heartbeat_timeout = absl::Minutes(10);
    });
    olga_ = ChannelOf(authority().User("olga", "operator"));
    tokens_ = v1::JoinService::NewStub(olga_);
    if (GetParam() == Role::kWorker) {
      JoinAsHere();
    } else {
      to_ = ChannelOf(FilesOf(GetParam()));
      name_ = absl::StrCat("a-", RoleName(GetParam()));
    }
    of_there_ = ChannelOf(authority().Worker("there"));
    there_ = std::make_unique<FakeWorker>(of_there_, kSeconds);
    there_->Join("there", 1);
    Submit("runs", 1);
    there_->Ready(there_->TakeAssignment(), 0);
    AsOlga();
    WaitFor("runs", v1::JOB_PHASE_RUNNING);
    made_.clear();
    spare_ = std::make_unique<FakeWorker>(ChannelOf(authority().Worker("spare")), kSeconds);
    spare_->Join("spare", 1);
  }
  void TearDown() override {
    there_.reset();
    spare_.reset();
    AccessTest::TearDown();
  }

  bool allowed(const std::string& method) const { return Expected(GetParam(), method); }
  void AsOlga() {
    channel = olga_;
    jobs = v1::JobService::NewStub(channel);
  }
  // With the certificate of a token, which alone can be renewed.
  void JoinAsHere() {
    const transport::KeyAndRequest own = *transport::MakeKeyAndRequest();
    v1::JoinRequest request;
    request.set_token(Token("here").token());
    request.set_node("here");
    request.set_certificate_request(own.request);
    v1::JoinResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    ASSERT_TRUE(tokens_->Join(&context, request, &response).ok());
    const std::string file = folder_ + "/identity.pem";
    support::WriteFile(file, response.certificate() + own.key);
    to_ = ChannelOf({.ca = authority().folder() + "/ca.pem", .certificate = file, .key = file});
    name_ = "here";
  }
  v1::CreateTokenResponse Token(const std::string& node) {
    v1::CreateTokenRequest request;
    request.set_node(node);
    v1::CreateTokenResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(tokens_->CreateToken(&context, request, &response).ok());
    return response;
  }
  // By whoever tries, or by Olga where they may not. Ends with the case.
  void Submit(const std::string& job, int devices = 2) {
    AsOlga();
    if (allowed("/phalanx.v1.JobService/SubmitJob")) jobs = v1::JobService::NewStub(to_);
    MustSubmit(JobText(job, devices));
    made_.push_back(job);
    AsOlga();
  }
  // The request of a method whose first field is the job, of a job that waits.
  std::string OfWaitingJob() {
    Submit("waits");
    return Bytes<v1::GetJobRequest>("job: 'waits'");
  }
  std::string OfEndedJob() {
    Submit("ends");
    EXPECT_TRUE(Cancel("ends").ok());
    return Bytes<v1::GetJobRequest>("job: 'ends'");
  }
  // A name may be that of an older job once it is deleted.
  std::string OfEndedJobByNumber() {
    const std::string bytes = OfEndedJob();
    v1::GetJobRequest request;
    EXPECT_TRUE(request.ParseFromString(bytes));
    v1::GetJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(jobs->GetJob(&context, request, &response).ok());
    request.set_job(absl::StrCat("job-", response.job().id()));
    return request.SerializeAsString();
  }
  void MustDo(const std::string& method, const std::string& bytes) {
    const grpc::Status status = Call(olga_, absl::StrCat("/phalanx.v1.JobService/", method), bytes);
    EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
  }
  std::string OfSpare(const std::string& state_before) {
    if (!state_before.empty())
      MustDo(state_before, Bytes<v1::CordonNodeRequest>("node: 'spare' reason: 'olgas'"));
    return Bytes<v1::CordonNodeRequest>("node: 'spare' reason: 'new fan'");
  }

  grpc::Status WatchToTheEnd() {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::WatchJobRequest request;
    request.set_job("ends");
    const auto watch = v1::JobService::NewStub(to_)->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (watch->Read(&response)) continue;
    return watch->Finish();
  }
  // Of a stream: its first response to one request, which has `words`. It is then broken off.
  grpc::Status FirstOf(const std::string& path, const std::string& bytes,
                       const std::string& words) {
    grpc::GenericStub stub(to_);
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::CompletionQueue queue;
    const auto succeeds = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      return ok;
    };
    const auto stream = stub.PrepareCall(&context, path, &queue);
    stream->StartCall(nullptr);
    succeeds();
    const grpc::Slice text(bytes);
    stream->WriteLast(grpc::ByteBuffer(&text, 1), {}, nullptr);
    succeeds();
    grpc::ByteBuffer response;
    stream->Read(&response, nullptr);
    const bool answered = succeeds();
    if (answered) {
      grpc::Slice read;
      EXPECT_TRUE(response.DumpToSingleSlice(&read).ok());
      EXPECT_THAT(std::string(reinterpret_cast<const char*>(read.begin()), read.size()),
                  HasSubstr(words));
      context.TryCancel();
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    succeeds();
    return answered ? grpc::Status::OK : status;
  }
  // As a worker does that is told to.
  grpc::Status Upload(const std::shared_ptr<grpc::Channel>& from, const std::string& fetch) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::UploadLogsResponse response;
    const auto upload = v1::WorkerService::NewStub(from)->UploadLogs(&context, &response);
    v1::UploadLogsRequest chunk;
    chunk.set_fetch_id(fetch);
    chunk.set_text("a line\n");
    upload->Write(chunk);
    upload->WritesDone();
    return upload->Finish();
  }
  std::unique_ptr<grpc::ClientReader<v1::GetLogsResponse>> AskForLogs(
      const std::shared_ptr<grpc::Channel>& from, const std::string& job,
      grpc::ClientContext& context) {
    SetDeadline(context);
    v1::GetLogsRequest request;
    request.set_job(job);
    return v1::JobService::NewStub(from)->GetLogs(&context, request);
  }
  static grpc::Status ReadLogs(grpc::ClientReader<v1::GetLogsResponse>& logs, std::string* text) {
    v1::GetLogsResponse response;
    while (logs.Read(&response)) absl::StrAppend(text, response.text());
    return logs.Finish();
  }
  grpc::Status GetLogs() {
    grpc::ClientContext context;
    const auto logs = AskForLogs(to_, "runs", context);
    std::string text;
    if (!allowed("/phalanx.v1.JobService/GetLogs")) return ReadLogs(*logs, &text);
    const v1::Command fetch = there_->Command();
    there_->Done(fetch);
    EXPECT_TRUE(Upload(of_there_, fetch.fetch_logs().fetch_id()).ok());
    const grpc::Status status = ReadLogs(*logs, &text);
    EXPECT_EQ(text, "a line\n");
    return status;
  }
  grpc::Status UploadLogs() {
    if (!allowed("/phalanx.v1.WorkerService/UploadLogs")) return Upload(to_, "any");
    MustDo("CordonNode", OfSpare(""));
    FakeWorker here(to_);
    here.Join("here", 1, 2);
    Submit("uploads", 1);
    here.Ready(here.TakeAssignment(), 0);
    grpc::ClientContext context;
    const auto logs = AskForLogs(olga_, "uploads", context);
    const v1::Command fetch = here.Command();
    here.Done(fetch);
    const grpc::Status status = Upload(to_, fetch.fetch_logs().fetch_id());
    std::string text;
    EXPECT_TRUE(ReadLogs(*logs, &text).ok());
    EXPECT_EQ(text, "a line\n");
    return status;
  }
  grpc::Status OpenSession() {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stream = v1::WorkerService::NewStub(to_)->OpenSession(&context);
    v1::OpenSessionRequest hello;
    *hello.mutable_hello() = FakeWorker::Hello("here", 1, 1);
    stream->Write(hello);
    v1::OpenSessionResponse response;
    if (stream->Read(&response)) {
      EXPECT_TRUE(response.has_welcome());
    }
    stream->WritesDone();
    while (stream->Read(&response)) continue;
    return stream->Finish();
  }
  grpc::Status Inject() {
    std::jthread node;
    if (allowed("/phalanx.v1.JobService/InjectFault")) {
      node = std::jthread([this] {
        const v1::Command command = there_->Command();
        EXPECT_TRUE(command.has_inject_fault());
        there_->Done(command);
      });
    }
    return Call(to_, "/phalanx.v1.JobService/InjectFault",
                Bytes<v1::InjectFaultRequest>("job: 'runs' fault { kind: FAULT_KIND_KILL }"));
  }
  grpc::Status TryConnection() {
    std::jthread nodes;
    if (allowed("/phalanx.v1.JobService/TryConnection")) {
      nodes = std::jthread([this] {
        const v1::Command listens = there_->Command();
        EXPECT_TRUE(listens.has_try_peer());
        v1::OpenSessionRequest place;
        place.mutable_command_result()->set_command_number(listens.command_number());
        place.mutable_command_result()->set_listens_at("10.0.0.1:40123");
        there_->Write(place);
        const v1::Command connects = spare_->Command();
        EXPECT_EQ(connects.try_peer().peer(), "10.0.0.1:40123");
        spare_->Done(connects);
      });
    }
    return Call(to_, "/phalanx.v1.JobService/TryConnection",
                Bytes<v1::TryConnectionRequest>("from: 'spare' to: 'there'"));
  }
  std::string OfAToken() {
    v1::JoinRequest request;
    request.set_token(Token("joins").token());
    request.set_node("joins");
    request.set_certificate_request(transport::MakeKeyAndRequest()->request);
    return request.SerializeAsString();
  }
  std::string OfAKey() {
    v1::RenewCertificateRequest request;
    request.set_certificate_request(transport::MakeKeyAndRequest()->request);
    return request.SerializeAsString();
  }
  std::string Document() {
    v1::SubmitJobRequest request;
    request.mutable_document()->set_text(JobText("submitted"));
    request.mutable_document()->set_directory("/tmp");
    request.set_request_id(absl::StrCat("submits-", RoleName(GetParam())));
    MustDo("CordonNode", OfSpare(""));
    made_.push_back("submitted");
    return request.SerializeAsString();
  }
  std::string DocumentToPlan() {
    MustDo("UncordonNode", OfSpare(""));
    v1::PlanJobRequest request;
    request.mutable_document()->set_text(JobText("planned"));
    request.mutable_document()->set_directory("/tmp");
    return request.SerializeAsString();
  }

  // By the method's name. A method that is missing here fails the test.
  std::map<std::string, Case> Cases() {
    return {
        {"SubmitJob", {.changes = true, .request = [this] { return Document(); }}},
        {"CheckSubmit", {.request = [this] { return DocumentToPlan(); }}},
        {"GetJob", {.request = [this] { return OfWaitingJob(); }}},
        {"ListJobs",
         {.request =
              [this] {
                OfWaitingJob();
                return std::string();
              }}},
        {"WatchJob",
         {.request = [this] { return OfEndedJob(); }, .call = [this] { return WatchToTheEnd(); }}},
        {"CancelJob", {.changes = true, .request = [this] { return OfWaitingJob(); }}},
        {"SuspendJob", {.changes = true, .request = [this] { return OfWaitingJob(); }}},
        {"ResumeJob",
         {.changes = true,
          .request =
              [this] {
                const std::string bytes = OfWaitingJob();
                MustDo("SuspendJob", bytes);
                return bytes;
              }}},
        {"DeleteJob",
         {.changes = true,
          .request = [this] { return OfEndedJobByNumber(); },
          .again = grpc::StatusCode::NOT_FOUND}},
        {"PlanJob", {.request = [this] { return DocumentToPlan(); }}},
        {"GetLogs", {.call = [this] { return GetLogs(); }}},
        {"ListEvents", {.request = [this] { return OfWaitingJob(); }}},
        {"ListIncidents", {.request = [this] { return OfWaitingJob(); }}},
        {"ExplainJob", {.request = [this] { return OfWaitingJob(); }}},
        {"ListNodes", {.request = [] { return std::string(); }}},
        {"CordonNode", {.changes = true, .request = [this] { return OfSpare("UncordonNode"); }}},
        {"UncordonNode", {.changes = true, .request = [this] { return OfSpare("CordonNode"); }}},
        {"DrainNode", {.changes = true, .request = [this] { return OfSpare("UncordonNode"); }}},
        {"ReserveNode", {.changes = true, .request = [this] { return OfSpare("UncordonNode"); }}},
        {"UnreserveNode", {.changes = true, .request = [this] { return OfSpare("ReserveNode"); }}},
        {"InjectFault", {.changes = true, .call = [this] { return Inject(); }}},
        {"TryConnection", {.call = [this] { return TryConnection(); }}},
        {"OpenSession", {.changes = true, .call = [this] { return OpenSession(); }}},
        {"UploadLogs", {.call = [this] { return UploadLogs(); }}},
        {"CreateToken",
         {.changes = true,
          .request = [] { return Bytes<v1::CreateTokenRequest>("node: 'made'"); },
          .again = grpc::StatusCode::CANCELLED}},  // it would be another token
        {"ListTokens", {.request = [] { return std::string(); }}},
        {"RevokeToken",
         {.changes = true,
          .request =
              [this] {
                v1::RevokeTokenRequest request;
                request.set_id(Token("revoked").about().id());
                return request.SerializeAsString();
              }}},
        {"Join", {.changes = true, .request = [this] { return OfAToken(); }}},
        {"RenewCertificate", {.changes = true, .request = [this] { return OfAKey(); }}},
        {"Watch", {.call = [this] { return FirstOf(kHealthWatch, "", ""); }}},
        {"ServerReflectionInfo", {.call = [this] {
           // A ServerReflectionRequest whose list_services is "*".
           return FirstOf(kReflection, "\x3a\x01*", "phalanx.v1.JobService");
         }}}};
  }

  // What of jobs, nodes and tokens others may change.
  std::string State() {
    AsOlga();
    std::string text;
    v1::ListJobsResponse list;
    grpc::ClientContext of_jobs, of_nodes, of_tokens;
    for (grpc::ClientContext* context : {&of_jobs, &of_nodes, &of_tokens}) SetDeadline(*context);
    EXPECT_TRUE(jobs->ListJobs(&of_jobs, {}, &list).ok());
    for (const v1::JobStatus& job : list.jobs())
      absl::StrAppend(&text, job.name(), " ", job.phase(), " ", job.suspended(), "\n");
    v1::ListNodesResponse nodes;
    EXPECT_TRUE(jobs->ListNodes(&of_nodes, {}, &nodes).ok());
    for (const v1::NodeStatus& node : nodes.nodes()) {
      absl::StrAppend(&text, node.name(), " ", node.mark().DebugString(),
                      node.reserve().DebugString(), "\n");
    }
    v1::ListTokensResponse tokens;
    EXPECT_TRUE(tokens_->ListTokens(&of_tokens, {}, &tokens).ok());
    for (v1::JoinToken& token : *tokens.mutable_tokens()) {
      token.clear_certificates_end();  // of the last certificate that the same node was given
      absl::StrAppend(&text, token.DebugString());
    }
    return text;
  }
  // Lines about what whoever tries it did with the method, from line `first` on.
  std::vector<std::string> LinesOf(const std::string& method, size_t first) {
    std::vector<std::string> lines = Audit();
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(first));
    std::erase_if(lines, [&](const std::string& line) {
      return !absl::StrContains(line, absl::StrCat("audit who=", name_, " role=",
                                                   RoleName(GetParam()), " method=", method, " "));
    });
    return lines;
  }
  void Try(const std::string& path, const Case& tried) {
    const std::string method = path.substr(path.rfind('/') + 1);
    const std::string bytes = tried.request ? tried.request() : "";
    const size_t lines = Audit().size();
    const std::string before = State();
    const grpc::Status status = tried.call ? tried.call() : Call(to_, path, bytes);
    if (allowed(path)) {
      EXPECT_TRUE(status.ok()) << status.error_message();
      if (tried.changes) {
        const auto says_of_what = Not(HasSubstr(absl::StrCat("method=", method, " outcome=")));
        EXPECT_THAT(LinesOf(method, lines),
                    ElementsAre(AllOf(HasSubstr(" outcome=OK"), says_of_what)));
        if (tried.request && tried.again != grpc::StatusCode::CANCELLED) {
          const std::string after = State();
          const grpc::Status again = Call(to_, path, bytes);
          EXPECT_EQ(again.error_code(), tried.again) << again.error_message();
          EXPECT_EQ(State(), after) << "it was done a second time";
        }
      } else {
        EXPECT_THAT(LinesOf(method, lines), IsEmpty());
        if (!tried.call) {
          EXPECT_EQ(State(), before) << "it is said to change nothing";
        }
      }
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
      EXPECT_THAT(LinesOf(method, lines),
                  ElementsAre(HasSubstr(
                      absl::StrCat(" outcome=PERMISSION_DENIED reason=\"", method, " is for "))));
      EXPECT_EQ(State(), before) << "nothing has changed";
    }
    AsOlga();
    for (const std::string& job : made_) {
      // Also so that the next may have its name, and its devices.
      Cancel(job);
    }
    made_.clear();
  }

  const std::string folder_ = support::MakeFolder("roles");
  std::shared_ptr<grpc::Channel> olga_, to_, of_there_;
  std::string name_;                               // of whoever tries
  std::unique_ptr<v1::JoinService::Stub> tokens_;  // Olga's
  std::unique_ptr<FakeWorker> there_, spare_;
  std::vector<std::string> made_;  // jobs of the case
};

TEST_P(RoleTest, EachMethod_IsForItsRolesAlone) {
  std::map<std::string, Case> cases = Cases();
  std::vector<std::string> methods = Methods();
  for (const char* other : {kHealthWatch, kReflection}) methods.emplace_back(other);
  for (const std::string& path : methods) {
    SCOPED_TRACE(path);
    const auto found = cases.find(path.substr(path.rfind('/') + 1));
    if (found == cases.end()) {
      ADD_FAILURE() << "has no case here: say with what request it is allowed, and to whom";
      continue;
    }
    Try(path, found->second);
    cases.erase(found);
  }
  EXPECT_THAT(cases, IsEmpty()) << "cases of no method";
  EXPECT_TRUE(Call(to_, "/grpc.health.v1.Health/Check").ok());
  EXPECT_EQ(Call(to_, "/phalanx.v1.JobService/Other").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

INSTANTIATE_TEST_SUITE_P(All, RoleTest,
                         ::testing::Values(Role::kViewer, Role::kSubmitter, Role::kOperator,
                                           Role::kWorker),
                         [](const auto& info) { return std::string(RoleName(info.param)); });

}  // namespace
}  // namespace phalanx::coordinator
