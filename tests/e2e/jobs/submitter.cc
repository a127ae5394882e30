#include "tests/e2e/jobs/submitter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace phalanx::e2e {
namespace {

std::vector<std::unique_ptr<v1::JobService::Stub>> StubsOf(const std::string& servers) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
  const std::vector<std::string> addresses = absl::StrSplit(servers, ',');
  std::vector<std::unique_ptr<v1::JobService::Stub>> stubs;
  for (const std::string& server : addresses) {
    stubs.push_back(v1::JobService::NewStub(
        grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments)));
  }
  return stubs;
}

// Why the node is cordoned; empty: it is not.
template <typename Nodes>
std::string ReasonIn(const Nodes& nodes, const std::string& name) {
  for (const v1::NodeStatus& node : nodes) {
    if (node.name() == name) return node.mark().reason();
  }
  return "";
}

// Whether somebody who serves has said so, and would again.
bool IsAnswer(grpc::StatusCode code) {
  return code == grpc::StatusCode::OK || code == grpc::StatusCode::NOT_FOUND ||
         code == grpc::StatusCode::FAILED_PRECONDITION;
}

}  // namespace

void Acknowledged::Add(Acknowledged other) {
  submits.merge(other.submits);
  cancels.merge(other.cancels);
  suspends.merge(other.suspends);
  marks += other.marks;
  marks_missing += other.marks_missing;
  if (other.node.empty()) return;
  node = std::move(other.node);
  mark = std::move(other.mark);
}

Submitter::Submitter(const std::string& servers, const DataFolder& data, int32_t number)
    : Submitter(StubsOf(servers), data, number, /*changes=*/false, "") {}

Submitter::Submitter(const std::string& servers, const DataFolder& data, int32_t number,
                     std::string node)
    : Submitter(StubsOf(servers), data, number, /*changes=*/true, std::move(node)) {}

Submitter::Submitter(Stubs stubs, const DataFolder& data, int32_t number, bool changes,
                     std::string node)
    : stubs_(std::move(stubs)),
      data_(data),
      number_(number),
      changes_(changes),
      acknowledged_{.node = std::move(node)},
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
    const std::string name = absl::StrCat("waits-", number_, "-", count);
    Submit(name);
    if (changes_ && acknowledged_.submits.contains(name)) Change(name, count);
  }
}

template <typename Request, typename Response>
bool Submitter::Call(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                     const Request& request, Response* response) {
  const bool several = stubs_.size() > 1;
  for (size_t asked = 0; !stopping(); ++asked) {
    grpc::ClientContext context;
    // Of several, one that is dead or hangs is passed over soon.
    context.set_wait_for_ready(!several || asked >= stubs_.size());
    context.set_deadline(
        absl::ToChronoTime(absl::Now() + (several ? absl::Milliseconds(500) : absl::Seconds(10))));
    const grpc::Status status =
        ((*stubs_[asked % stubs_.size()]).*method)(&context, request, response);
    if (IsAnswer(status.error_code())) return status.ok();
  }
  return false;
}

void Submitter::Submit(const std::string& name) {
  v1::SubmitJobRequest request;
  *request.mutable_document() = Document(data_, {.name = name, .language = "ranks: 4, tp: 4"});
  request.set_request_id(name);
  v1::SubmitJobResponse response;
  if (Call(&v1::JobService::Stub::SubmitJob, request, &response))
    acknowledged_.submits[name] = response.job().id();
}

void Submitter::Change(const std::string& name, int64_t count) {
  if (count % 3 == 0 && !acknowledged_.node.empty()) {
    LookForMark();
    SetMark(count % 2 == 0 ? name : "");
  } else if (count % 3 == 1) {
    v1::CancelJobRequest request;
    request.set_job(name);
    v1::CancelJobResponse response;
    if (Call(&v1::JobService::Stub::CancelJob, request, &response))
      acknowledged_.cancels.insert(name);
  } else if (count % 3 == 2) {
    v1::SuspendJobRequest request;
    request.set_job(name);
    v1::SuspendJobResponse response;
    if (Call(&v1::JobService::Stub::SuspendJob, request, &response))
      acknowledged_.suspends.insert(name);
  }
}

void Submitter::LookForMark() {
  v1::ListNodesResponse response;
  if (!acknowledged_.mark.has_value() ||
      !Call(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest(), &response))
    return;
  acknowledged_.marks_missing +=
      ReasonIn(response.nodes(), acknowledged_.node) != acknowledged_.mark;
}

void Submitter::SetMark(const std::string& reason) {
  // Until it is acknowledged it may be there or not.
  acknowledged_.mark.reset();
  bool done = false;
  if (reason.empty()) {
    v1::UncordonNodeRequest request;
    request.set_node(acknowledged_.node);
    v1::UncordonNodeResponse response;
    done = Call(&v1::JobService::Stub::UncordonNode, request, &response);
  } else {
    v1::CordonNodeRequest request;
    request.set_node(acknowledged_.node);
    request.set_reason(reason);
    v1::CordonNodeResponse response;
    done = Call(&v1::JobService::Stub::CordonNode, request, &response);
  }
  if (!done) return;
  acknowledged_.mark = reason;
  ++acknowledged_.marks;
}

Kept LookFor(const Acknowledged& acknowledged, Cluster& cluster) {
  std::map<std::string, std::vector<v1::JobStatus>> stored;
  for (const v1::JobStatus& status : cluster.List()) stored[status.name()].push_back(status);
  Kept kept;
  for (const auto& [name, id] : acknowledged.submits) {
    const std::vector<v1::JobStatus>& jobs = stored[name];
    kept.missing += std::count_if(jobs.begin(), jobs.end(), [id = id](const v1::JobStatus& job) {
                      return job.id() == id;
                    }) != 1;
    kept.doubled += jobs.size() > 1;
    if (jobs.size() != 1) continue;
    kept.cancels_missing +=
        acknowledged.cancels.contains(name) && jobs[0].phase() != v1::JOB_PHASE_CANCELLED;
    kept.suspends_missing += acknowledged.suspends.contains(name) && !jobs[0].suspended();
  }
  kept.marks_missing = acknowledged.marks_missing;
  if (acknowledged.mark.has_value())
    kept.marks_missing += ReasonIn(cluster.Nodes(), acknowledged.node) != acknowledged.mark;
  return kept;
}

}  // namespace phalanx::e2e
