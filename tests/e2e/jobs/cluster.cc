#include "tests/e2e/jobs/cluster.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

std::string JobName(int64_t job) { return absl::StrCat("job-", job); }

// One of several that hangs is given up so soon.
constexpr absl::Duration kTurn = absl::Seconds(2);

}  // namespace

void Cluster::Prepare(grpc::ClientContext& context, absl::Time deadline) const {
  context.set_deadline(absl::ToChronoTime(deadline));
  context.set_wait_for_ready(seats_.size() == 1);
}

bool Cluster::Reaches() const {
  return seats_.size() == 1 || seats_[at_].channel->WaitForConnected(
                                   absl::ToChronoTime(absl::Now() + absl::Milliseconds(300)));
}

void Cluster::AskNext() {
  if (seats_.size() == 1) return;
  // As long as nothing happens; not at full speed.
  seats_[at_].process->watch().AwaitEnd(absl::Milliseconds(20));
  at_ = (at_ + 1) % seats_.size();
}

template <typename Service>
Service& Cluster::StubOf() const {
  if constexpr (std::is_same_v<Service, v1::JoinService::Stub>) {
    return *seats_[at_].join_stub;
  } else {
    return *seats_[at_].stub;
  }
}

template <typename Service, typename Request, typename Response>
Response Cluster::Call(grpc::Status (Service::*method)(grpc::ClientContext*, const Request&,
                                                       Response*),
                       const Request& request) {
  const absl::Time deadline = absl::Now() + support::kPatience;
  while (true) {
    if (!Reaches() && absl::Now() < deadline) {
      AskNext();
      continue;
    }
    grpc::ClientContext context;
    Prepare(context, seats_.size() == 1 ? deadline : absl::Now() + kTurn);
    Response response;
    const grpc::Status status = (StubOf<Service>().*method)(&context, request, &response);
    // Of several one may hang, and one that stops cuts off what comes in that moment.
    const bool hangs =
        seats_.size() > 1 && (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                              status.error_code() == grpc::StatusCode::CANCELLED);
    // The coordinator went away meanwhile; every call may be repeated.
    if ((status.error_code() == grpc::StatusCode::UNAVAILABLE || hangs) && absl::Now() < deadline) {
      AskNext();
      continue;
    }
    support::Require(status.ok(), absl::StrCat("call failed: ", status.error_message()));
    return response;
  }
}

std::vector<std::string> TlsFlags(const transport::TlsFiles& files) {
  return {"--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key};
}

bool IsTerminal(v1::JobPhase phase) {
  return phase == v1::JOB_PHASE_SUCCEEDED || phase == v1::JOB_PHASE_FAILED ||
         phase == v1::JOB_PHASE_CANCELLED;
}

Cluster::Cluster(ClusterOptions options)
    : options_(std::move(options)),
      folder_(support::MakeFolder("e2e-cluster")),
      worker_program_(options_.worker_program) {
  seats_.resize(options_.coordinators);
  for (size_t i = 0; i < seats_.size(); ++i) StartCoordinator(options_.coordinator_program, i);
  StartWorker();
}

Cluster::~Cluster() {
  // Ranks get SIGKILL with their daemon; whoever looks for what is left is not to find those.
  std::vector<support::ProcessWatch> watches;
  for (pid_t pid : Processes()) watches.emplace_back(pid);
  worker_.reset();
  more_workers_.clear();
  for (Seat& seat : seats_) seat.process.reset();
  for (const support::ProcessWatch& watch : watches) watch.AwaitEnd(absl::Seconds(10));
}

void Cluster::StartCoordinator(const std::string& program, size_t index) {
  Seat& seat = seats_[index];
  const std::string ready = absl::StrCat(folder_, "/coordinator-", ++starts_, ".json");
  std::vector<std::string> argv = {support::Program(program),
                                   "--listen",
                                   seat.grpc.empty() ? "127.0.0.1:0" : seat.grpc,
                                   "--http",
                                   seat.http.empty() ? "127.0.0.1:0" : seat.http,
                                   "--store",
                                   options_.store.empty() ? folder_ + "/store" : options_.store,
                                   "--ready-file",
                                   ready};
  argv.insert(argv.end(), options_.coordinator_flags.begin(), options_.coordinator_flags.end());
  const std::string log = CoordinatorLogPath(index);
  seat.process = std::make_unique<support::Process>(argv, mark_, log, log);
  support::AwaitFile(ready, *seat.process);
  const nlohmann::json addresses = nlohmann::json::parse(support::ReadText(ready));
  seat.grpc = addresses.at("grpc").get<std::string>();
  seat.http = addresses.at("http").get<std::string>();
  grpc::ChannelArguments arguments;
  // A channel of its own: one that knows the coordinator before would wait before it asks again.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // It also bounds how long a connection may take, with its handshake.
  const bool at_once = seats_.size() == 1 && !options_.tls.on();
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, at_once ? 50 : 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  seat.channel =
      grpc::CreateCustomChannel(seat.grpc, transport::ClientCredentials(options_.tls), arguments);
  seat.stub = v1::JobService::NewStub(seat.channel);
  seat.join_stub = v1::JoinService::NewStub(seat.channel);
}

std::string Cluster::CoordinatorLogPath(size_t index) const {
  return absl::StrCat(folder_, "/coordinator", index == 0 ? "" : absl::StrCat("-", index), ".log");
}

std::string Cluster::CoordinatorLog(size_t index) const {
  return support::ReadText(CoordinatorLogPath(index));
}

std::string Cluster::grpc() const {
  return absl::StrJoin(seats_, ",",
                       [](std::string* out, const Seat& seat) { absl::StrAppend(out, seat.grpc); });
}

size_t Cluster::AwaitLeader() {
  Nodes();  // is answered by whoever leads, and asks in turn until somebody does
  return at_;
}

std::vector<v1::NodeStatus> Cluster::Nodes() {
  const v1::ListNodesResponse response =
      Call(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest());
  return {response.nodes().begin(), response.nodes().end()};
}

std::unique_ptr<support::Process> Cluster::StartNode(const std::string& node, int32_t devices,
                                                     const std::string& name) {
  const std::string ready = absl::StrCat(folder_, "/worker-", ++starts_, ".json");
  std::vector<std::string> argv = {support::Program(worker_program_),
                                   "--coordinator",
                                   grpc(),
                                   "--node",
                                   node,
                                   "--devices",
                                   absl::StrCat(devices),
                                   "--state",
                                   absl::StrCat(folder_, "/state-", name),
                                   "--threads",
                                   "1",
                                   "--ready-file",
                                   ready};
  // A release that is older has no such flag, and no checks.
  if (!absl::StrContains(worker_program_, '/')) argv.insert(argv.end(), {"--check-interval", "0"});
  argv.insert(argv.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  if (const auto tls = options_.worker_tls.find(node); tls != options_.worker_tls.end()) {
    const std::vector<std::string> flags = TlsFlags(tls->second);
    argv.insert(argv.end(), flags.begin(), flags.end());
  }
  const std::string log = absl::StrCat(folder_, "/", name, ".log");
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
  auto worker = std::make_unique<support::Process>(argv, mark_, log, log);
  support::AwaitFile(ready, *worker);
  return worker;
}

void Cluster::StartWorker() { worker_ = StartNode("here", options_.devices, "worker"); }

support::Process& Cluster::AddWorker(const std::string& node, int32_t devices) {
  more_workers_.push_back(StartNode(node, devices, absl::StrCat("worker-", node)));
  return *more_workers_.back();
}

std::string Cluster::WorkerLogPath() const {
  return absl::StrCat(folder_, "/", names_.front(), ".log");
}

std::string Cluster::WorkerLog(const std::string& node) const {
  std::string log;
  for (const std::string& name : names_) {
    if (!node.empty() && node != name) continue;
    absl::StrAppend(&log, support::ReadText(absl::StrCat(folder_, "/", name, ".log")));
  }
  return log;
}

void Cluster::KillCoordinator(size_t index) {
  coordinator(index).Signal(SIGKILL);
  coordinator(index).Wait();
}

void Cluster::ForgetStore() { std::filesystem::remove_all(folder_ + "/store"); }

void Cluster::CopyStore() {
  std::filesystem::copy(folder_ + "/store", folder_ + "/copy",
                        std::filesystem::copy_options::recursive);
}

void Cluster::PutBackStore() {
  ForgetStore();
  std::filesystem::rename(folder_ + "/copy", folder_ + "/store");
}

void Cluster::KillWorker() {
  worker_->Signal(SIGKILL);
  worker_->Wait();
}

std::vector<std::pair<int32_t, pid_t>> Cluster::Started(int64_t job,
                                                        const std::string& node) const {
  // "... job-1 epoch=1 rank=0 device=0 started pid=123"
  std::vector<std::pair<int32_t, pid_t>> started;
  std::istringstream log(WorkerLog(node));
  const std::string name = absl::StrCat(" ", JobName(job), " ");
  for (std::string line; std::getline(log, line);) {
    const size_t rank_at = line.find(" rank="), pid_at = line.find(" started pid=");
    if (line.find(name) == std::string::npos || rank_at == std::string::npos ||
        pid_at == std::string::npos) {
      continue;
    }
    started.emplace_back(std::stoi(line.substr(rank_at + 6)), std::stoi(line.substr(pid_at + 13)));
  }
  return started;
}

std::map<int32_t, int> Cluster::Starts(int64_t job) const {
  std::map<int32_t, int> starts;
  for (const auto& [rank, pid] : Started(job, "")) ++starts[rank];
  return starts;
}

std::map<int32_t, support::ProcessWatch> Cluster::Ranks(int64_t job,
                                                        const std::string& node) const {
  std::map<int32_t, pid_t> pids;
  for (const auto& [rank, pid] : Started(job, node)) pids[rank] = pid;
  std::map<int32_t, support::ProcessWatch> ranks;
  for (const auto& [rank, pid] : pids) {
    support::ProcessWatch watch(pid);
    if (!watch.HasEnded()) ranks.emplace(rank, std::move(watch));
  }
  return ranks;
}

v1::JobStatus Cluster::Submit(const v1::JobDocument& document, const std::string& request_id) {
  v1::SubmitJobRequest request;
  *request.mutable_document() = document;
  request.set_request_id(request_id);
  return Call(&v1::JobService::Stub::SubmitJob, request).job();
}

v1::JobStatus Cluster::Get(int64_t job) {
  v1::GetJobRequest request;
  request.set_job(JobName(job));
  return Call(&v1::JobService::Stub::GetJob, request).job();
}

v1::JobStatus Cluster::Cancel(int64_t job) {
  v1::CancelJobRequest request;
  request.set_job(JobName(job));
  return Call(&v1::JobService::Stub::CancelJob, request).job();
}

std::vector<v1::JobEvent> Cluster::Events(int64_t job) {
  v1::ListEventsRequest request;
  request.set_job(JobName(job));
  const v1::ListEventsResponse response = Call(&v1::JobService::Stub::ListEvents, request);
  return {response.events().begin(), response.events().end()};
}

std::vector<v1::Incident> Cluster::Incidents(int64_t job) {
  v1::ListIncidentsRequest request;
  request.set_job(JobName(job));
  const v1::ListIncidentsResponse response = Call(&v1::JobService::Stub::ListIncidents, request);
  return {response.incidents().begin(), response.incidents().end()};
}

std::string Cluster::Why(int64_t job) {
  v1::ExplainJobRequest request;
  request.set_job(JobName(job));
  const v1::ExplainJobResponse response = Call(&v1::JobService::Stub::ExplainJob, request);
  std::string text;
  for (const std::string& reason : response.reasons()) absl::StrAppend(&text, reason, "\n");
  return text;
}

std::vector<v1::JobStatus> Cluster::List() {
  v1::ListJobsRequest request;
  std::vector<v1::JobStatus> jobs;
  do {
    const v1::ListJobsResponse response = Call(&v1::JobService::Stub::ListJobs, request);
    jobs.insert(jobs.end(), response.jobs().begin(), response.jobs().end());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return jobs;
}

std::vector<v1::JoinToken> Cluster::Tokens() {
  const v1::ListTokensResponse response =
      Call(&v1::JoinService::Stub::ListTokens, v1::ListTokensRequest());
  return {response.tokens().begin(), response.tokens().end()};
}

v1::JobStatus Cluster::Await(int64_t job, const std::function<bool(const v1::JobStatus&)>& enough) {
  const absl::Time deadline = absl::Now() + support::kPatience;
  v1::JobStatus last;
  while (absl::Now() < deadline) {
    if (!Reaches()) {
      AskNext();
      continue;
    }
    grpc::ClientContext context;
    Prepare(context, deadline);
    v1::WatchJobRequest request;
    request.set_job(JobName(job));
    const auto stream = stub().WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) {
      last = response.job();
      if (!enough(last)) continue;
      context.TryCancel();
      return last;
    }
    const grpc::Status status = stream->Finish();
    // Past the deadline what is told is where the job stands.
    support::Require(status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED,
                     absl::StrCat("watch failed: ", status.error_message()));
    if (IsTerminal(last.phase())) break;
    AskNext();
  }
  throw std::runtime_error(absl::StrCat(JobName(job),
                                        " does not get there: ", last.ShortDebugString(), "\n",
                                        CoordinatorLog(), WorkerLog()));
}

v1::JobStatus Cluster::AwaitStep(int64_t job, int64_t step) {
  return Await(job,
               [step](const v1::JobStatus& status) { return status.last_step().step() >= step; });
}

v1::JobStatus Cluster::AwaitEnd(int64_t job) {
  return Await(job, [](const v1::JobStatus& status) { return IsTerminal(status.phase()); });
}

support::Finished Cluster::Phalanx(std::vector<std::string> arguments) const {
  std::vector<std::string> argv = {support::Program("phalanx"), "--server", grpc()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return support::RunToEnd(argv);
}

}  // namespace phalanx::e2e
