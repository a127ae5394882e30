// tests/unit/client/fake_server.h: a JobService on loopback that answers as a test tells it to.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/connection.h"
#include "client/format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "phalanx/v1/job_service.grpc.pb.h"

namespace phalanx::client {

// Each call counts and answers with its member; a member that is not set answers UNIMPLEMENTED.
class FakeServer final : public v1::JobService::Service {
 public:
  explicit FakeServer(const std::string& address = "127.0.0.1:0") {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Connection Connect() const {
    return Connection({.server = address(), .timeout = absl::Seconds(10)});
  }

  std::function<grpc::Status(const v1::SubmitJobRequest&, v1::SubmitJobResponse*)> submit;
  std::function<grpc::Status(const v1::CheckSubmitRequest&, v1::CheckSubmitResponse*)> check;
  std::function<grpc::Status(const v1::GetJobRequest&, v1::GetJobResponse*)> get;
  std::function<grpc::Status(const v1::ListJobsRequest&, v1::ListJobsResponse*)> list;
  std::function<grpc::Status(const v1::CancelJobRequest&, v1::CancelJobResponse*)> cancel;
  std::function<grpc::Status(const v1::SuspendJobRequest&, v1::SuspendJobResponse*)> suspend;
  std::function<grpc::Status(const v1::ResumeJobRequest&, v1::ResumeJobResponse*)> resume;
  std::function<grpc::Status(const v1::DeleteJobRequest&, v1::DeleteJobResponse*)> remove;
  std::function<grpc::Status(const v1::ExplainJobRequest&, v1::ExplainJobResponse*)> explain;
  std::function<grpc::Status(const v1::ListEventsRequest&, v1::ListEventsResponse*)> events;
  std::function<grpc::Status(const v1::ListIncidentsRequest&, v1::ListIncidentsResponse*)>
      incidents;
  std::function<grpc::Status(const v1::ListNodesRequest&, v1::ListNodesResponse*)> nodes;
  std::function<grpc::Status(const v1::CordonNodeRequest&, v1::CordonNodeResponse*)> cordon;
  std::function<grpc::Status(const v1::UncordonNodeRequest&, v1::UncordonNodeResponse*)> uncordon;
  std::function<grpc::Status(const v1::DrainNodeRequest&, v1::DrainNodeResponse*)> drain;
  std::function<grpc::Status(const v1::ReserveNodeRequest&, v1::ReserveNodeResponse*)> reserve;
  std::function<grpc::Status(const v1::UnreserveNodeRequest&, v1::UnreserveNodeResponse*)>
      unreserve;
  std::function<grpc::Status(const v1::InjectFaultRequest&, v1::InjectFaultResponse*)> inject;
  std::function<grpc::Status(const v1::TryConnectionRequest&, v1::TryConnectionResponse*)> reach;
  std::function<grpc::Status(grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>*)>
      watch;
  std::function<grpc::Status(const v1::GetLogsRequest&, grpc::ServerWriter<v1::GetLogsResponse>*)>
      logs;

  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    return Answer(submit, request, response);
  }
  grpc::Status CheckSubmit(grpc::ServerContext*, const v1::CheckSubmitRequest* request,
                           v1::CheckSubmitResponse* response) override {
    return Answer(check, request, response);
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override {
    return Answer(get, request, response);
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    return Answer(list, request, response);
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse* response) override {
    return Answer(cancel, request, response);
  }
  grpc::Status SuspendJob(grpc::ServerContext*, const v1::SuspendJobRequest* request,
                          v1::SuspendJobResponse* response) override {
    return Answer(suspend, request, response);
  }
  grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest* request,
                         v1::ResumeJobResponse* response) override {
    return Answer(resume, request, response);
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse* response) override {
    return Answer(remove, request, response);
  }
  grpc::Status ExplainJob(grpc::ServerContext*, const v1::ExplainJobRequest* request,
                          v1::ExplainJobResponse* response) override {
    return Answer(explain, request, response);
  }
  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override {
    return Answer(events, request, response);
  }
  grpc::Status ListIncidents(grpc::ServerContext*, const v1::ListIncidentsRequest* request,
                             v1::ListIncidentsResponse* response) override {
    return Answer(incidents, request, response);
  }
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest* request,
                         v1::ListNodesResponse* response) override {
    return Answer(nodes, request, response);
  }
  grpc::Status CordonNode(grpc::ServerContext*, const v1::CordonNodeRequest* request,
                          v1::CordonNodeResponse* response) override {
    return Answer(cordon, request, response);
  }
  grpc::Status UncordonNode(grpc::ServerContext*, const v1::UncordonNodeRequest* request,
                            v1::UncordonNodeResponse* response) override {
    return Answer(uncordon, request, response);
  }
  grpc::Status DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request,
                         v1::DrainNodeResponse* response) override {
    return Answer(drain, request, response);
  }
  grpc::Status ReserveNode(grpc::ServerContext*, const v1::ReserveNodeRequest* request,
                           v1::ReserveNodeResponse* response) override {
    return Answer(reserve, request, response);
  }
  grpc::Status UnreserveNode(grpc::ServerContext*, const v1::UnreserveNodeRequest* request,
                             v1::UnreserveNodeResponse* response) override {
    return Answer(unreserve, request, response);
  }
  grpc::Status InjectFault(grpc::ServerContext*, const v1::InjectFaultRequest* request,
                           v1::InjectFaultResponse* response) override {
    return Answer(inject, request, response);
  }
  grpc::Status TryConnection(grpc::ServerContext*, const v1::TryConnectionRequest* request,
                             v1::TryConnectionResponse* response) override {
    return Answer(reach, request, response);
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    return watch ? watch(context, writer) : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  grpc::Status GetLogs(grpc::ServerContext*, const v1::GetLogsRequest* request,
                       grpc::ServerWriter<v1::GetLogsResponse>* writer) override {
    return logs ? logs(*request, writer) : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }

 private:
  template <typename Function, typename Request, typename Response>
  grpc::Status Answer(const Function& function, const Request* request, Response* response) {
    return function ? function(*request, response)
                    : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// What a command wrote.
struct Captured {
  std::ostringstream out, talk;
  Io io{.out = out, .talk = talk};
};

inline v1::JobStatus AJob(v1::JobPhase phase, int64_t step = 0) {
  v1::JobStatus job;
  job.set_id(7);
  job.set_name("demo");
  job.set_phase(phase);
  job.set_steps(300);
  job.set_epoch(1);
  job.set_world(6);
  job.mutable_submitted()->set_seconds(1'700'000'000);
  if (step > 0) {
    job.mutable_last_step()->set_step(step);
    job.mutable_last_step()->set_loss(1.25);
    job.mutable_last_step()->set_tokens(1000);
    job.mutable_last_step()->set_seconds(0.5);
  }
  return job;
}

inline grpc::Status WithDetails(grpc::StatusCode code, const google::protobuf::Message& detail,
                                const std::string& message = "summary") {
  google::rpc::Status details;
  details.set_code(code);
  details.add_details()->PackFrom(detail);
  return grpc::Status(code, message, details.SerializeAsString());
}

}  // namespace phalanx::client
