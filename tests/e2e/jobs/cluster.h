// tests/e2e/jobs/cluster.h: a coordinator, or several, and a worker as real processes on loopback.
//
// Several coordinators share a store on etcd; calls go to whichever leads.
//
// Not thread-safe. Everything waits on streams and process descriptors, with kPatience, and throws
// std::runtime_error past it.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/support/process.h"
#include "transport/tls.h"

namespace phalanx::e2e {

struct ClusterOptions {
  int32_t devices = 6;
  std::vector<std::string> coordinator_flags, worker_flags;
  // Names, or paths: then of an older release.
  std::string coordinator_program = "phalanx-coordinator", worker_program = "phalanx-worker";
  transport::TlsFiles tls = {};  // of the calls of this class
  // Of workers, by their nodes; the others have what worker_flags say.
  std::map<std::string, transport::TlsFiles> worker_tls = {};
  std::string store;  // empty: a folder of its own
  size_t coordinators = 1;
};

// As programs take them.
std::vector<std::string> TlsFlags(const transport::TlsFiles& files);

class Cluster {
 public:
  explicit Cluster(ClusterOptions options = {});
  ~Cluster();

  // On a free port the first time, on the same one and the same store later. The one before must
  // have ended.
  void StartCoordinator(const std::string& program = "phalanx-coordinator", size_t index = 0);
  // Returns once the coordinator has let it in.
  void StartWorker();
  // Of those that are started from then on.
  void UseWorkers(const std::string& program) { worker_program_ = program; }
  // Another node, named so; returns once the coordinator has let it in.
  support::Process& AddWorker(const std::string& node, int32_t devices);
  support::Process& coordinator(size_t index = 0) { return *seats_[index].process; }
  support::Process& worker() { return *worker_; }
  // kill -9, and reaps.
  void KillCoordinator(size_t index = 0);
  void KillWorker();
  // Of a coordinator that has ended. The next one finds an empty folder, or the store as it was
  // when it was copied.
  void ForgetStore();
  void CopyStore();
  void PutBackStore();

  // Waits until one of several coordinators serves; its index.
  size_t AwaitLeader();

  std::string grpc() const;  // HOST:PORT, of several between commas
  const std::string& grpc(size_t index) const { return seats_[index].grpc; }
  const std::string& http(size_t index = 0) const { return seats_[index].http; }
  std::string CoordinatorLogPath(size_t index = 0) const;
  std::string CoordinatorLog(size_t index = 0) const;
  std::string WorkerLogPath() const;                          // of the first
  std::string WorkerLog(const std::string& node = "") const;  // of all, one behind the other
  // All processes of this cluster, ranks included.
  std::vector<pid_t> Processes() const { return support::ProcessesMarked(mark_); }

  // Processes of the ranks of a job's newest epoch, by rank; those that still run. Of one
  // worker: "worker", or "worker-NODE" of those that were added; empty: of all.
  std::map<int32_t, support::ProcessWatch> Ranks(int64_t job, const std::string& node = "") const;

  // How many processes each rank of a job has had so far.
  std::map<int32_t, int> Starts(int64_t job) const;

  // A call to the coordinator; waits while there is none.
  v1::JobStatus Submit(const v1::JobDocument& document, const std::string& request_id = "");
  v1::JobStatus Get(int64_t job);
  v1::JobStatus Cancel(int64_t job);
  std::vector<v1::JobEvent> Events(int64_t job);
  std::vector<v1::Incident> Incidents(int64_t job);
  std::string Why(int64_t job);  // one reason a line
  std::vector<v1::JobStatus> List();
  std::vector<v1::JoinToken> Tokens();

  // Follows the job until `enough`, over restarts of the coordinator; fails if it ends otherwise.
  v1::JobStatus Await(int64_t job, const std::function<bool(const v1::JobStatus&)>& enough);
  v1::JobStatus AwaitStep(int64_t job, int64_t step);
  v1::JobStatus AwaitEnd(int64_t job);

  // `phalanx` with --server, to its end.
  support::Finished Phalanx(std::vector<std::string> arguments) const;

  std::vector<v1::NodeStatus> Nodes();

  v1::JobService::Stub& stub() { return *seats_[at_].stub; }

 private:
  struct Seat {
    std::string grpc, http;
    std::unique_ptr<support::Process> process;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::JobService::Stub> stub;
    std::unique_ptr<v1::JoinService::Stub> join_stub;
  };
  // Of whoever is asked.
  template <typename Service>
  Service& StubOf() const;
  template <typename Service, typename Request, typename Response>
  Response Call(grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Response*),
                const Request& request);
  void Prepare(grpc::ClientContext& context, absl::Time deadline) const;
  // Of several coordinators: whether the one that is asked takes connections.
  bool Reaches() const;
  // The coordinator that was asked does not serve.
  void AskNext();
  // Rank and process, in the order in which each worker started them.
  std::vector<std::pair<int32_t, pid_t>> Started(int64_t job, const std::string& node) const;
  // `name` tells its files from those of the others.
  std::unique_ptr<support::Process> StartNode(const std::string& node, int32_t devices,
                                              const std::string& name);

  const ClusterOptions options_;
  const std::string mark_ = support::NewMark();
  const std::string folder_;
  std::string worker_program_;
  int starts_ = 0;
  std::vector<Seat> seats_;  // of the coordinators
  size_t at_ = 0;            // whom calls ask
  std::unique_ptr<support::Process> worker_;
  std::vector<std::unique_ptr<support::Process>> more_workers_;
  std::vector<std::string> names_;  // of workers, for their files
};

bool IsTerminal(v1::JobPhase phase);

}  // namespace phalanx::e2e
