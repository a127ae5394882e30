#include "tests/bench/heartbeats/flood.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/job_text.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kOversizedBytes = 9 << 20;
constexpr char kFirstJob[] = "flood-first";

std::string TextOf(const std::string& name) {
  return support::JobText({.name = name, .steps = 300});
}

std::unique_ptr<v1::JobService::Stub> ConnectPerson(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return v1::JobService::NewStub(grpc::CreateCustomChannel(address, credentials, OwnConnection()));
}

grpc::Status TrySubmit(v1::JobService::Stub& stub, const std::string& text) {
  v1::SubmitJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  return stub.SubmitJob(&context, SubmitOf(text), &response);
}

// In turn: what the board answers, and what the driver's thread does.
grpc::Status Ask(v1::JobService::Stub& stub, int64_t number) {
  grpc::ClientContext context;
  SetDeadline(context);
  if (number % 3 == 0) {
    v1::ListJobsResponse response;
    return stub.ListJobs(&context, v1::ListJobsRequest(), &response);
  }
  if (number % 3 == 1) {
    v1::GetJobRequest request;
    request.set_job(kFirstJob);
    v1::GetJobResponse response;
    return stub.GetJob(&context, request, &response);
  }
  v1::ExplainJobRequest request;
  request.set_job(kFirstJob);
  v1::ExplainJobResponse response;
  return stub.ExplainJob(&context, request, &response);
}

bool HasHint(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return false;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&retry)) {
      return retry.retry_delay().seconds() > 0 || retry.retry_delay().nanos() > 0;
    }
  }
  return false;
}

}  // namespace

void Flood::Counts::Add(const Counts& other) {
  taken += other.taken;
  refused += other.refused;
  without_hint += other.without_hint;
  oversized += other.oversized;
  unexpected += other.unexpected;
  if (first.empty()) first = other.first;
}

Flood::Flood(const support::Authority& authority) {
  const auto add = [&](int count, const char* what, Wish wish, const char* role) {
    for (int i = 0; i < count; ++i) {
      const std::string name = absl::StrCat(what, "-", i);
      people_.push_back({name, wish, transport::ClientCredentials(authority.User(name, role))});
    }
  };
  add(kSubmitters, "submits", Wish::kSubmit, "submitter");
  add(kAskers, "asks", Wish::kAsk, "viewer");
  add(kOversizers, "oversizes", Wish::kOversize, "submitter");
}

void Flood::Start(const std::string& address) {
  Submit(*ConnectPerson(address, people_.front().credentials), TextOf(kFirstJob));
  for (const Person& person : people_) {
    threads_.emplace_back(
        [this, address, &person](const std::stop_token& stop) { Call(stop, address, person); });
  }
}

Flood::Counts Flood::Stop() {
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
  MutexLock lock(&mu_);
  return std::exchange(counts_, {});
}

void Flood::Call(const std::stop_token& stop, const std::string& address, const Person& person) {
  const auto stub = ConnectPerson(address, person.credentials);
  const auto pause = std::chrono::nanoseconds(std::chrono::seconds(1)) /
                     (person.wish == Wish::kOversize ? kOversizedASecond : kCallsASecond);
  Counts counts;
  auto next = std::chrono::steady_clock::now();
  for (int64_t number = 0; !stop.stop_requested(); ++number) {
    const grpc::Status status = CallOnce(*stub, person, number);
    bool as_meant = true;
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      const bool oversized = person.wish == Wish::kOversize;
      ++(oversized ? counts.oversized : counts.refused);
      as_meant = oversized || HasHint(status);
      if (!as_meant) ++counts.without_hint;
    } else if (status.ok() && person.wish != Wish::kOversize) {
      ++counts.taken;
    } else {
      ++counts.unexpected;
      as_meant = false;
    }
    if (!as_meant && counts.first.empty()) {
      counts.first = absl::StrCat(person.name, ": status ", static_cast<int>(status.error_code()),
                                  ": ", status.error_message());
    }
    std::this_thread::sleep_until(next += pause);
  }
  MutexLock lock(&mu_);
  counts_.Add(counts);
}

grpc::Status Flood::CallOnce(v1::JobService::Stub& stub, const Person& person, int64_t number) {
  switch (person.wish) {
    case Wish::kSubmit:
      return TrySubmit(stub, TextOf(absl::StrCat(person.name, "-", number)));
    case Wish::kAsk:
      return Ask(stub, number);
    case Wish::kOversize:
      return TrySubmit(stub, std::string(kOversizedBytes, '#'));
  }
  return grpc::Status::OK;
}

}  // namespace phalanx::coordinator
