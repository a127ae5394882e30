// tests/rpc/fixture.h: a coordinator on loopback, a client and workers that do what a test says.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/wire/session_codec.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/support/job_text.h"

namespace phalanx::coordinator {

// A small valid job on `tp` CPU devices, which ends with the loss of any.
inline std::string JobText(const std::string& name, int tp = 1) {
  return support::JobText({.name = name, .ranks = tp, .tp = tp, .recovers = false});
}

// Ends every wait of a test that hangs. Not an instant of the wall clock, which tests set.
inline void SetDeadline(grpc::ClientContext& context, int seconds = 20) {
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(seconds, GPR_TIMESPAN)));
}

// One worker daemon's stream, driven by the test.
class FakeWorker {
 public:
  // `seconds`: of its session.
  explicit FakeWorker(const std::shared_ptr<grpc::Channel>& channel, int seconds = 20)
      : stub_(v1::WorkerService::NewStub(channel)) {
    SetDeadline(context_, seconds);
    stream_ = stub_->OpenSession(&context_);
  }
  ~FakeWorker() { context_.TryCancel(); }

  static v1::WorkerHello Hello(const std::string& node, int devices, uint64_t incarnation) {
    v1::WorkerHello hello;
    hello.set_node(node);
    hello.set_incarnation(incarnation);
    hello.set_protocol_version(kProtocolVersion);
    hello.set_device_kind("cpu");
    hello.set_devices(devices);
    return hello;
  }
  void SayHello(const v1::WorkerHello& hello) {
    v1::OpenSessionRequest request;
    *request.mutable_hello() = hello;
    stream_->Write(request);
  }
  // Opens and waits for the welcome.
  v1::Welcome Join(const std::string& node, int devices, uint64_t incarnation = 1) {
    SayHello(Hello(node, devices, incarnation));
    const std::optional<v1::OpenSessionResponse> response = Read();
    EXPECT_TRUE(response.has_value() && response->has_welcome());
    return response.has_value() ? response->welcome() : v1::Welcome();
  }
  bool Write(const v1::OpenSessionRequest& request) { return stream_->Write(request); }
  // Nothing: the stream has ended.
  std::optional<v1::OpenSessionResponse> Read() {
    v1::OpenSessionResponse response;
    if (!stream_->Read(&response)) return std::nullopt;
    return response;
  }
  v1::Command Command() {
    std::optional<v1::OpenSessionResponse> response = Read();
    EXPECT_TRUE(response.has_value() && response->has_command());
    return response.has_value() ? response->command() : v1::Command();
  }
  void Done(const v1::Command& command, const std::string& data_digest = "") {
    v1::OpenSessionRequest request;
    request.mutable_command_result()->set_command_number(command.command_number());
    request.mutable_command_result()->set_data_digest(data_digest);
    stream_->Write(request);
  }
  v1::RankReport* Report(v1::OpenSessionRequest& request, const v1::Assign& assign, int rank) {
    v1::RankReport* report = request.mutable_rank_report();
    report->set_job(assign.job());
    report->set_epoch(assign.epoch());
    report->set_rank(rank);
    return report;
  }
  void Ready(const v1::Assign& assign, int rank) {
    v1::OpenSessionRequest request;
    Report(request, assign, rank)->mutable_ready();
    stream_->Write(request);
  }
  void Step(const v1::Assign& assign, int64_t step, double seconds = 0) {
    v1::OpenSessionRequest request;
    v1::StepReport* report = Report(request, assign, 0)->mutable_step();
    report->set_step(step);
    report->set_seconds(seconds);
    report->set_epoch(assign.epoch());
    stream_->Write(request);
  }
  void Succeed(const v1::Assign& assign, int rank) {
    v1::OpenSessionRequest request;
    Report(request, assign, rank)->mutable_succeeded()->set_step(10);
    stream_->Write(request);
  }
  void Die(const v1::Assign& assign, int rank, int signal) {
    v1::OpenSessionRequest request;
    Report(request, assign, rank)->mutable_exited()->set_signal(signal);
    stream_->Write(request);
  }
  // Prepares and takes the next assignment.
  v1::Assign TakeAssignment() {
    const v1::Command prepare = Command();
    EXPECT_TRUE(prepare.has_prepare_data());
    Done(prepare, "data");
    const v1::Command assign = Command();
    EXPECT_TRUE(assign.has_assign());
    Done(assign);
    return assign.assign();
  }
  grpc::Status Finish() { return stream_->Finish(); }
  void Break() { context_.TryCancel(); }

 private:
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::OpenSessionRequest, v1::OpenSessionResponse>>
      stream_;
};

class RpcTest : public ::testing::Test {
 protected:
  // `backend`: none: what is on `disk`.
  void Start(ServerOptions options = {}, std::unique_ptr<Backend> backend = nullptr) {
    if (backend == nullptr) backend = std::make_unique<MemoryBackend>(disk);
    auto server = Server::Start(std::move(options), std::move(backend));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                  grpc::InsecureChannelCredentials());
    jobs = v1::JobService::NewStub(channel);
  }
  void SetUp() override { Start(); }
  void TearDown() override { server_.reset(); }
  void Restart() {
    server_.reset();
    Start();
  }

  grpc::Status Submit(const std::string& text, v1::SubmitJobResponse& response,
                      const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    request.mutable_document()->set_text(text);
    request.mutable_document()->set_directory("/tmp");
    request.set_request_id(request_id);
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->SubmitJob(&context, request, &response);
  }
  grpc::Status CheckSubmit(const std::string& text) {
    v1::CheckSubmitRequest request;
    request.mutable_document()->set_text(text);
    request.mutable_document()->set_directory("/tmp");
    v1::CheckSubmitResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->CheckSubmit(&context, request, &response);
  }
  int64_t MustSubmit(const std::string& text) {
    v1::SubmitJobResponse response;
    const grpc::Status status = Submit(text, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }
  v1::JobStatus Get(const std::string& job) {
    v1::GetJobRequest request;
    request.set_job(job);
    v1::GetJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(jobs->GetJob(&context, request, &response).ok());
    return response.job();
  }
  // Watches the job until it is `enough`.
  v1::JobStatus Await(const std::string& job,
                      const std::function<bool(const v1::JobStatus&)>& enough) {
    v1::WatchJobRequest request;
    request.set_job(job);
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stream = jobs->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) {
      if (!enough(response.job())) continue;
      context.TryCancel();
      return response.job();
    }
    ADD_FAILURE() << "the last of it: " << response.job().ShortDebugString();
    return response.job();
  }
  // Until the job is in `phase`.
  v1::JobStatus WaitFor(const std::string& job, v1::JobPhase phase) {
    return Await(job, [&](const v1::JobStatus& status) { return status.phase() == phase; });
  }

  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::JobService::Stub> jobs;
  std::unique_ptr<Server> server_;
};

}  // namespace phalanx::coordinator
