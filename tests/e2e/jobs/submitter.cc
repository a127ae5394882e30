#include "tests/e2e/jobs/submitter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "transport/issuance.h"

namespace phalanx::e2e {
namespace {

// What one job of so many, one after the other, is followed by.
constexpr int64_t kTurns = 7;
// Of one stream; a coordinator keeps 16,384.
constexpr size_t kTokensMax = 4'000;

// As nobody knows of it if the node is not there.
template <typename Nodes>
v1::NodeStatus NodeIn(const Nodes& nodes, const std::string& name) {
  for (const v1::NodeStatus& node : nodes) {
    if (node.name() == name) return node;
  }
  return {};
}

Mark MarkOf(const v1::NodeStatus& node) {
  return {.reason = node.mark().reason(), .drains = node.mark().drains()};
}

// Whether it was asked of a coordinator that does nothing but say so.
bool StandsBy(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         absl::StrContains(status.error_details(), "STANDBY");
}

// Whether somebody who serves has said so, and would again.
bool IsAnswer(grpc::StatusCode code) {
  return code == grpc::StatusCode::OK || code == grpc::StatusCode::NOT_FOUND ||
         code == grpc::StatusCode::FAILED_PRECONDITION || code == grpc::StatusCode::UNAUTHENTICATED;
}

}  // namespace

void Acknowledged::Add(Acknowledged other) {
  submits.merge(other.submits);
  cancels.merge(other.cancels);
  suspends.merge(other.suspends);
  resumes.merge(other.resumes);
  deletes.merge(other.deletes);
  deletes_unsure.merge(other.deletes_unsure);
  unsure.merge(other.unsure);
  refused += other.refused;
  marks += other.marks;
  drains += other.drains;
  marks_missing += other.marks_missing;
  reserves += other.reserves;
  reserves_missing += other.reserves_missing;
  tokens.merge(other.tokens);
  if (other.node.empty()) return;
  node = std::move(other.node);
  mark = std::move(other.mark);
  reserve = std::move(other.reserve);
}

std::vector<Submitter::Server> Submitter::ServersOf(const std::string& servers,
                                                    const transport::TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  // It also bounds how long a connection may take, with its handshake.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, tls.on() ? 1000 : 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
  const std::vector<std::string> addresses = absl::StrSplit(servers, ',');
  std::vector<Server> all;
  for (const std::string& address : addresses) {
    const std::shared_ptr<grpc::Channel> channel =
        grpc::CreateCustomChannel(address, transport::ClientCredentials(tls), arguments);
    all.push_back(
        {.jobs = v1::JobService::NewStub(channel), .join = v1::JoinService::NewStub(channel)});
  }
  return all;
}

Submitter::Submitter(const std::string& servers, const DataFolder& data, SubmitterOptions options)
    : options_(std::move(options)),
      servers_(ServersOf(servers, options_.tls)),
      data_(data),
      acknowledged_{.node = options_.node},
      thread_([this] { Work(); }) {}

Acknowledged Submitter::Finish() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
  return std::move(acknowledged_);
}

bool Submitter::stopping() {
  MutexLock lock(&mu_);
  return stopping_;
}

void Submitter::Work() {
  for (int64_t count = 0; !stopping(); ++count) {
    const std::string name = absl::StrCat("waits-", options_.number, "-", count);
    Submit(name);
    if (options_.changes && acknowledged_.submits.contains(name)) Change(name, count);
  }
}

template <typename Service>
Service& Submitter::StubOf(const Server& server) {
  if constexpr (std::is_same_v<Service, v1::JoinService::Stub>) {
    return *server.join;
  } else {
    return *server.jobs;
  }
}

template <typename Service, typename Request, typename Response>
Submitter::Answer Submitter::Call(grpc::Status (Service::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                                  const Request& request, Response* response) {
  const bool several = servers_.size() > 1;
  bool cut_off = false;
  for (size_t asked = 0; !stopping(); ++asked) {
    grpc::ClientContext context;
    // Of several, one that is dead or hangs is passed over soon.
    context.set_wait_for_ready(!several || asked >= servers_.size());
    context.set_deadline(
        absl::ToChronoTime(absl::Now() + (several ? absl::Milliseconds(500) : absl::Seconds(10))));
    Service& stub = StubOf<Service>(servers_[asked % servers_.size()]);
    const grpc::Status status = (stub.*method)(&context, request, response);
    if (status.ok()) return Answer::kDone;
    if (status.error_code() == grpc::StatusCode::NOT_FOUND)
      return cut_off ? Answer::kGone : Answer::kNotFound;
    if (IsAnswer(status.error_code())) return Answer::kRefused;
    cut_off = cut_off || !StandsBy(status);
  }
  return Answer::kNone;
}

template <typename Request, typename Response>
bool Submitter::Do(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                   const Request& request, Response* response) {
  const Answer answer = Call(method, request, response);
  acknowledged_.refused += answer != Answer::kDone && answer != Answer::kNone;
  return answer == Answer::kDone;
}

void Submitter::Submit(const std::string& name) {
  v1::SubmitJobRequest request;
  *request.mutable_document() = Document(data_, {.name = name, .language = "ranks: 4, tp: 4"});
  request.set_request_id(name);
  v1::SubmitJobResponse response;
  if (Do(&v1::JobService::Stub::SubmitJob, request, &response))
    acknowledged_.submits[name] = response.job().id();
}

void Submitter::Change(const std::string& name, int64_t count) {
  const int64_t round = count / kTurns;
  switch (count % kTurns) {
    case 0:
      if (options_.node.empty()) return;
      LookForMarks();
      // One that is cordoned may be drained, and not the other way round.
      return SetMark(round % 3 == 2 ? Mark() : Mark{.reason = name, .drains = round % 3 == 1});
    case 1:
      Cancel(name);
      return;
    case 2:
      Suspend(name);
      return;
    case 3:
      if (options_.node.empty()) return;
      LookForMarks();
      return SetReserve(round % 2 == 0 ? name : "");
    case 4:
      if (Suspend(name)) Resume(name);
      return;
    case 5:
      if (Cancel(name)) Delete(name);
      return;
    default:
      if (!options_.tokens) return;
      if (round % 4 == 3) return RevokeToken();
      if (const std::string secret = CreateToken(); round % 4 == 1) JoinWith(secret, name);
  }
}

bool Submitter::Cancel(const std::string& name) {
  v1::CancelJobRequest request;
  request.set_job(name);
  v1::CancelJobResponse response;
  const bool done = Do(&v1::JobService::Stub::CancelJob, request, &response);
  if (done) acknowledged_.cancels.insert(name);
  return done;
}

bool Submitter::Suspend(const std::string& name) {
  v1::SuspendJobRequest request;
  request.set_job(name);
  v1::SuspendJobResponse response;
  const bool done = Do(&v1::JobService::Stub::SuspendJob, request, &response);
  if (done) acknowledged_.suspends.insert(name);
  return done;
}

void Submitter::Resume(const std::string& name) {
  v1::ResumeJobRequest request;
  request.set_job(name);
  v1::ResumeJobResponse response;
  acknowledged_.unsure.insert(name);
  if (!Do(&v1::JobService::Stub::ResumeJob, request, &response)) return;
  acknowledged_.unsure.erase(name);
  acknowledged_.resumes.insert(name);
}

void Submitter::Delete(const std::string& name) {
  v1::DeleteJobRequest request;
  request.set_job(name);
  v1::DeleteJobResponse response;
  acknowledged_.unsure.insert(name);
  switch (Call(&v1::JobService::Stub::DeleteJob, request, &response)) {
    case Answer::kNone:
      return;
    case Answer::kNotFound:
    case Answer::kRefused:
      ++acknowledged_.refused;
      return;
    case Answer::kDone:
      acknowledged_.unsure.erase(name);
      acknowledged_.deletes.insert(name);
      return;
    case Answer::kGone:
      acknowledged_.unsure.erase(name);
      acknowledged_.deletes_unsure.insert(name);
  }
}

void Submitter::LookForMarks() {
  v1::ListNodesResponse response;
  if (!acknowledged_.mark.has_value() && !acknowledged_.reserve.has_value()) return;
  if (!Do(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest(), &response)) return;
  const v1::NodeStatus node = NodeIn(response.nodes(), acknowledged_.node);
  if (acknowledged_.mark.has_value() && MarkOf(node) != *acknowledged_.mark) {
    ++acknowledged_.marks_missing;
    acknowledged_.mark.reset();
  }
  if (acknowledged_.reserve.has_value() && node.reserve().reason() != *acknowledged_.reserve) {
    ++acknowledged_.reserves_missing;
    acknowledged_.reserve.reset();
  }
}

// A coordinator that has just begun may not know a node that is neither marked nor in reserve. It
// knows any other.
void Submitter::LookAtAnswer(Answer answer) {
  acknowledged_.refused += answer == Answer::kRefused;
  if (answer != Answer::kNotFound && answer != Answer::kGone) return;
  if (acknowledged_.mark.has_value() && !acknowledged_.mark->reason.empty()) {
    ++acknowledged_.marks_missing;
    acknowledged_.mark.reset();
  }
  if (acknowledged_.reserve.has_value() && !acknowledged_.reserve->empty()) {
    ++acknowledged_.reserves_missing;
    acknowledged_.reserve.reset();
  }
}

void Submitter::SetMark(const Mark& mark) {
  Answer answer = Answer::kNone;
  if (mark.reason.empty()) {
    v1::UncordonNodeRequest request;
    request.set_node(options_.node);
    v1::UncordonNodeResponse response;
    answer = Call(&v1::JobService::Stub::UncordonNode, request, &response);
  } else if (mark.drains) {
    v1::DrainNodeRequest request;
    request.set_node(options_.node);
    request.set_reason(mark.reason);
    v1::DrainNodeResponse response;
    answer = Call(&v1::JobService::Stub::DrainNode, request, &response);
  } else {
    v1::CordonNodeRequest request;
    request.set_node(options_.node);
    request.set_reason(mark.reason);
    v1::CordonNodeResponse response;
    answer = Call(&v1::JobService::Stub::CordonNode, request, &response);
  }
  // If the attempt that was cut off has uncordoned the node, that need not be known any more.
  if (answer == Answer::kGone && mark.reason.empty()) acknowledged_.mark.reset();
  LookAtAnswer(answer);
  // Not acknowledged, it may be there or not.
  acknowledged_.mark.reset();
  if (answer != Answer::kDone) return;
  acknowledged_.mark = mark;
  ++acknowledged_.marks;
  acknowledged_.drains += mark.drains;
}

void Submitter::SetReserve(const std::string& reason) {
  Answer answer = Answer::kNone;
  if (reason.empty()) {
    v1::UnreserveNodeRequest request;
    request.set_node(options_.node);
    v1::UnreserveNodeResponse response;
    answer = Call(&v1::JobService::Stub::UnreserveNode, request, &response);
  } else {
    v1::ReserveNodeRequest request;
    request.set_node(options_.node);
    request.set_reason(reason);
    v1::ReserveNodeResponse response;
    answer = Call(&v1::JobService::Stub::ReserveNode, request, &response);
  }
  // As in SetMark.
  if (answer == Answer::kGone && reason.empty()) acknowledged_.reserve.reset();
  LookAtAnswer(answer);
  acknowledged_.reserve.reset();
  if (answer != Answer::kDone) return;
  acknowledged_.reserve = reason;
  ++acknowledged_.reserves;
}

// One that nobody has answered is nobody's: it is not looked for.
std::string Submitter::CreateToken() {
  if (acknowledged_.tokens.size() >= kTokensMax) return "";
  const v1::CreateTokenRequest request;
  v1::CreateTokenResponse response;
  if (Call(&v1::JoinService::Stub::CreateToken, request, &response) != Answer::kDone) return "";
  last_token_ = response.about().id();
  acknowledged_.tokens[last_token_] = {};
  return response.token();
}

void Submitter::JoinWith(const std::string& secret, const std::string& node) {
  if (secret.empty()) return;
  const absl::StatusOr<transport::KeyAndRequest> made = transport::MakeKeyAndRequest();
  if (!made.ok()) return;
  v1::JoinRequest request;
  request.set_token(secret);
  request.set_node(node);
  request.set_certificate_request(made->request);
  v1::JoinResponse response;
  if (Call(&v1::JoinService::Stub::Join, request, &response) == Answer::kDone)
    acknowledged_.tokens[last_token_].joined = true;
}

void Submitter::RevokeToken() {
  if (last_token_.empty()) return;
  v1::RevokeTokenRequest request;
  request.set_id(std::exchange(last_token_, ""));
  v1::RevokeTokenResponse response;
  if (Call(&v1::JoinService::Stub::RevokeToken, request, &response) == Answer::kDone)
    acknowledged_.tokens[request.id()].revoked = true;
}

Kept LookFor(const Acknowledged& acknowledged, Cluster& cluster) {
  std::map<std::string, std::vector<v1::JobStatus>> stored;
  for (const v1::JobStatus& status : cluster.List()) stored[status.name()].push_back(status);
  Kept kept;
  for (const auto& [name, id] : acknowledged.submits) {
    const std::vector<v1::JobStatus>& jobs = stored[name];
    const bool unsure = acknowledged.unsure.contains(name);
    if (acknowledged.deletes.contains(name) || acknowledged.deletes_unsure.contains(name)) {
      kept.deletes_missing += !jobs.empty();
      continue;
    }
    // Of those that are unsure, some were to be deleted.
    if (!jobs.empty() || !unsure || !acknowledged.cancels.contains(name)) {
      kept.missing += std::count_if(jobs.begin(), jobs.end(), [id = id](const v1::JobStatus& job) {
                        return job.id() == id;
                      }) != 1;
    }
    kept.doubled += jobs.size() > 1;
    if (jobs.size() != 1) continue;
    const v1::JobStatus& job = jobs[0];
    kept.cancels_missing +=
        acknowledged.cancels.contains(name) && job.phase() != v1::JOB_PHASE_CANCELLED;
    if (acknowledged.resumes.contains(name)) {
      kept.resumes_missing += job.suspended();
    } else if (acknowledged.suspends.contains(name) && !unsure) {
      kept.suspends_missing += !job.suspended();
    }
  }
  kept.refused = acknowledged.refused;
  kept.marks_missing = acknowledged.marks_missing;
  kept.reserves_missing = acknowledged.reserves_missing;
  if (!acknowledged.node.empty()) {
    const v1::NodeStatus node = NodeIn(cluster.Nodes(), acknowledged.node);
    if (acknowledged.mark.has_value()) kept.marks_missing += MarkOf(node) != *acknowledged.mark;
    if (acknowledged.reserve.has_value())
      kept.reserves_missing += node.reserve().reason() != *acknowledged.reserve;
  }
  if (acknowledged.tokens.empty()) return kept;
  std::map<std::string, v1::JoinToken> listed;
  for (const v1::JoinToken& token : cluster.Tokens()) listed[token.id()] = token;
  for (const auto& [id, token] : acknowledged.tokens) {
    const auto found = listed.find(id);
    kept.tokens_missing += found == listed.end() ||
                           (token.revoked && !found->second.has_revoked()) ||
                           (token.joined && found->second.uses_size() != 1);
  }
  return kept;
}

}  // namespace phalanx::e2e
