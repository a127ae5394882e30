#include "coordinator/rpc/admission.h"

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

// Past it those without a connection are forgotten.
constexpr size_t kPersonsMax = 16'384;

}  // namespace

absl::Status Admission::Take(const Caller& caller, const std::string& peer) {
  if (caller.has_value() && caller->role != Role::kWorker && connections_max_ != 0) {
    if (absl::Status status = CountConnection(caller->name, peer); !status.ok()) return status;
  }
  return rate_.Take(caller);
}

absl::Status Admission::CountConnection(const std::string& name, const std::string& peer) {
  const auto closed = [this](const std::string& known) { return !is_open_(known); };
  MutexLock lock(&mu_);
  if (peers_.size() >= kPersonsMax && !peers_.contains(name)) {
    for (auto& [person, peers] : peers_) std::erase_if(peers, closed);
    std::erase_if(peers_, [](const auto& person) { return person.second.empty(); });
  }
  std::set<std::string>& known = peers_[name];
  if (known.contains(peer)) return absl::OkStatus();
  if (known.size() >= connections_max_) std::erase_if(known, closed);
  if (known.size() >= connections_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, " has ", known.size(), " connections open; at most ", connections_max_));
  }
  known.insert(peer);
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
