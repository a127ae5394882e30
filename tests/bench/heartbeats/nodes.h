// tests/bench/heartbeats/nodes.h: a coordinator as a process of its own, certificates for its
// nodes, and a node that is not there: a connection and a session over loopback, of this process,
// that says what the caller has it say (daemon.h has one that says what a daemon says).
//
// What cannot be done throws std::runtime_error. Of one thread each.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/support/authority.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {

// User and system time of a process so far, in seconds; what it holds of memory now, in bytes.
double CpuSeconds(pid_t pid);
int64_t ResidentBytes(pid_t pid);

// Makes the certificates of so many nodes in this process: by the script it would take minutes.
// They share one key.
class NodeCertificates {
 public:
  explicit NodeCertificates(const support::Authority& authority);
  ~NodeCertificates();
  std::shared_ptr<grpc::ChannelCredentials> Of(const std::string& node);

 private:
  struct Keys;
  const std::unique_ptr<Keys> keys_;
  int64_t serial_ = 1'000'000;
};

class CoordinatorProcess {
 public:
  // With as many descriptors as there may be. Its store lies in `folder`, or in one of its own.
  explicit CoordinatorProcess(const std::vector<std::string>& flags,
                              const std::string& folder = "");
  ~CoordinatorProcess();
  const std::string& address() const { return address_; }
  const std::string& http_address() const { return http_address_; }
  pid_t pid() const { return process_->pid(); }

 private:
  std::string folder_;
  std::unique_ptr<support::Process> process_;
  std::string address_, http_address_;
};

// A connection of its own, as separate processes have.
grpc::ChannelArguments OwnConnection();
// Over one of its own, which takes answers of any size.
std::unique_ptr<v1::JobService::Stub> ConnectReader(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials);
// After support::kPatience.
void SetDeadline(grpc::ClientContext& context);

// Of a job file whose data are not there.
v1::SubmitJobRequest SubmitOf(const std::string& text);
// Returns the job's number.
int64_t Submit(v1::JobService::Stub& jobs, const std::string& text);

class Node {
 public:
  // Returns once the coordinator has let it in.
  Node(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
       v1::WorkerHello hello);
  // Ends the session without a word.
  ~Node() { context_.TryCancel(); }
  void Heartbeat();
  // Nothing: the session has ended.
  std::optional<v1::Command> Read();
  void Write(const v1::OpenSessionRequest& request);

 private:
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::OpenSessionRequest, v1::OpenSessionResponse>>
      stream_;
};

// A node that does what it is told.
class Member {
 public:
  Member(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
         v1::WorkerHello hello)
      : node_(address, std::move(credentials), std::move(hello)) {}
  void Heartbeat() { node_.Heartbeat(); }
  // The next command; the session goes on.
  v1::Command Next();
  // The next one that is no stop of ranks; those are gone already.
  v1::Command NextOrder();
  void Done(const v1::Command& command, const std::string& data_digest = "");
  // Prepares the data of the next job, of which it has all ranks, and takes its assignment.
  v1::Assign TakeAssignment();
  // Of the rank that the assignment gives it.
  void Ready(const v1::Assign& assign, int32_t rank);
  void Step(const v1::Assign& assign, int64_t step);  // of rank 0

 private:
  void Report(const v1::Assign& assign, int32_t rank, v1::RankReport report);

  Node node_;
};

v1::WorkerHello HelloOf(const std::string& node, const std::string& device_kind, int32_t devices);

}  // namespace phalanx::coordinator
