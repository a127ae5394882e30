// Any row of requests of any methods of the coordinator's services, two workers' sessions among
// them: each is answered or refused with a sentence, and what is stored starts again.
#include <utility>

#include "absl/strings/str_cat.h"
#include "phalanx/v1/job_service.pb.h"
#include "phalanx/v1/join_service.pb.h"
#include "tests/fuzz/service/calls.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/messages.h"
#include "tests/rpc/fixture.h"
#include "transport/issuance.h"

namespace phalanx::fuzz {
namespace {

constexpr char kJobs[] = "phalanx.v1.JobService.", kJoins[] = "phalanx.v1.JoinService.",
               kWorkers[] = "phalanx.v1.WorkerService.";

std::vector<const google::protobuf::Message*> Requests() {
  std::vector<const google::protobuf::Message*> requests;
  for (const Kind& kind : Kinds()) requests.push_back(kind.request);
  return requests;
}

Step Say(const v1::OpenSessionRequest& message, int caller = 0) {
  return CallOf(absl::StrCat(kWorkers, "OpenSession"), message, caller);
}
Step Hello(const std::string& node, int caller = 0, uint64_t incarnation = 1) {
  v1::OpenSessionRequest message;
  *message.mutable_hello() = coordinator::FakeWorker::Hello(node, 2, incarnation);
  return Say(message, caller);
}
Step Done(uint64_t command, int caller = 0) {
  v1::OpenSessionRequest message;
  message.mutable_command_result()->set_command_number(command);
  message.mutable_command_result()->set_data_digest("data");
  return Say(message, caller);
}
v1::OpenSessionRequest Report(int rank, int64_t epoch = 1) {
  v1::OpenSessionRequest message;
  message.mutable_rank_report()->set_job(1);
  message.mutable_rank_report()->set_epoch(epoch);
  message.mutable_rank_report()->set_rank(rank);
  return message;
}
Step Ready(int rank, int caller = 0) {
  v1::OpenSessionRequest message = Report(rank);
  message.mutable_rank_report()->mutable_ready();
  return Say(message, caller);
}
Step Reached(int64_t step) {
  v1::OpenSessionRequest message = Report(0);
  message.mutable_rank_report()->mutable_step()->set_step(step);
  message.mutable_rank_report()->mutable_step()->set_epoch(1);
  return Say(message);
}
Step Died(int rank, int caller = 0) {
  v1::OpenSessionRequest message = Report(rank);
  message.mutable_rank_report()->mutable_exited()->set_signal(9);
  return Say(message, caller);
}

Step Submit(const std::string& text) {
  v1::SubmitJobRequest request;
  request.mutable_document()->set_text(text);
  request.mutable_document()->set_directory("/tmp");
  return CallOf(absl::StrCat(kJobs, "SubmitJob"), request);
}
template <typename Request>
Step OfJob(const std::string& method, const std::string& job = "job-1") {
  Request request;
  request.set_job(job);
  return CallOf(kJobs + method, request);
}
template <typename Request>
Step OfNode(const std::string& method, const std::string& node = "n") {
  Request request;
  request.set_node(node);
  return CallOf(kJobs + method, request);
}
template <typename Request>
Step OfNodeFor(const std::string& method, const std::string& node = "n") {
  Request request;
  request.set_node(node);
  request.set_reason("a fan");
  return CallOf(kJobs + method, request);
}

// A job of one rank: from its submission to its last step, and all that can be asked of it.
std::vector<Step> AJob() {
  v1::GetLogsRequest logs;
  logs.set_job("a");
  logs.set_follow(true);
  v1::UploadLogsRequest upload;
  upload.set_fetch_id("$0");
  upload.set_text("a line\n");
  v1::InjectFaultRequest fault;
  fault.set_job("a");
  fault.mutable_fault()->set_at_step(3);
  v1::PlanJobRequest plan;
  plan.mutable_document()->set_text(coordinator::JobText("b", 2));
  plan.mutable_document()->set_directory("/tmp");
  v1::OpenSessionRequest done = Report(0);
  done.mutable_rank_report()->mutable_succeeded()->set_step(10);
  return {Hello("n"),
          Submit(coordinator::JobText("a")),
          OfJob<v1::WatchJobRequest>("WatchJob"),
          Done(1),
          Done(2),
          Ready(0),
          Reached(1),
          CallOf(absl::StrCat(kJobs, "GetLogs"), logs),
          Done(3),
          CallOf(absl::StrCat(kWorkers, "UploadLogs"), upload),
          OfJob<v1::GetJobRequest>("GetJob", "$0"),
          OfJob<v1::ListEventsRequest>("ListEvents"),
          OfJob<v1::ExplainJobRequest>("ExplainJob"),
          CallOf(absl::StrCat(kJobs, "PlanJob"), plan),
          CallOf(absl::StrCat(kJobs, "InjectFault"), fault),
          Reached(10),
          Say(done),
          Died(0),
          TimeOf(60),
          OfJob<v1::ListIncidentsRequest>("ListIncidents"),
          OfJob<v1::DeleteJobRequest>("DeleteJob")};
}

// A job of two nodes, of which one is lost; and one that waits for them.
std::vector<Step> AFailure() {
  v1::ListJobsRequest list;
  list.set_page_size(1);
  v1::ListJobsRequest next = list;
  next.set_page_token("$0");
  v1::OpenSessionRequest error = Report(0);
  error.mutable_rank_report()->mutable_error()->set_message("no");
  return {Hello("n"),
          Hello("m", 1),
          Submit(coordinator::JobText("a", 4)),
          Submit(coordinator::JobText("b", 4)),
          Done(1),
          Done(1, 1),
          Done(2),
          Done(2, 1),
          Ready(0),
          Ready(1),
          Ready(2, 1),
          Ready(3, 1),
          Reached(1),
          CallOf(absl::StrCat(kJobs, "ListJobs"), list),
          CallOf(absl::StrCat(kJobs, "ListJobs"), next),
          OfJob<v1::SuspendJobRequest>("SuspendJob", "b"),
          OfJob<v1::ResumeJobRequest>("ResumeJob", "b"),
          Say(error),
          Died(3, 1),
          TimeOf(20),
          OfJob<v1::ExplainJobRequest>("ExplainJob", "a"),
          OfJob<v1::CancelJobRequest>("CancelJob", "b"),
          TimeOf(600)};
}

std::vector<Step> Nodes() {
  v1::TryConnectionRequest reach;
  reach.set_from("n");
  reach.set_to("m");
  return {Hello("n"),
          Hello("n", 1, 2),
          CallOf(absl::StrCat(kJobs, "ListNodes"), v1::ListNodesRequest()),
          OfNodeFor<v1::CordonNodeRequest>("CordonNode"),
          OfNode<v1::UncordonNodeRequest>("UncordonNode"),
          CallOf(absl::StrCat(kJobs, "TryConnection"), reach),
          OfNodeFor<v1::ReserveNodeRequest>("ReserveNode"),
          Submit(coordinator::JobText("a")),
          OfNode<v1::UnreserveNodeRequest>("UnreserveNode"),
          OfNodeFor<v1::DrainNodeRequest>("DrainNode", "$0"),
          TimeOf(30)};
}

std::vector<Step> Tokens() {
  v1::JoinRequest join;
  join.set_token("$1");
  join.set_node("a");
  join.set_certificate_request(transport::MakeKeyAndRequest()->request);
  v1::RenewCertificateRequest renew;
  renew.set_certificate_request(join.certificate_request());
  v1::RevokeTokenRequest revoke;
  revoke.set_id("$1");
  return {CallOf(absl::StrCat(kJoins, "CreateToken"), v1::CreateTokenRequest()),
          CallOf(absl::StrCat(kJoins, "Join"), join),
          CallOf(absl::StrCat(kJoins, "RenewCertificate"), renew),
          CallOf(absl::StrCat(kJoins, "RevokeToken"), revoke),
          CallOf(absl::StrCat(kJoins, "ListTokens"), v1::ListTokensRequest())};
}

}  // namespace

std::string Check(absl::string_view bytes) { return Run(ReadScript(bytes, Kinds().size())).wrong; }

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const std::vector<Step>& steps : {AJob(), AFailure(), Nodes(), Tokens()})
    corpus.push_back(WriteScript(steps));
  // Each kind of request by itself, behind a worker's hello.
  Prng prng(1);
  for (size_t kind = 0; kind < Kinds().size(); ++kind) {
    const std::unique_ptr<google::protobuf::Message> request(Kinds()[kind].request->New());
    Fill(*request, prng);
    corpus.push_back(
        WriteScript({Hello("n"), {.kind = kind, .bytes = request->SerializeAsString()}}));
  }
  return corpus;
}

std::string Mutated(absl::string_view bytes, Prng& prng) {
  static const auto& kinds = *new std::vector<const google::protobuf::Message*>(Requests());
  return MutatedScript(bytes, kinds, prng);
}

}  // namespace phalanx::fuzz
