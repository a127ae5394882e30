#include "tests/e2e/agent/fake_coordinator.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "tests/support/process.h"

namespace phalanx::agent {

FakeCoordinator::FakeCoordinator(int port, uint64_t incarnation, grpc::Status refusal)
    : incarnation_(incarnation), refusal_(std::move(refusal)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                           &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port_ == 0) {
    std::fprintf(stderr, "the fake coordinator cannot listen\n");
    std::abort();
  }
}

FakeCoordinator::~FakeCoordinator() {
  // The past deadline cuts streams at once, as a killed coordinator would.
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", port_); }

grpc::Status FakeCoordinator::OpenSession(grpc::ServerContext*, Session* session) {
  if (!refusal_.ok()) return refusal_;
  v1::OpenSessionRequest request;
  while (session->Read(&request)) {
    if (request.has_hello()) {
      v1::OpenSessionResponse response;
      response.mutable_welcome()->mutable_heartbeat_interval()->set_nanos(50'000'000);
      response.mutable_welcome()->mutable_heartbeat_timeout()->set_seconds(10);
      response.mutable_welcome()->set_coordinator_incarnation(incarnation_);
      session->Write(response);
    }
    MutexLock lock(&mutex_);
    session_ = session;
    received_.push_back(request);
    changed_.SignalAll();
  }
  MutexLock lock(&mutex_);
  session_ = nullptr;
  ++closed_;
  changed_.SignalAll();
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::UploadLogs(grpc::ServerContext*,
                                         grpc::ServerReader<v1::UploadLogsRequest>* reader,
                                         v1::UploadLogsResponse*) {
  v1::UploadLogsRequest request;
  std::string fetch_id;
  while (reader->Read(&request)) {
    fetch_id = request.fetch_id();
    MutexLock lock(&mutex_);
    if (!request.text().empty()) uploads_[fetch_id].text[request.rank()] += request.text();
    changed_.SignalAll();
  }
  MutexLock lock(&mutex_);
  uploads_[fetch_id].done = true;
  changed_.SignalAll();
  return grpc::Status::OK;
}

void FakeCoordinator::WaitUntil(const char* what, const std::function<bool()>& condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
  while (!condition()) {
    if (!changed_.WaitUntil(&mutex_, deadline)) continue;
    std::fprintf(stderr, "no %s came; received and not expected:\n", what);
    for (const auto& message : received_) {
      if (!message.has_heartbeat())
        std::fprintf(stderr, "  %s\n", message.ShortDebugString().c_str());
    }
    std::abort();
  }
}

v1::OpenSessionRequest FakeCoordinator::Await(
    const char* what, const std::function<bool(const v1::OpenSessionRequest&)>& match) {
  MutexLock lock(&mutex_);
  v1::OpenSessionRequest found;
  WaitUntil(what, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto message = received_.begin(); message != received_.end(); ++message) {
      if (!match(*message)) continue;
      found = *message;
      received_.erase(message);
      return true;
    }
    return false;
  });
  return found;
}

v1::WorkerHello FakeCoordinator::AwaitHello() {
  return Await("hello", [](const auto& message) { return message.has_hello(); }).hello();
}

uint64_t FakeCoordinator::Send(v1::Command command) {
  v1::OpenSessionResponse response;
  command.set_command_number(++last_command_);
  *response.mutable_command() = std::move(command);
  MutexLock lock(&mutex_);
  WaitUntil("session", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return session_ != nullptr; });
  session_->Write(response);
  return last_command_;
}

v1::CommandResult FakeCoordinator::AwaitResult(uint64_t command_number) {
  return Await("result",
               [&](const auto& message) {
                 return message.has_command_result() &&
                        message.command_result().command_number() == command_number;
               })
      .command_result();
}

v1::RankReport FakeCoordinator::AwaitReport(
    const std::function<bool(const v1::RankReport&)>& match) {
  return Await("report",
               [&](const auto& message) {
                 return message.has_rank_report() && match(message.rank_report());
               })
      .rank_report();
}

v1::Heartbeat FakeCoordinator::AwaitHeartbeat(
    const std::function<bool(const v1::Heartbeat&)>& match) {
  return Await("heartbeat",
               [&](const auto& message) {
                 return message.has_heartbeat() && match(message.heartbeat());
               })
      .heartbeat();
}

void FakeCoordinator::AwaitClose() {
  MutexLock lock(&mutex_);
  WaitUntil("close", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ > 0; });
}

std::map<int32_t, std::string> FakeCoordinator::AwaitUpload(const std::string& fetch_id) {
  MutexLock lock(&mutex_);
  WaitUntil("upload",
            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return uploads_[fetch_id].done; });
  return uploads_[fetch_id].text;
}

void FakeCoordinator::AwaitUploadText(const std::string& fetch_id, const std::string& text) {
  MutexLock lock(&mutex_);
  WaitUntil("uploaded text", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [rank, uploaded] : uploads_[fetch_id].text) {
      if (absl::StrContains(uploaded, text)) return true;
    }
    return false;
  });
}

}  // namespace phalanx::agent
