// Errors of GPUs, their temperatures and memory, as NVML tells them.
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/agent/device_events.h"

namespace phalanx::agent {
namespace {

// The part of NVML's stable interface that is used here.
using EventSet = struct OpaqueEventSet*;
struct EventData {
  Nvml::Device device;
  unsigned long long type;
  unsigned long long data;  // the XID
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
struct FieldValue {
  unsigned int field;
  unsigned int scope;
  long long timestamp;
  long long latency;
  int type;
  int result;
  union {
    unsigned int number;
    unsigned long long bytes;
  } value;
};
constexpr unsigned int kRecoveryActionField = 230;  // since driver 570
constexpr int kUnsignedInt = 1;
constexpr unsigned long long kXidCriticalError = 0x8;
constexpr unsigned int kUuidBytesMax = 96;
constexpr int32_t kFellOffTheBus = 79;

// Of each wait.
constexpr unsigned int kWaitMilliseconds = 200;
constexpr auto kBetweenFigures = std::chrono::seconds(5);
// After a wait that failed, so that one that fails again and again costs nothing.
constexpr auto kAfterFailure = std::chrono::seconds(1);
// A driver that is wedged may keep the thread for ever: it is then left alone.
constexpr auto kEndPatience = std::chrono::seconds(1);

// Outlives the source where the driver does not answer.
class Watcher {
 public:
  Watcher(std::unique_ptr<Nvml> nvml, Inbox& inbox, absl::Duration silence)
      : nvml_(std::move(nvml)),
        silence_(absl::ToChronoNanoseconds(silence)),
        answered_at_(std::chrono::steady_clock::now()),
        inbox_(&inbox) {}
  ~Watcher() {
    if (set_ != nullptr) free_(set_);
  }

  absl::Status Register(const GpuSelection& selection) {
    const bool complete =
        nvml_->Find("nvmlEventSetCreate", create_) && nvml_->Find("nvmlEventSetFree", free_) &&
        nvml_->Find("nvmlDeviceRegisterEvents", register_) &&
        nvml_->Find("nvmlEventSetWait_v2", wait_) && nvml_->Find("nvmlDeviceGetUUID", uuid_);
    if (!complete) return absl::UnavailableError("the driver has no events of devices");
    nvml_->Find("nvmlDeviceGetFieldValues", field_values_);
    ASSIGN_OR_RETURN(devices_, nvml_->DevicesOf(selection));
    RETURN_IF_ERROR(
        nvml_->StatusOf(create_(&set_), absl::StatusCode::kUnavailable, "nvmlEventSetCreate"));
    for (size_t i = 0; i < devices_.size(); ++i) {
      uuids_.push_back(UuidOf(devices_[i]));
      RETURN_IF_ERROR(nvml_->StatusOf(register_(devices_[i], kXidCriticalError, set_),
                                      absl::StatusCode::kUnavailable,
                                      absl::StrCat("events of device ", i)));
    }
    Answered();
    return absl::OkStatus();
  }

  void Run() {
    auto read_at = std::chrono::steady_clock::now();
    while (!Answered()) {
      if (std::chrono::steady_clock::now() >= read_at) {
        ReadFigures();
        read_at = std::chrono::steady_clock::now() + kBetweenFigures;
      }
      EventData event{};
      const int result = wait_(set_, &event, kWaitMilliseconds);
      if (result == Nvml::kSuccess) {
        if ((event.type & kXidCriticalError) != 0) Tell(event);
      } else if (result != Nvml::kTimeout) {
        TellFailure(result);
      }
    }
    const MutexLock lock(&mutex_);
    ended_ = true;
    changed_.SignalAll();
  }

  bool Answers() const {
    const MutexLock lock(&mutex_);
    return IsHeard();
  }
  std::vector<int32_t> Temperatures() const {
    const MutexLock lock(&mutex_);
    return IsHeard() ? temperatures_ : std::vector<int32_t>();
  }
  std::vector<int64_t> UsedMemory() const {
    const MutexLock lock(&mutex_);
    return IsHeard() ? used_memory_ : std::vector<int64_t>();
  }

  // False: it does not answer, and tells nothing more.
  bool Stop() {
    const MutexLock lock(&mutex_);
    inbox_ = nullptr;
    changed_.SignalAll();
    const auto deadline = std::chrono::steady_clock::now() + kEndPatience;
    while (!ended_ && !changed_.WaitUntil(&mutex_, deadline)) continue;
    return ended_;
  }

 private:
  // The driver has come back. Whether nobody listens any more.
  bool Answered() {
    const MutexLock lock(&mutex_);
    answered_at_ = std::chrono::steady_clock::now();
    return inbox_ == nullptr;
  }
  bool IsHeard() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::chrono::steady_clock::now() - answered_at_ <= silence_;
  }

  // One that does not say stays unknown, and is asked again.
  void ReadFigures() {
    std::vector<int32_t> temperatures;
    std::vector<int64_t> used_memory;
    for (const Nvml::Device device : devices_) {
      temperatures.push_back(nvml_->TemperatureOf(device).value_or(0));
      used_memory.push_back(nvml_->UsedMemoryOf(device).value_or(-1));
    }
    const MutexLock lock(&mutex_);
    temperatures_ = std::move(temperatures);
    used_memory_ = std::move(used_memory);
  }

  std::string UuidOf(Nvml::Device device) const {
    char uuid[kUuidBytesMax] = {};
    return uuid_(device, uuid, kUuidBytesMax) == Nvml::kSuccess ? uuid : "";
  }

  RecoveryAction ActionOf(Nvml::Device device) const {
    FieldValue value{};
    value.field = kRecoveryActionField;
    const bool told = field_values_ != nullptr &&
                      field_values_(device, 1, &value) == Nvml::kSuccess &&
                      value.result == Nvml::kSuccess && value.type == kUnsignedInt;
    switch (told ? value.value.number : 0) {
      case 1:
        return RecoveryAction::kReset;
      case 2:
        return RecoveryAction::kReboot;
      case 3:  // of what it gives its peers
      case 4:
        return RecoveryAction::kDrain;
      default:
        return RecoveryAction::kUnknown;
    }
  }

  void Post(size_t device, int32_t xid) {
    DeviceFaulted fault{static_cast<int32_t>(device), xid};
    if (xid == kRecoveryActionChanged) fault.action = ActionOf(devices_[device]);
    const MutexLock lock(&mutex_);
    if (inbox_ != nullptr) inbox_->Post(fault);
  }

  // Handles of one GPU need not be equal.
  void Tell(const EventData& event) {
    const std::string uuid = UuidOf(event.device);
    for (size_t i = 0; i < devices_.size(); ++i) {
      const bool same = event.device == devices_[i] || (!uuid.empty() && uuid == uuids_[i]);
      if (same) return Post(i, static_cast<int32_t>(event.data));
    }
  }

  void TellFailure(int result) {
    if (result == Nvml::kGpuIsLost) {
      for (size_t i = 0; i < devices_.size(); ++i) {
        // It says so for ever.
        if (nvml_->IsLost(devices_[i]) && lost_.insert(i).second) Post(i, kFellOffTheBus);
      }
    }
    if (std::exchange(last_failure_, result) != result) {
      spdlog::warn(
          "errors of devices may go unseen: {}",
          nvml_->StatusOf(result, absl::StatusCode::kUnavailable, "nvmlEventSetWait").ToString());
    }
    const MutexLock lock(&mutex_);
    if (inbox_ != nullptr)
      changed_.WaitUntil(&mutex_, std::chrono::steady_clock::now() + kAfterFailure);
  }

  const std::unique_ptr<Nvml> nvml_;
  const std::chrono::nanoseconds silence_;
  std::vector<Nvml::Device> devices_;
  std::vector<std::string> uuids_;
  EventSet set_ = nullptr;
  int last_failure_ = Nvml::kSuccess;
  std::set<size_t> lost_;  // that were told of
  int (*create_)(EventSet*) = nullptr;
  int (*free_)(EventSet) = nullptr;
  int (*register_)(Nvml::Device, unsigned long long, EventSet) = nullptr;
  int (*wait_)(EventSet, EventData*, unsigned int) = nullptr;
  int (*uuid_)(Nvml::Device, char*, unsigned int) = nullptr;
  int (*field_values_)(Nvml::Device, int count, FieldValue*) = nullptr;  // of older drivers

  mutable Mutex mutex_;
  CondVar changed_;
  std::chrono::steady_clock::time_point answered_at_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> temperatures_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> used_memory_ ABSL_GUARDED_BY(mutex_);
  Inbox* inbox_ ABSL_GUARDED_BY(mutex_);  // nullptr: nobody listens any more
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class NvmlEvents final : public DeviceEvents {
 public:
  explicit NvmlEvents(std::shared_ptr<Watcher> watcher)
      : watcher_(std::move(watcher)), thread_([watcher = watcher_] { watcher->Run(); }) {}
  ~NvmlEvents() override {
    if (watcher_->Stop()) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  bool Answers() const override { return watcher_->Answers(); }
  std::vector<int32_t> Temperatures() const override { return watcher_->Temperatures(); }
  std::vector<int64_t> UsedMemory() const override { return watcher_->UsedMemory(); }

 private:
  const std::shared_ptr<Watcher> watcher_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceEvents>> FollowNvml(const GpuSelection& selection,
                                                         Inbox& inbox, absl::Duration silence) {
  ASSIGN_OR_RETURN(std::unique_ptr<Nvml> nvml, Nvml::Open(selection.library));
  auto watcher = std::make_shared<Watcher>(std::move(nvml), inbox, silence);
  RETURN_IF_ERROR(watcher->Register(selection));
  return std::make_unique<NvmlEvents>(std::move(watcher));
}

}  // namespace phalanx::agent
