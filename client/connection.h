// client/connection.h: a coordinator, as the commands see it.
//
// Every call has a total deadline. Within it a call that ends UNAVAILABLE is repeated, with
// jittered exponential backoff or after the delay that the server asks for, and one that ends
// RESOURCE_EXHAUSTED after the delay that it asks for; nothing else is repeated. All calls may be,
// for a submit carries a request id, but the one that injects a fault and the one that makes a
// token.
//
// Of several coordinators one leads; the others say so without doing anything. Each is asked in
// turn until one serves.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/prng.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "transport/tls.h"

namespace phalanx::client {

struct ConnectionOptions {
  // "HOST:PORT[,HOST:PORT...]". Empty: the address a coordinator listens on by default.
  std::string server;
  transport::TlsFiles tls;  // none: plaintext
  // A unary call with its repetitions.
  absl::Duration timeout = absl::Seconds(5);
  // Of several servers each has so long to answer a call before the next one is asked.
  absl::Duration turn = absl::Seconds(2);
};

inline constexpr char kDefaultServer[] = "127.0.0.1:4444";
// Timeouts of calls that need more than an answer from memory: the store, or nodes.
inline constexpr absl::Duration kSubmitTimeout = absl::Seconds(30), kLogsTimeout = absl::Minutes(1);

// Waits between attempts: doubling from 50 ms to a second, each drawn between half and the whole.
class Backoff {
 public:
  static constexpr absl::Duration kMax = absl::Seconds(1);
  explicit Backoff(uint64_t seed) : prng_(seed) {}
  absl::Duration Next();
  void Reset() { next_ = kFirst; }

 private:
  static constexpr absl::Duration kFirst = absl::Milliseconds(50);
  absl::Duration next_ = kFirst;
  Prng prng_;
};

// As transport::CheckTlsFiles, with what to do about it.
absl::Status CheckTlsFiles(const transport::TlsFiles& files);

// Thread-safe, except that calls share a channel to each server.
class Connection {
 public:
  explicit Connection(ConnectionOptions options);

  template <typename Request, typename Response>
  using Method = grpc::Status (v1::JobService::Stub::*)(grpc::ClientContext*, const Request&,
                                                        Response*);
  template <typename Request, typename Response>
  using JoinMethod = grpc::Status (v1::JoinService::Stub::*)(grpc::ClientContext*, const Request&,
                                                             Response*);

  // Errors: what the server says, with its address where it is Unavailable; Unavailable or
  // DeadlineExceeded, with the address, if it says nothing; InvalidArgument if the TLS files are
  // wrong. MayBeDone (rpc_status.h) where a server may have the call and nobody said what came of
  // it.
  template <typename Request, typename Response>
  absl::Status Call(Method<Request, Response> method, const Request& request, Response* response) {
    return Repeat([&](grpc::ClientContext& context) {
      return (stub().*method)(&context, request, response);
    });
  }

  template <typename Request, typename Response>
  absl::Status Call(JoinMethod<Request, Response> method, const Request& request,
                    Response* response) {
    return Repeat([&](grpc::ClientContext& context) {
      return ((*servers_[at_].join_stub).*method)(&context, request, response);
    });
  }

  // The same for a call that must not be carried out twice: waits for a server, and is not repeated
  // once one has it.
  template <typename Request, typename Response>
  absl::Status CallOnce(Method<Request, Response> method, const Request& request,
                        Response* response) {
    return Once([&](grpc::ClientContext& context) {
      return (stub().*method)(&context, request, response);
    });
  }

  template <typename Request, typename Response>
  absl::Status CallOnce(JoinMethod<Request, Response> method, const Request& request,
                        Response* response) {
    return Once([&](grpc::ClientContext& context) {
      return ((*servers_[at_].join_stub).*method)(&context, request, response);
    });
  }

  // Of the server that is asked now.
  v1::JobService::Stub& stub() { return *servers_[at_].stub; }
  // For those who use stub() and find that it does not serve: another one is asked from now on,
  // where there are several. Returns how long to wait before that.
  absl::Duration TryNext(Backoff& backoff);
  // For the same, behind an attempt that ended so: waits so long, and less where there was no
  // connection and one is made meanwhile.
  void Wait(const grpc::Status& status, absl::Duration wait);
  bool has_several() const { return servers_.size() > 1; }
  // All of them, as they were given.
  const std::string& server() const { return options_.server; }
  absl::Duration timeout() const { return options_.timeout; }
  // Random, for request ids and for the seeds of backoffs.
  static uint64_t Draw();
  // As a status that names the server where it answers that it cannot serve now, or does not
  // answer.
  absl::Status Explain(const grpc::Status& status) const;

 private:
  absl::Status Repeat(const std::function<grpc::Status(grpc::ClientContext&)>& attempt);
  absl::Status Once(const std::function<grpc::Status(grpc::ClientContext&)>& attempt);

  struct Server {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::JobService::Stub> stub;
    std::unique_ptr<v1::JoinService::Stub> join_stub;
  };
  // Whether the server that was asked may have the call that ended so, and has not answered it.
  bool MayHave(const grpc::Status& status) const;
  // Whether the server that is asked now takes connections, within `patience`.
  bool Reaches(absl::Duration patience);

  const ConnectionOptions options_;
  const absl::Status fault_;  // of the TLS files; then every call fails
  const std::vector<Server> servers_;
  std::atomic<size_t> at_ = 0;
};

}  // namespace phalanx::client
