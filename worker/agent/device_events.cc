#include "worker/agent/device_events.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/posix/unique_fd.h"
#include "spdlog/spdlog.h"

namespace phalanx::agent {
namespace {

constexpr size_t kLineBytesMax = 256;
// Nothing wakes who reads a file that grows.
constexpr int kLookMilliseconds = 10;

constexpr int32_t kTemperatureMax = 1000;

struct Line {
  int32_t device = 0;
  absl::string_view what;
  int32_t number = 0;
};
// False: it is none, or of no such device.
bool Parse(absl::string_view text, int32_t devices, Line& line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &line.device) ||
      !absl::SimpleAtoi(words[2], &line.number) || line.number <= 0) {
    return false;
  }
  line.what = words[1];
  const bool known =
      line.what == "xid" || (line.what == "temperature" && line.number <= kTemperatureMax);
  return known && line.device >= 0 && line.device < devices;
}

class FileEvents final : public DeviceEvents {
 public:
  FileEvents(std::string path, int32_t devices, Inbox& inbox)
      : path_(std::move(path)),
        devices_(devices),
        inbox_(inbox),
        stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this] { Follow(); }) {}
  ~FileEvents() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  }
  std::vector<int32_t> Temperatures() const override {
    const MutexLock lock(&mutex_);
    return temperatures_;
  }

  std::vector<int64_t> UsedMemory() const override { return {}; }

 private:
  void Follow() {
    pollfd stop{stop_.get(), POLLIN, 0};
    while (poll(&stop, 1, kLookMilliseconds) == 0) {
      // Of a FIFO without a writer this does not wait for one.
      if (!file_.is_open()) file_.reset(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
      char bytes[4096];
      ssize_t n = 0;
      while ((n = read(file_.get(), bytes, sizeof(bytes))) > 0)
        Take({bytes, static_cast<size_t>(n)});
    }
  }

  void Take(absl::string_view bytes) {
    for (const char byte : bytes) {
      if (byte != '\n') {
        if (line_.size() < kLineBytesMax) line_.push_back(byte);
        continue;
      }
      const std::string text = std::exchange(line_, "");
      if (text.empty()) continue;
      Line line;
      if (!Parse(text, devices_, line)) {
        spdlog::warn(
            "--device-events: \"{}\" is no line \"DEVICE xid N\" or \"DEVICE temperature N\" of "
            "one "
            "of {} devices",
            text, devices_);
      } else if (line.what == "xid") {
        inbox_.Post(DeviceFaulted{line.device, line.number});
      } else {
        const MutexLock lock(&mutex_);
        temperatures_.resize(static_cast<size_t>(devices_));
        temperatures_[static_cast<size_t>(line.device)] = line.number;
      }
    }
  }

  const std::string path_;
  const int32_t devices_;
  Inbox& inbox_;
  UniqueFd file_;
  std::string line_;
  mutable Mutex mutex_;
  std::vector<int32_t> temperatures_ ABSL_GUARDED_BY(mutex_);
  const UniqueFd stop_;
  std::jthread thread_;
};

}  // namespace

std::unique_ptr<DeviceEvents> FollowDeviceFile(std::string path, int32_t devices, Inbox& inbox) {
  return std::make_unique<FileEvents>(std::move(path), devices, inbox);
}

}  // namespace phalanx::agent
