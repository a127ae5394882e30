#include "worker/agent/machine/xid_history.h"

#include <algorithm>

namespace phalanx::agent {

XidHistory::Suspect XidHistory::Add(const Fault& fault) {
  while (!faults_.empty() && fault.at - faults_.front().at > kWindow) faults_.pop_front();
  const bool known = std::any_of(faults_.begin(), faults_.end(), [&fault](const Fault& earlier) {
    return earlier.process == fault.process;
  });
  if (!known) faults_.push_back(fault);
  if (faults_.size() > kFaultsMax) faults_.pop_front();
  Suspect suspect = Suspect::kNobody;
  for (const Fault& other : faults_) {
    if (other.process == fault.process) continue;
    const bool same_rank = other.job == fault.job && other.rank == fault.rank;
    const bool same_device = other.device == fault.device;
    if (same_rank && !same_device) return Suspect::kProgram;
    if (same_device && !same_rank) suspect = Suspect::kDevice;
    if (same_device && same_rank && suspect == Suspect::kNobody) suspect = Suspect::kEither;
  }
  return suspect;
}

std::string ToWords(XidHistory::Suspect suspect) {
  switch (suspect) {
    case XidHistory::Suspect::kNobody:
      return "";
    case XidHistory::Suspect::kEither:
      return "; such an error came to this rank on this device within 24 hours: the device or the "
             "program is suspect: the device if other ranks meet one on it, the program if this "
             "rank meets one on another device";
    case XidHistory::Suspect::kDevice:
      return "; such an error came to another rank on this device within 24 hours: the device is "
             "suspect: drain its node, whose daemon then checks it";
    case XidHistory::Suspect::kProgram:
      return "; such an error came to this rank on another device within 24 hours: the program is "
             "suspect, not the device";
  }
  return "";
}

}  // namespace phalanx::agent
