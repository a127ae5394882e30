#include "tests/fuzz/service/world.h"

#include <grpc/grpc.h>
#include <grpcpp/server_builder.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "coordinator/runtime/planning.h"
#include "tests/support/authority.h"

namespace phalanx::fuzz {
namespace {

using coordinator::OpenCalls;

constexpr size_t kCallsMax = 64;
constexpr int64_t kBytesMax = 64 << 20;

// Join tokens that last as long as their store.
class MemoryTokens final : public coordinator::TokenStore {
 public:
  absl::StatusOr<coordinator::TokenRecords> Load() override { return records_; }
  absl::Status Write(const v1::JoinRecord& record,
                     const std::vector<std::string>& forgotten) override {
    for (const std::string& id : forgotten) records_.erase(id);
    records_[record.about().id()] = record;
    return absl::OkStatus();
  }
  absl::Status WriteAll(const coordinator::TokenRecords& records) override {
    records_ = records;
    return absl::OkStatus();
  }

 private:
  coordinator::TokenRecords records_;
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::abort();
}

// Made once: it takes a second.
const support::Authority& TheAuthority() {
  static const support::Authority& authority = *[] {
    auto* made = new support::Authority;
    static_cast<void>(made->Coordinator());
    return made;
  }();
  return authority;
}

coordinator::DriverOptions Options() {
  coordinator::DriverOptions options;
  options.plan = [](const coordinator::ComputePlan& order) {
    return coordinator::PlanJobOf(order);
  };
  options.machine.allow_inject = true;
  return options;
}

coordinator::JoinOptions Joining() {
  const std::string& folder = TheAuthority().folder();
  // Nobody is refused for being one of many: what is asked here is what each request does.
  return {.signer = {.certificate = folder + "/ca.pem", .key = folder + "/ca-key.pem"},
          .rate = {.calls_per_second = 0},
          .network_rate = {.calls_per_second = 0}};
}

}  // namespace

World::World(std::shared_ptr<coordinator::MemoryDisk> disk)
    : disk_(std::move(disk)),
      sessions_({}, Incarnation{9}, logs_),
      watches_(kCallsMax, kCallsMax, kBytesMax, OpenCalls::Full::kRefuse),
      log_calls_(kCallsMax, kCallsMax, kBytesMax, OpenCalls::Full::kCloseOldest),
      unread_({}, [](const auto&, int64_t, const absl::Status&) {}),
      admission_({}, 0, {}, unread_, [](const std::string&) { return true; }),
      audit_([](const std::string&) {}, {}, [] {}),
      tokens_(Must(coordinator::JoinTokens::Open(std::make_shared<MemoryTokens>()))),
      driver_(Must(coordinator::Driver::Start(Options(), clock_,
                                              std::make_unique<coordinator::MemoryBackend>(disk_),
                                              board_, metrics_, sessions_))) {
  // Kept for the life of the process, as the coordinator's own server does.
  static const bool kept = (grpc_init(), true);
  static_cast<void>(kept);
  job_service_ = std::make_unique<coordinator::JobServiceImpl>(
      *driver_, board_, metrics_, logs_, watches_, log_calls_, admission_, audit_);
  worker_service_ =
      std::make_unique<coordinator::WorkerServiceImpl>(coordinator::WorkerServiceImpl::World{
          .driver = *driver_,
          .sessions = sessions_,
          .logs = logs_,
          .metrics = metrics_,
          .admission = admission_,
          .audit = audit_,
          .holds = [](const grpc::AuthContext&) { return absl::OkStatus(); }});
  join_service_ = std::make_unique<coordinator::JoinServiceImpl>(
      tokens_.get(), Joining(),
      coordinator::JoinServiceImpl::World{.metrics = metrics_,
                                          .admission = admission_,
                                          .audit = audit_,
                                          .has_node = [](const std::string&) { return false; },
                                          .revoked = [] {},
                                          .received = [](const std::string&) { return 0; }});
  grpc::ServerBuilder builder;
  builder.RegisterService(job_service_.get());
  builder.RegisterService(worker_service_.get());
  builder.RegisterService(join_service_.get());
  builder.RegisterCallbackGenericService(&join_service_->requests());
  server_ = builder.BuildAndStart();
  channel_ = server_->InProcessChannel({});
}

World::~World() {
  const absl::Status stopping = absl::UnavailableError("the coordinator is stopping");
  sessions_.CloseAll(stopping);
  watches_.CloseAll(stopping);
  log_calls_.CloseAll(stopping);
  job_service_->Stop();
  join_service_->Stop();
  driver_->Stop();
  server_->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));
  server_->Wait();
}

void World::Advance(absl::Duration span) {
  clock_.Advance(span);
  absl::Notification seen;
  driver_->AskQueue({}, [&seen](const auto&) { seen.Notify(); });
  seen.WaitForNotification();
}

}  // namespace phalanx::fuzz
