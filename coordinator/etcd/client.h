// coordinator/etcd/client.h: calls to the members of one etcd cluster.
//
// Every call has a deadline on the steady clock. The member that answered last is asked first; one
// that does not answer, or has no leader of its own cluster, is passed over by the next call.
// Errors name the member: Unavailable if it does not answer or cannot serve now, else as etcd says.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "etcd/etcd_service.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "transport/tls.h"

namespace phalanx::coordinator {

struct EtcdOptions {
  std::vector<std::string> members;  // HOST:PORT each
  transport::TlsFiles tls;           // none: plaintext
  // One attempt, with one member.
  absl::Duration attempt_time = absl::Seconds(2);
  // A read with its repetitions.
  absl::Duration read_time = absl::Seconds(4);
  // For tests: called before each Write and again after it; what it returns is the Write's answer
  // unless it is OK.
  std::function<absl::Status()> write_fault;
};

// Thread-safe.
class EtcdClient {
 public:
  explicit EtcdClient(EtcdOptions options);
  ~EtcdClient();

  // Repeated with other members while it is Unavailable. Linearizable: what was committed before
  // the call is seen.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Read(const etcdserverpb::TxnRequest& request);

  // One attempt each. After Unavailable nobody knows whether it was carried out, or will be yet.
  absl::StatusOr<etcdserverpb::TxnResponse> Write(const etcdserverpb::TxnRequest& request);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(int64_t seconds);
  absl::Status Revoke(int64_t lease);
  // How many seconds it holds from some moment after the call began; 0: it is gone.
  absl::StatusOr<int64_t> KeepAlive(int64_t lease, absl::Duration patience);
  // Forgets what was before `revision`. OK also if that is done already.
  absl::Status Compact(int64_t revision);
  // Of the database of one member.
  absl::StatusOr<int64_t> Bytes();

 private:
  struct Member;
  using Attempt = std::function<grpc::Status(Member& member, grpc::ClientContext& context)>;
  absl::Status Once(absl::Duration patience, const Attempt& attempt);
  absl::Status Repeat(const Attempt& attempt);

  const EtcdOptions options_;
  const std::vector<std::unique_ptr<Member>> members_;
  std::atomic<size_t> next_ = 0;  // index of the member that is asked first
};

}  // namespace phalanx::coordinator
