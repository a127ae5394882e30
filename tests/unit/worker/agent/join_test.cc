// The renewal of a certificate, with coordinators that do not answer.
#include "worker/agent/join.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "gtest/gtest.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "transport/tls.h"

namespace phalanx::agent {
namespace {

// Takes calls and lets them wait for as long as it lives.
class SilentCoordinator final : public v1::JoinService::Service {
 public:
  SilentCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SilentCoordinator() override {
    {
      MutexLock lock(&mu_);
      ends_ = true;
      changed_.SignalAll();
    }
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int calls() {
    MutexLock lock(&mu_);
    return calls_;
  }
  void AwaitCall() {
    MutexLock lock(&mu_);
    while (calls_ == 0) changed_.Wait(&mu_);
  }

 private:
  grpc::Status RenewCertificate(grpc::ServerContext*, const v1::RenewCertificateRequest*,
                                v1::RenewCertificateResponse*) override {
    MutexLock lock(&mu_);
    ++calls_;
    changed_.SignalAll();
    while (!ends_) changed_.Wait(&mu_);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "ends");
  }

  int port_ = 0;
  Mutex mu_;
  CondVar changed_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<grpc::Server> server_;
};

TEST(IdentityRenewerTest, Stop_EndsWithTheCallThatIsUnderWay_AndAsksNoOtherCoordinator) {
  SilentCoordinator first, second;
  std::optional<IdentityRenewer> renewer;
  // Without a certificate it renews at once.
  renewer.emplace(absl::StrCat(first.address(), ",", second.address()), transport::TlsFiles(),
                  [](const std::string& line) { ADD_FAILURE() << line; });
  first.AwaitCall();
  renewer.reset();
  EXPECT_EQ(second.calls(), 0);
}

}  // namespace
}  // namespace phalanx::agent
