#include "tests/bench/heartbeats/jobs.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

std::string NameOf(int64_t job) { return absl::StrCat("job-", job); }

}  // namespace

std::string JobText(const JobShape& shape) {
  return absl::StrCat(
      "apiVersion: phalanx/v1\nkind: TrainingJob\nmetadata: {name: ", shape.name,
      "}\nspec:\n  steps: ", shape.steps,
      "\n  modules:\n    - name: language\n"
      "      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, "
      "mlp_size: 128, vocabulary: 256, context: 64, block: 32}\n"
      "      parallel: {ranks: ",
      shape.ranks, "}\n  batch: {global: ", shape.ranks,
      ", micro: 1}\n  data: {shards: a.tar, tokenizer: t.model}\n  resources: {device: ",
      shape.device_kind, "}\n  recovery: {ladder: [", shape.ladder, "], standby: none}\n");
}

Jobs::Jobs(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials)
    : stub_(ConnectReader(address, credentials)) {}

int64_t Jobs::Submit(const JobShape& shape) {
  const v1::SubmitJobRequest request = SubmitOf(JobText(shape));
  v1::SubmitJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = stub_->SubmitJob(&context, request, &response);
  support::Require(status.ok(), absl::StrCat("submit: ", status.error_message()));
  return response.job().id();
}

void Jobs::AwaitPhase(int64_t job, v1::JobPhase phase) {
  v1::WatchJobRequest request;
  request.set_job(NameOf(job));
  grpc::ClientContext context;
  SetDeadline(context);
  const auto stream = stub_->WatchJob(&context, request);
  v1::WatchJobResponse response;
  std::string last;
  while (stream->Read(&response)) {
    if (response.job().phase() == phase) return context.TryCancel();
    last = absl::StrCat(v1::JobPhase_Name(response.job().phase()), ", ", response.job().reason());
  }
  support::Require(false, absl::StrCat(NameOf(job), " does not come to ", v1::JobPhase_Name(phase),
                                       "; it came to ", last));
}

void Jobs::Cancel(int64_t job) {
  v1::CancelJobRequest request;
  request.set_job(NameOf(job));
  v1::CancelJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = stub_->CancelJob(&context, request, &response);
  support::Require(status.ok(), absl::StrCat("cancel: ", status.error_message()));
}

int64_t Jobs::ReadyNodes() {
  v1::ListNodesResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = stub_->ListNodes(&context, v1::ListNodesRequest(), &response);
  support::Require(status.ok(), absl::StrCat("nodes: ", status.error_message()));
  int64_t ready = 0;
  for (const v1::NodeStatus& node : response.nodes())
    ready += node.state() == v1::NodeStatus::STATE_READY ? 1 : 0;
  return ready;
}

Watchers::Watchers(const std::string& address, const transport::TlsFiles& files, int count)
    : count_(static_cast<size_t>(count)) {
  for (int i = 0; i < count; ++i) {
    threads_.emplace_back([this, address, files] {
      const auto stub = ConnectReader(address, transport::ClientCredentials(files));
      Run(*stub);
    });
  }
}

Watchers::~Watchers() {
  MutexLock lock(&mu_);
  leaving_ = true;
  changed_.SignalAll();
}

void Watchers::Watch(int64_t job) {
  MutexLock lock(&mu_);
  jobs_.push_back(job);
  changed_.SignalAll();
}

void Watchers::AwaitEnds() {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
  MutexLock lock(&mu_);
  while (failure_.empty() && ends_ < jobs_.size() * count_)
    support::Require(!changed_.WaitUntil(&mu_, end), "a watcher is not told of the end of a job");
  support::Require(failure_.empty(), failure_);
}

void Watchers::Run(v1::JobService::Stub& stub) {
  int64_t job = 0;
  for (size_t i = 0; AwaitJob(i, job); ++i) {
    v1::WatchJobRequest request;
    request.set_job(NameOf(job));
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stream = stub.WatchJob(&context, request);
    v1::WatchJobResponse response;
    v1::JobPhase phase = v1::JOB_PHASE_UNSPECIFIED;
    while (stream->Read(&response)) phase = response.job().phase();
    const grpc::Status status = stream->Finish();
    const bool ended = phase == v1::JOB_PHASE_SUCCEEDED || phase == v1::JOB_PHASE_CANCELLED;
    NoteEnd(status.ok() && ended
                ? ""
                : absl::StrCat("a watcher of ", NameOf(job), " is told ", v1::JobPhase_Name(phase),
                               " last: ", status.error_message()));
  }
}

bool Watchers::AwaitJob(size_t index, int64_t& job) {
  MutexLock lock(&mu_);
  while (!leaving_ && index >= jobs_.size()) changed_.Wait(&mu_);
  if (leaving_) return false;
  job = jobs_[index];
  return true;
}

void Watchers::NoteEnd(const std::string& failure) {
  MutexLock lock(&mu_);
  ++ends_;
  if (failure_.empty()) failure_ = failure;
  changed_.SignalAll();
}

}  // namespace phalanx::coordinator
