#include "tests/bench/heartbeats/flood.h"

#include <grpcpp/generic/generic_stub.h>

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

struct Request {
  std::string method, bytes;
};

Request SubmitRequestOf(const std::string& text) {
  return {"SubmitJob", SubmitOf(text).SerializeAsString()};
}

// In turn: what the board answers, and what the driver's thread does.
Request AskOf(int64_t number) {
  if (number % 3 == 0) {
    v1::ListJobsRequest request;
    request.set_page_size(1);
    return {"ListJobs", request.SerializeAsString()};
  }
  if (number % 3 == 1) {
    v1::GetJobRequest request;
    request.set_job(kFirstJob);
    return {"GetJob", request.SerializeAsString()};
  }
  v1::ExplainJobRequest request;
  request.set_job(kFirstJob);
  return {"ExplainJob", request.SerializeAsString()};
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
  spared += other.spared;
  if (first.empty()) first = other.first;
}

Flood::Flood(const support::Authority& authority) {
  const auto add = [&](int count, const char* what, Wish wish, const char* role) {
    for (int i = 0; i < count; ++i) {
      const std::string name = absl::StrCat(what, "-", i);
      people_.push_back({name, wish, transport::ClientCredentials(authority.User(name, role))});
    }
  };
  add(1, "submits", Wish::kSubmit, "submitter");
  add(1, "asks", Wish::kAsk, "viewer");
  add(kOversizers, "oversizes", Wish::kOversize, "submitter");
}

void Flood::Start(const std::string& address) {
  Submit(*v1::JobService::NewStub(
             grpc::CreateCustomChannel(address, people_.front().credentials, OwnConnection())),
         TextOf(kFirstJob));
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

struct Flood::Open {
  grpc::ClientContext context;
  grpc::ByteBuffer response;
  grpc::Status status;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
};

void Flood::Call(const std::stop_token& stop, const std::string& address, const Person& person) {
  using Clock = std::chrono::system_clock;
  const bool oversizes = person.wish == Wish::kOversize;
  const auto pause = std::chrono::duration_cast<Clock::duration>(std::chrono::seconds(1)) /
                     (oversizes ? kOversizedASecond : kCallsASecond);
  grpc::GenericStub stub(grpc::CreateCustomChannel(address, person.credentials, OwnConnection()));
  grpc::CompletionQueue queue;
  Counts counts;
  int64_t number = 0;
  int open = 0;
  auto next = Clock::now();
  while (true) {
    const bool ends = stop.stop_requested() || (oversizes && number == int64_t{kOversizedOfOne});
    if (!ends && open < kOpenMax && Clock::now() >= next) {
      const Request request = oversizes ? SubmitRequestOf(std::string(kOversizedBytes, '#'))
                              : person.wish == Wish::kSubmit
                                  ? SubmitRequestOf(TextOf(absl::StrCat(person.name, "-", number)))
                                  : AskOf(number);
      ++number;
      auto call = std::make_unique<Open>();
      SetDeadline(call->context);
      const grpc::Slice bytes(request.bytes);
      call->reader = stub.PrepareUnaryCall(&call->context,
                                           absl::StrCat("/phalanx.v1.JobService/", request.method),
                                           grpc::ByteBuffer(&bytes, 1), &queue);
      call->reader->StartCall();
      Open* const started = call.release();  // of the queue, until it is over
      started->reader->Finish(&started->response, &started->status, started);
      ++open;
      next += pause;
      continue;
    }
    if (ends && open == 0) break;
    void* tag = nullptr;
    bool ok = false;
    const bool must_wait = ends || open == kOpenMax;
    // Each call has a deadline of its own.
    const auto until = must_wait ? Clock::now() + std::chrono::hours(1) : next;
    if (queue.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::GOT_EVENT) continue;
    const std::unique_ptr<const Open> call(static_cast<const Open*>(tag));
    Note(*call, person, counts);
    --open;
  }
  queue.Shutdown();
  if (!oversizes && counts.refused == 0) ++counts.spared;
  MutexLock lock(&mu_);
  counts_.Add(counts);
}

void Flood::Note(const Open& call, const Person& person, Counts& counts) {
  const grpc::Status& status = call.status;
  const bool oversizes = person.wish == Wish::kOversize;
  bool as_meant = true;
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    ++(oversizes ? counts.oversized : counts.refused);
    as_meant = oversizes || HasHint(status);
    if (!as_meant) ++counts.without_hint;
  } else if (status.ok() && !oversizes) {
    ++counts.taken;
  } else {
    ++counts.unexpected;
    as_meant = false;
  }
  if (!as_meant && counts.first.empty()) {
    counts.first = absl::StrCat(person.name, ": status ", static_cast<int>(status.error_code()),
                                ": ", status.error_message());
  }
}

}  // namespace phalanx::coordinator
