#include "coordinator/rpc/admission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

// Past it those without a connection are forgotten.
constexpr size_t kCallersMax = 32'768;

}  // namespace

void Admission::Stop(absl::Status status) {
  MutexLock lock(&mu_);
  stopped_ = std::move(status);
}

absl::Status Admission::Stopped() const {
  MutexLock lock(&mu_);
  return stopped_;
}

absl::Status Admission::Take(const Caller& caller, const std::string& peer, size_t request_bytes) {
  unread_.End(caller);
  const absl::Status room =
      connections_ == nullptr ? absl::OkStatus() : connections_->RequestCame(peer, request_bytes);
  RETURN_IF_ERROR(Stopped());
  RETURN_IF_ERROR(CountConnection(caller, connections_max_, peer));
  RETURN_IF_ERROR(room);
  return rate_.Take(caller);
}

absl::Status Admission::TakeOfWorker(const Caller& caller, const std::string& peer) {
  unread_.End(caller);
  RETURN_IF_ERROR(Stopped());
  return CountConnection(caller, workers_.connections_max, peer);
}

absl::Status Admission::Open(WorkerStream stream, const Caller& caller, const std::string& peer) {
  RETURN_IF_ERROR(Stopped());
  if (!caller.has_value()) return absl::OkStatus();
  const bool session = stream == WorkerStream::kSession;
  RETURN_IF_ERROR(CountConnection(caller, workers_.connections_max, peer));
  RETURN_IF_ERROR((session ? session_rate_ : upload_rate_).Take(caller));
  const size_t streams_max = session ? workers_.sessions_max : workers_.uploads_max;
  MutexLock lock(&mu_);
  std::map<std::string, size_t>& counts = streams_[stream];
  const std::string key = KeyOf(*caller);
  if (const auto found = counts.find(key); found != counts.end() && found->second >= streams_max) {
    return absl::ResourceExhaustedError(absl::StrCat(caller->name, " has ", found->second,
                                                     session ? " sessions" : " uploads",
                                                     " open; at most ", streams_max));
  }
  ++counts[key];
  return absl::OkStatus();
}

void Admission::Close(WorkerStream stream, const Caller& caller) {
  if (!caller.has_value()) return;
  MutexLock lock(&mu_);
  std::map<std::string, size_t>& counts = streams_[stream];
  const auto found = counts.find(KeyOf(*caller));
  if (found != counts.end() && --found->second == 0) counts.erase(found);
}

absl::Status Admission::BeginPlan(const Caller& caller) {
  if (!caller.has_value()) return absl::OkStatus();
  const std::string key = KeyOf(*caller);
  MutexLock lock(&mu_);
  const auto found = plans_.find(key);
  const size_t count = found == plans_.end() ? 0 : found->second;
  if (count >= plans_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(caller->name, " has ", count, " plans made; at most ", plans_max_,
                     " at one time: ask again when one of them is there"));
  }
  plans_[key] = count + 1;
  return absl::OkStatus();
}

void Admission::EndPlan(const Caller& caller) {
  if (!caller.has_value()) return;
  MutexLock lock(&mu_);
  const auto found = plans_.find(KeyOf(*caller));
  if (found != plans_.end() && --found->second == 0) plans_.erase(found);
}

absl::Status Admission::CountConnection(const Caller& caller, size_t connections_max,
                                        const std::string& peer) {
  if (!caller.has_value() || connections_max == 0) return absl::OkStatus();
  const std::string key = KeyOf(*caller);
  const auto closed = [this](const std::string& known) { return !is_open_(known); };
  MutexLock lock(&mu_);
  if (peers_.size() >= kCallersMax && !peers_.contains(key)) {
    for (auto& [other, peers] : peers_) std::erase_if(peers, closed);
    std::erase_if(peers_, [](const auto& other) { return other.second.empty(); });
  }
  std::set<std::string>& known = peers_[key];
  if (known.contains(peer)) return absl::OkStatus();
  if (known.size() >= connections_max) std::erase_if(known, closed);
  if (known.size() >= connections_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        caller->name, " has ", known.size(), " connections open; at most ", connections_max));
  }
  known.insert(peer);
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
