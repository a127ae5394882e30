#include "coordinator/rpc/ending.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/status_translation.h"

namespace phalanx::coordinator {
namespace {

// Lives until its call is done.
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit UnaryReactor(Metrics& metrics) : metrics_(metrics), counted_(metrics.CallBegins()) {}
  void OnDone() override {
    if (counted_) metrics_.CallEnds();
    delete this;
  }

 private:
  Metrics& metrics_;
  const bool counted_;
};

}  // namespace

Ending::Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics,
               Audit* audit)
    : method_(method),
      metrics_(&metrics),
      audit_(audit),
      start_(SteadyNow()),
      call_(std::make_shared<Call>()) {
  call_->caller = CallerOf(*context->auth_context());
  call_->peer = context->peer();
}

Ending::Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics)
    : Ending(context, method, metrics, nullptr) {
  reactor_ = new UnaryReactor(metrics);
}

Ending::Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics,
               Audit& audit)
    : Ending(context, method, metrics, &audit) {
  reactor_ = new UnaryReactor(metrics);
}

Ending::Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics,
               Audit& audit, std::function<void(const grpc::Status&)> finish)
    : Ending(context, method, metrics, &audit) {
  finish_ = std::move(finish);
}

void Ending::operator()(const absl::Status& status) const {
  metrics_->Rpc(method_, status.code(), Since(start_));
  if (audit_ != nullptr) audit_->Tell(call_->caller, method_, call_->object, status);
  if (reactor_ != nullptr) return reactor_->Finish(ToGrpc(status));
  finish_(ToGrpc(status));
}

grpc::ServerUnaryReactor* Ending::With(const absl::Status& status) const {
  (*this)(status);
  return reactor_;
}

void Ending::Changes(JobId job) const { call_->object = absl::StrCat("job=", job.value); }

void Ending::Changes(const std::string& node) const {
  call_->object = absl::StrCat("node=", Quoted(node));
}

void Ending::ChangesToken(const std::string& id, const std::string& node) const {
  if (!node.empty()) Changes(node);
  call_->object = absl::StrCat("token=", id, node.empty() ? "" : " ", call_->object);
}

}  // namespace phalanx::coordinator
