// How a node joins and renews its certificate with coordinators that are crowded or do not answer.
#include "worker/agent/join.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "transport/join_credentials.h"
#include "transport/tls.h"

namespace phalanx::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Answers calls of Join with `codes` in turn, the last one again and again, and with a certificate
// where that is OK.
class JoinedCoordinator final : public v1::JoinService::Service {
 public:
  explicit JoinedCoordinator(std::deque<grpc::StatusCode> codes) : codes_(std::move(codes)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", transport::JoinCredentials(authority_.Coordinator()),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    support::WriteFile(token_, "phx_0123456789abcdef_secret");
    chmod(token_.c_str(), 0600);
  }
  ~JoinedCoordinator() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  JoinOptions Options() {
    return {.coordinator = absl::StrCat("127.0.0.1:", port_),
            .ca = authority_.folder() + "/ca.pem",
            .node = "new",
            .state = folder_,
            .token_file = token_,
            .crowd_pause_min = absl::Milliseconds(1),
            .crowd_pause_max = absl::Milliseconds(1),
            .log = [this](const std::string& line) { told_.push_back(line); }};
  }
  const std::vector<std::string>& told() const { return told_; }
  int calls() {
    MutexLock lock(&mu_);
    return calls_;
  }

 private:
  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest*,
                    v1::JoinResponse* response) override {
    MutexLock lock(&mu_);
    ++calls_;
    const grpc::StatusCode code = codes_.front();
    if (codes_.size() > 1) codes_.pop_front();
    response->set_certificate("certificate\n");
    return code == grpc::StatusCode::OK ? grpc::Status::OK : grpc::Status(code, "says why");
  }

  const support::Authority authority_;
  const std::string folder_ = support::MakeFolder("joined"), token_ = folder_ + "/token";
  std::vector<std::string> told_;  // by the thread that joins
  int port_ = 0;
  Mutex mu_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<grpc::StatusCode> codes_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

bool GoesOn() { return false; }

TEST(ObtainIdentityTest, CoordinatorThatCancelsOrIsCrowded_IsAskedAgain) {
  JoinedCoordinator coordinator({grpc::StatusCode::CANCELLED, grpc::StatusCode::RESOURCE_EXHAUSTED,
                                 grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::OK});
  const absl::StatusOr<transport::TlsFiles> files = ObtainIdentity(coordinator.Options(), GoesOn);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(support::ReadFile(files->certificate), StartsWith("certificate\n"));
  EXPECT_EQ(coordinator.calls(), 4);
  EXPECT_THAT(coordinator.told(),
              ElementsAre(AllOf(HasSubstr("waits to join"), HasSubstr("says why"))))
      << "once";
}

TEST(ObtainIdentityTest, CoordinatorThatIsCrowdedForTooLong_IsNotSaidToBeSilent) {
  JoinedCoordinator coordinator({grpc::StatusCode::RESOURCE_EXHAUSTED});
  JoinOptions options = coordinator.Options();
  options.patience = absl::ZeroDuration();
  options.crowd_patience = absl::Seconds(2);  // more than one call on a busy machine
  const absl::Status status = ObtainIdentity(options, GoesOn).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("too many nodes ask"), HasSubstr("says why"),
                    Not(HasSubstr("does not answer"))));
  EXPECT_GT(coordinator.calls(), 1) << "patience with silence is another";
}

// Cancelled says that this process was stopped, which ends it as if all were well.
TEST(ObtainIdentityTest, CoordinatorThatGoesOnCancelling_IsNoStop) {
  JoinedCoordinator coordinator({grpc::StatusCode::CANCELLED});
  JoinOptions options = coordinator.Options();
  options.patience = absl::ZeroDuration();
  const absl::Status status = ObtainIdentity(options, GoesOn).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(ObtainIdentityTest, StopInAPause_EndsIt) {
  JoinedCoordinator coordinator({grpc::StatusCode::RESOURCE_EXHAUSTED});
  JoinOptions options = coordinator.Options();
  options.crowd_pause_min = options.crowd_pause_max = absl::Minutes(10);
  int asked = 0;
  const absl::Status status = ObtainIdentity(options, [&] { return ++asked > 2; }).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(coordinator.calls(), 1);
}

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
