#include "worker/agent/device_events.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/posix/unique_fd.h"
#include "spdlog/spdlog.h"

namespace phalanx::agent {
namespace {

constexpr size_t kLineBytesMax = 256;
// Nothing wakes who reads a file that grows.
constexpr int kLookMilliseconds = 10;

std::optional<DeviceFaulted> FaultOf(absl::string_view line, int32_t devices) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  DeviceFaulted fault;
  const bool sound = words.size() == 3 && words[1] == "xid" &&
                     absl::SimpleAtoi(words[0], &fault.device) &&
                     absl::SimpleAtoi(words[2], &fault.xid) && fault.device >= 0 &&
                     fault.device < devices && fault.xid > 0;
  return sound ? std::optional(fault) : std::nullopt;
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
      const std::string line = std::exchange(line_, "");
      if (line.empty()) continue;
      if (const std::optional<DeviceFaulted> fault = FaultOf(line, devices_)) {
        inbox_.Post(*fault);
      } else {
        spdlog::warn("--device-events: \"{}\" is no line \"DEVICE xid N\" of one of {} devices",
                     line, devices_);
      }
    }
  }

  const std::string path_;
  const int32_t devices_;
  Inbox& inbox_;
  UniqueFd file_;
  std::string line_;
  const UniqueFd stop_;
  std::jthread thread_;
};

}  // namespace

std::unique_ptr<DeviceEvents> FollowDeviceFile(std::string path, int32_t devices, Inbox& inbox) {
  return std::make_unique<FileEvents>(std::move(path), devices, inbox);
}

}  // namespace phalanx::agent
