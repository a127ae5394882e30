#include "worker/agent/check_output.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/wire/check_codec.h"
#include "core/wire/session_terms.h"
#include "google/protobuf/util/json_util.h"
#include "phalanx/v1/common.pb.h"
#include "spdlog/spdlog.h"

namespace phalanx::agent {
namespace {

// Of all that a check prints, some 600 bytes a device; what comes behind them is passed over.
constexpr size_t kBytesMax = 1 << 20;
constexpr size_t kOtherLinesMax = 20;

}  // namespace

bool CheckOutput::Append(absl::string_view text) {
  text = text.substr(0, kBytesMax - bytes_);
  bytes_ += text.size();
  bool said = false;
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    absl::StrAppend(&line_, text.substr(0, end));
    text.remove_prefix(end + 1);
    said = Read(std::exchange(line_, {})) || said;
  }
  absl::StrAppend(&line_, text);
  return said;
}

bool CheckOutput::Read(const std::string& line) {
  if (line.empty()) return false;
  v1::NodeCheck said;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!absl::StartsWith(line, "{") ||
      !google::protobuf::util::JsonStringToMessage(line, &said, options).ok() ||
      (said.devices().empty() && !said.has_loopback())) {
    if (++others_ <= kOtherLinesMax) spdlog::info("check of devices: {}", line);
    return false;
  }
  job::NodeCheck found = wire::FromProto(said, wire::kNodeDevicesMax);
  for (job::DeviceCheck& device : found.devices) devices_.push_back(std::move(device));
  if (said.has_loopback()) loopback_ = std::move(found.loopback);
  return true;
}

}  // namespace phalanx::agent
