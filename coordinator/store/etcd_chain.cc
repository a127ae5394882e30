#include "coordinator/store/etcd_chain.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {
namespace {

// A transaction with its repetitions, and the pause between them.
constexpr absl::Duration kStepTime = absl::Seconds(5), kStepPause = absl::Milliseconds(50);

void CompareEqual(etcdserverpb::TxnRequest& request, const std::string& key,
                  etcdserverpb::Compare::CompareTarget target, int64_t revision) {
  etcdserverpb::Compare& compare = *request.add_compare();
  compare.set_key(key);
  compare.set_target(target);
  if (target == etcdserverpb::Compare::CREATE) {
    compare.set_create_revision(revision);
  } else {
    compare.set_mod_revision(revision);
  }
}

}  // namespace

absl::StatusOr<std::optional<std::string>> EtcdChain::Read() {
  etcdserverpb::RangeRequest request;
  request.set_key(head_);
  ASSIGN_OR_RETURN(etcdserverpb::RangeResponse answer, client_->Range(request));
  revision_ = answer.kvs().empty() ? 0 : answer.kvs(0).mod_revision();
  if (answer.kvs().empty()) return std::nullopt;
  return std::move(*answer.mutable_kvs(0)->mutable_value());
}

absl::Status EtcdChain::Step(Leadership& leadership, etcdserverpb::TxnRequest request,
                             const std::string& value) {
  CompareEqual(request, leadership.key(), etcdserverpb::Compare::CREATE, leadership.revision());
  CompareEqual(request, head_, etcdserverpb::Compare::MOD, revision_);
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(head_);
  put.set_value(value);
  request.add_failure()->mutable_request_range()->set_key(leadership.key());
  request.add_failure()->mutable_request_range()->set_key(head_);

  const SteadyTime start = SteadyNow();
  while (true) {
    RETURN_IF_ERROR(leadership.Held());
    const absl::StatusOr<etcdserverpb::TxnResponse> answer = client_->Write(request);
    if (answer.ok()) {
      if (!answer->succeeded()) return Settle(leadership, *answer, value);
      revision_ = answer->header().revision();
      return absl::OkStatus();
    }
    if (!absl::IsUnavailable(answer.status()) || Since(start) + kStepPause > kStepTime) {
      return answer.status();
    }
    absl::SleepFor(kStepPause);
  }
}

absl::Status EtcdChain::Settle(Leadership& leadership, const etcdserverpb::TxnResponse& refusal,
                               const std::string& value) {
  if (refusal.responses_size() != 2) return absl::InternalError("etcd left answers out");
  const auto& leader = refusal.responses(0).response_range().kvs();
  if (leader.empty() || leader[0].create_revision() != leadership.revision()) {
    leadership.Lose(leader.empty() ? "etcd has let its lease go"
                                   : absl::StrCat(leader[0].value(), " leads"));
    return leadership.Held();
  }
  const auto& head = refusal.responses(1).response_range().kvs();
  if (!head.empty() && head[0].value() == value) {
    revision_ = head[0].mod_revision();
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat(head_, " in etcd was changed by something else than this coordinator"));
}

}  // namespace phalanx::coordinator
