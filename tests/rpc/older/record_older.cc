// Records what programs of an older release say and store (README.md): scripts/record_older runs
// it.
//
//   phalanx-record-older PROGRAMS OUT
//
// PROGRAMS: the folder of phalanx, phalanx-coordinator, phalanx-worker and phalanx-rank of that
// release. OUT, which exists, gets sessions.bin, jobs.txtpb, nodes.txtpb, tokens.json and store/.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "nlohmann/json.hpp"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/e2e/jobs/job.h"
#include "tests/rpc/older/recording.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::older {
namespace {

using support::Process;
using support::Require;

// What ranks told each other holds addresses of the machine, and is nothing to anybody but them.
void Blank(std::string& value) { value.assign(value.size(), '\0'); }
v1::OpenSessionRequest Kept(v1::OpenSessionRequest request) {
  if (request.rank_report().has_rendezvous())
    Blank(*request.mutable_rank_report()->mutable_rendezvous()->mutable_value());
  return request;
}
v1::OpenSessionResponse Kept(v1::OpenSessionResponse response) {
  if (response.command().has_rendezvous()) {
    for (auto& [key, value] : *response.mutable_command()->mutable_rendezvous()->mutable_entries())
      Blank(value);
  }
  return response;
}

// Between daemons and their coordinator: passes all on, and keeps it.
class Proxy final : public v1::WorkerService::Service {
 public:
  explicit Proxy(const std::string& coordinator)
      : stub_(v1::WorkerService::NewStub(
            grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials()))) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    Require(server_ != nullptr && port != 0, "the proxy cannot listen");
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~Proxy() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  const std::string& address() const { return address_; }
  std::string Recorded() {
    MutexLock lock(&mutex_);
    return recorded_;
  }
  void Keep(uint8_t session, Kind kind, const std::string& bytes) {
    MutexLock lock(&mutex_);
    recorded_ += EncodeFrame({session, kind, bytes});
  }

  grpc::Status OpenSession(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::OpenSessionResponse, v1::OpenSessionRequest>* daemon) override {
    uint8_t session = 0;
    {
      MutexLock lock(&mutex_);
      session = sessions_++;
    }
    grpc::ClientContext upwards;
    const auto coordinator = stub_->OpenSession(&upwards);
    std::jthread commands([&] {
      v1::OpenSessionResponse response;
      while (coordinator->Read(&response)) {
        Keep(session, Kind::kResponse, Kept(response).SerializeAsString());
        daemon->Write(response);
      }
      context->TryCancel();
    });
    v1::OpenSessionRequest request;
    while (daemon->Read(&request)) {
      Keep(session, Kind::kRequest, Kept(request).SerializeAsString());
      coordinator->Write(request);
    }
    Keep(session, Kind::kEnd, "");
    upwards.TryCancel();
    return grpc::Status::CANCELLED;
  }

 private:
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::string address_;
  Mutex mutex_;
  uint8_t sessions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string recorded_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

// Steps between checkpoints. A job of those has neither a checkpoint nor communicators in the
// making when it is hit: a recording of it can be replayed though another coordinator plans
// otherwise.
constexpr int64_t kRarely = 1'000'000;
constexpr const char* kNodes[] = {"here", "middle", "there"};

class Recorder {
 public:
  Recorder(std::string programs, std::string out)
      : programs_(std::move(programs)), out_(std::move(out)) {}

  void MakeToken();
  void RecordSessions();
  void RecordStore();

 private:
  void StartCoordinator(const std::vector<std::string>& more = {});
  void StartWorker(const std::string& node, const std::string& coordinator);
  void StopWorkers();
  template <typename Request, typename Response>
  Response Call(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                const Request& request) {
    grpc::ClientContext context;
    Response response;
    const grpc::Status status = (jobs_.get()->*method)(&context, request, &response);
    Require(status.ok(), status.error_message());
    return response;
  }
  v1::SubmitJobRequest JobOf(const std::string& name, int64_t steps, int64_t every) const;
  void Await(int64_t job, const std::function<bool(const v1::JobStatus&)>& enough);
  void AwaitStep(int64_t job, int64_t epoch, int64_t step) {
    Await(job, [=](const v1::JobStatus& status) {
      return status.last_step().epoch() >= epoch && status.last_step().step() >= step;
    });
  }

  const std::string programs_, out_;
  const std::string mark_ = support::NewMark();
  const std::string folder_ = support::MakeFolder("older");
  const e2e::DataFolder data_ = e2e::MakeData(DataOptions());
  int starts_ = 0;
  std::string address_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<Process> coordinator_;
  std::map<std::string, std::unique_ptr<Process>> workers_;
};

void Recorder::StartCoordinator(const std::vector<std::string>& more) {
  const std::string ready = absl::StrCat(folder_, "/ready-", ++starts_);
  std::vector<std::string> argv = {programs_ + "/phalanx-coordinator",
                                   "--listen",
                                   "127.0.0.1:0",
                                   "--http",
                                   "127.0.0.1:0",
                                   "--store",
                                   folder_ + "/store",
                                   "--ready-file",
                                   ready};
  argv.insert(argv.end(), more.begin(), more.end());
  const std::string log = folder_ + "/coordinator.log";
  coordinator_ = std::make_unique<Process>(argv, mark_, log, log);
  support::AwaitFile(ready, *coordinator_);
  address_ = nlohmann::json::parse(support::ReadText(ready)).at("grpc").get<std::string>();
  jobs_ =
      v1::JobService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
}

// All in one failure domain, which the release did not put into layouts.
void Recorder::StartWorker(const std::string& node, const std::string& coordinator) {
  const std::string ready = absl::StrCat(folder_, "/ready-", ++starts_);
  const std::string log = absl::StrCat(folder_, "/worker-", node, ".log");
  workers_[node] = std::make_unique<Process>(
      std::vector<std::string>{programs_ + "/phalanx-worker", "--coordinator", coordinator,
                               "--node", node, "--devices", "1", "--threads", "1", "--host-memory",
                               "1Gi", "--failure-domain", "rack-1", "--state",
                               absl::StrCat(folder_, "/state-", starts_), "--ready-file", ready},
      mark_, log, log);
  support::AwaitFile(ready, *workers_[node]);
}

void Recorder::StopWorkers() {
  for (auto& [node, worker] : workers_) {
    worker->Signal(SIGTERM);
    worker->Wait();
  }
  workers_.clear();
}

// Named as a fake rank is to behave (tests/e2e/agent/fake_rank.cc): it waits for what it is told.
v1::SubmitJobRequest Recorder::JobOf(const std::string& name, int64_t steps, int64_t every) const {
  v1::SubmitJobRequest request;
  *request.mutable_document() =
      e2e::Document(data_, {.name = name,
                            .steps = steps,
                            .precision = "fp64",
                            .vision = "",
                            .language = "ranks: 3",
                            .batch = 7,
                            .standby = every < kRarely,
                            .checkpoint = absl::StrCat("{every: ", every, "}"),
                            .output = absl::StrCat("out-", name)});
  return request;
}

void Recorder::Await(int64_t job, const std::function<bool(const v1::JobStatus&)>& enough) {
  v1::WatchJobRequest request;
  request.set_job(absl::StrCat("job-", job));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + support::kPatience));
  const auto stream = jobs_->WatchJob(&context, request);
  v1::WatchJobResponse response;
  while (stream->Read(&response)) {
    if (!enough(response.job())) continue;
    context.TryCancel();
    return;
  }
  Require(false, absl::StrCat("the job ended otherwise: ", response.job().ShortDebugString()));
}

// The one thing in a store that needs certificates.
void Recorder::MakeToken() {
  const support::Authority authority;
  const transport::TlsFiles own = authority.Coordinator(),
                            person = authority.User("op", "operator");
  StartCoordinator({"--tls-ca", own.ca, "--tls-certificate", own.certificate, "--tls-key", own.key,
                    "--join-ca-certificate", own.ca, "--join-ca-key",
                    authority.folder() + "/ca-key.pem"});
  const auto phalanx = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {
        programs_ + "/phalanx", "--server",         address_,    "--tls-ca", person.ca,
        "--tls-certificate",    person.certificate, "--tls-key", person.key, "token"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const support::Finished done = support::RunToEnd(argv);
    Require(done.exit_code == 0, done.talk);
    return done.out;
  };
  phalanx({"create", "--node", "fourth", "--ttl", "1h"});
  support::WriteFile(out_ + "/tokens.json", phalanx({"list", "-o", "json"}));
  coordinator_->Signal(SIGTERM);
  coordinator_->Wait();
}

// A job on three nodes, of which one is lost; it goes on, and is cancelled with a checkpoint.
void Recorder::RecordSessions() {
  StartCoordinator();
  Proxy proxy(address_);
  for (const char* node : kNodes) StartWorker(node, proxy.address());
  const v1::SubmitJobRequest submit = JobOf("wait", e2e::kForEver, kRarely);
  proxy.Keep(0, Kind::kSubmit, submit.SerializeAsString());
  Call(&v1::JobService::Stub::SubmitJob, submit);
  AwaitStep(1, 1, 25);
  workers_["there"]->Signal(SIGKILL);
  workers_["there"]->Wait();
  workers_.erase("there");
  AwaitStep(1, 2, 45);
  v1::CancelJobRequest cancel;
  cancel.set_job("job-1");
  cancel.set_checkpoint(true);
  proxy.Keep(0, Kind::kCancel, cancel.SerializeAsString());
  Call(&v1::JobService::Stub::CancelJob, cancel);
  Await(1, [](const v1::JobStatus& status) { return status.phase() == v1::JOB_PHASE_CANCELLED; });
  StopWorkers();
  support::WriteFile(out_ + "/sessions.bin", proxy.Recorded());
}

// The coordinator's end in the middle of a job that trains, beside one that has succeeded, one that
// was cancelled, and one that waits.
void Recorder::RecordStore() {
  for (const char* node : kNodes) StartWorker(node, address_);
  Call(&v1::JobService::Stub::SubmitJob, JobOf("done", 3, 20));
  Await(2, [](const v1::JobStatus& status) { return status.phase() == v1::JOB_PHASE_SUCCEEDED; });
  Call(&v1::JobService::Stub::SubmitJob, JobOf("trains", e2e::kForEver, 20));
  Call(&v1::JobService::Stub::SubmitJob, JobOf("waits", 3, 20));
  AwaitStep(3, 1, 45);
  v1::CordonNodeRequest cordon;
  cordon.set_node("middle");
  cordon.set_reason("new fan");
  Call(&v1::JobService::Stub::CordonNode, cordon);
  support::WriteFile(out_ + "/nodes.txtpb",
                     Call(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest()).DebugString());
  support::WriteFile(out_ + "/jobs.txtpb",
                     Call(&v1::JobService::Stub::ListJobs, v1::ListJobsRequest()).DebugString());
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait();
  std::filesystem::create_directory(out_ + "/store");
  for (const char* file : {"journal.db", "journal.db-wal", "join-tokens"}) {
    std::filesystem::copy_file(absl::StrCat(folder_, "/store/", file),
                               absl::StrCat(out_, "/store/", file));
  }
}

}  // namespace
}  // namespace phalanx::older

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: phalanx-record-older PROGRAMS OUT\n");
    return 2;
  }
  phalanx::older::Recorder recorder(argv[1], argv[2]);
  recorder.MakeToken();
  recorder.RecordSessions();
  recorder.RecordStore();
}
