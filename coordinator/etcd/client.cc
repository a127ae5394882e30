#include "coordinator/etcd/client.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/posix/waker.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace phalanx::coordinator {
namespace {

// A page of a range may be as large (coordinator/store/etcd_keys.h).
constexpr int kMessageBytesMax = 160 << 20;
// A member that takes no connection for so long is passed over. Calls that fail at once do not look
// after connections that are being made, so somebody waits for them.
constexpr absl::Duration kConnectTime = absl::Milliseconds(300);
// Between rounds over all members.
constexpr absl::Duration kPause = absl::Milliseconds(50);

std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& member, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // A member that is back is found at once: calls have deadlines of their own.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // for how long one attempt may take
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(member, credentials, arguments);
}

gpr_timespec After(absl::Duration patience) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_millis(
                          std::max<int64_t>(1, absl::ToInt64Milliseconds(patience)), GPR_TIMESPAN));
}

// Whether another member may do better.
bool IsOfMember(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED ||
         status.error_code() == grpc::StatusCode::UNKNOWN;
}

}  // namespace

struct EtcdClient::Member {
  Member(std::string at, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : address(std::move(at)),
        channel(OpenChannel(address, credentials)),
        values(etcdserverpb::KV::NewStub(channel)),
        leases(etcdserverpb::Lease::NewStub(channel)),
        maintenance(etcdserverpb::Maintenance::NewStub(channel)) {}

  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<etcdserverpb::KV::Stub> values;
  const std::unique_ptr<etcdserverpb::Lease::Stub> leases;
  const std::unique_ptr<etcdserverpb::Maintenance::Stub> maintenance;
};

EtcdClient::EtcdClient(EtcdOptions options)
    : options_(std::move(options)), members_([this] {
        std::vector<std::unique_ptr<Member>> members;
        for (const std::string& address : options_.members) {
          members.push_back(
              std::make_unique<Member>(address, transport::ClientCredentials(options_.tls)));
        }
        return members;
      }()) {}

EtcdClient::~EtcdClient() = default;

absl::Status EtcdClient::Once(absl::Duration patience, const Attempt& attempt) {
  size_t asked = next_;
  Member& member = *members_[asked];
  const SteadyTime start = SteadyNow();
  if (!member.channel->WaitForConnected(After(std::min(patience, kConnectTime)))) {
    next_.compare_exchange_strong(asked, (asked + 1) % members_.size());
    return absl::UnavailableError(absl::StrCat(
        "etcd at ", member.address,
        options_.tls.on() ? " takes no TLS connection; look whether it runs, has a certificate for "
                            "that address of an authority of --etcd-ca, and takes "
                            "--etcd-certificate"
                          : " takes no connection; look whether it runs, and without TLS"));
  }
  grpc::ClientContext context;
  context.set_deadline(After(patience - Since(start)));
  // Refused at once by a member that has no leader, instead of after seconds.
  context.AddMetadata("hasleader", "true");
  const grpc::Status status = attempt(member, context);
  if (status.ok()) return absl::OkStatus();
  if (!IsOfMember(status)) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat("etcd at ", member.address, ": ", status.error_message()));
  }
  next_.compare_exchange_strong(asked, (asked + 1) % members_.size());
  return absl::UnavailableError(
      absl::StrCat("etcd at ", member.address, ": ", status.error_message()));
}

absl::Status EtcdClient::Repeat(const Attempt& attempt) {
  const SteadyTime start = SteadyNow();
  for (size_t tries = 1;; ++tries) {
    const absl::Duration left = options_.read_time - Since(start);
    absl::Status status = Once(std::min(left, options_.attempt_time), attempt);
    if (!absl::IsUnavailable(status)) return status;
    const absl::Duration pause = tries % members_.size() == 0 ? kPause : absl::ZeroDuration();
    if (options_.read_time - Since(start) <= pause) return status;
    absl::SleepFor(pause);
  }
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request) {
  etcdserverpb::RangeResponse response;
  RETURN_IF_ERROR(Repeat([&](Member& member, grpc::ClientContext& context) {
    return member.values->Range(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Read(
    const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse response;
  RETURN_IF_ERROR(Repeat([&](Member& member, grpc::ClientContext& context) {
    return member.values->Txn(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Write(
    const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse response;
  if (options_.write_fault) RETURN_IF_ERROR(options_.write_fault());
  RETURN_IF_ERROR(Once(options_.attempt_time, [&](Member& member, grpc::ClientContext& context) {
    return member.values->Txn(&context, request, &response);
  }));
  if (options_.write_fault) RETURN_IF_ERROR(options_.write_fault());
  return response;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::Grant(int64_t seconds) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(seconds);
  etcdserverpb::LeaseGrantResponse response;
  RETURN_IF_ERROR(Once(options_.attempt_time, [&](Member& member, grpc::ClientContext& context) {
    return member.leases->LeaseGrant(&context, request, &response);
  }));
  return response;
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  const absl::Status status =
      Once(options_.attempt_time, [&](Member& member, grpc::ClientContext& context) {
        return member.leases->LeaseRevoke(&context, request, &response);
      });
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<int64_t> EtcdClient::KeepAlive(int64_t lease, absl::Duration patience) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  bool answered = false;
  RETURN_IF_ERROR(Once(patience, [&](Member& member, grpc::ClientContext& context) {
    // A stream for one answer, so that each has a deadline.
    const auto stream = member.leases->LeaseKeepAlive(&context);
    stream->Write(request);
    stream->WritesDone();
    answered = stream->Read(&response);
    const grpc::Status status = stream->Finish();
    return answered ? grpc::Status::OK : status;
  }));
  if (!answered) return absl::UnavailableError("etcd ended the call without an answer");
  return response.ttl();
}

absl::Status EtcdClient::Compact(int64_t revision) {
  etcdserverpb::CompactionRequest request;
  request.set_revision(revision);
  etcdserverpb::CompactionResponse response;
  const absl::Status status =
      Once(options_.attempt_time, [&](Member& member, grpc::ClientContext& context) {
        return member.values->Compact(&context, request, &response);
      });
  return absl::IsOutOfRange(status) ? absl::OkStatus() : status;
}

absl::StatusOr<int64_t> EtcdClient::Bytes() {
  etcdserverpb::StatusResponse response;
  RETURN_IF_ERROR(Once(options_.attempt_time, [&](Member& member, grpc::ClientContext& context) {
    return member.maintenance->Status(&context, {}, &response);
  }));
  return response.dbsize();
}

}  // namespace phalanx::coordinator
