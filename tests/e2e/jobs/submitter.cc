#include "tests/e2e/jobs/submitter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

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

}  // namespace

Submitter::Submitter(const std::string& servers, const DataFolder& data, int32_t number)
    : stubs_(StubsOf(servers)), data_(data), number_(number), thread_([this] { Work(); }) {}

std::map<std::string, int64_t> Submitter::Finish() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
  return acknowledged_;
}

bool Submitter::stopping() {
  MutexLock lock(&mu_);
  return stopping_;
}

void Submitter::Work() {
  for (int64_t count = 0; !stopping(); ++count) Submit(absl::StrCat("waits-", number_, "-", count));
}

void Submitter::Submit(const std::string& name) {
  v1::SubmitJobRequest request;
  *request.mutable_document() = Document(data_, {.name = name, .language = "ranks: 4, tp: 4"});
  request.set_request_id(name);
  const bool several = stubs_.size() > 1;
  for (size_t asked = 0; !stopping(); ++asked) {
    grpc::ClientContext context;
    // Of several, one that is dead or hangs is passed over soon.
    context.set_wait_for_ready(!several || asked >= stubs_.size());
    context.set_deadline(
        absl::ToChronoTime(absl::Now() + (several ? absl::Milliseconds(500) : absl::Seconds(10))));
    v1::SubmitJobResponse response;
    if (!stubs_[asked % stubs_.size()]->SubmitJob(&context, request, &response).ok()) continue;
    acknowledged_[name] = response.job().id();
    return;
  }
}

Kept LookFor(const std::map<std::string, int64_t>& acknowledged, Cluster& cluster) {
  std::map<std::string, std::vector<int64_t>> stored;
  for (const v1::JobStatus& status : cluster.List()) stored[status.name()].push_back(status.id());
  Kept kept;
  for (const auto& [name, id] : acknowledged) {
    const std::vector<int64_t>& ids = stored[name];
    kept.missing += std::count(ids.begin(), ids.end(), id) != 1;
    kept.doubled += ids.size() > 1;
  }
  return kept;
}

}  // namespace phalanx::e2e
