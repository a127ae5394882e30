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
  bool device = false;
  for (const Fault& other : faults_) {
    if (other.process == fault.process) continue;
    const bool same_rank = other.job == fault.job && other.rank == fault.rank;
    if (same_rank && other.device != fault.device) return Suspect::kProgram;
    device = device || other.device == fault.device;
  }
  return device ? Suspect::kDevice : Suspect::kNobody;
}

std::string ToWords(XidHistory::Suspect suspect) {
  switch (suspect) {
    case XidHistory::Suspect::kNobody:
      return "";
    case XidHistory::Suspect::kDevice:
      return "; such an error came to another process of this device within 24 hours: the device "
             "is "
             "suspect: drain its node, whose daemon then checks it";
    case XidHistory::Suspect::kProgram:
      return "; such an error came to this rank on another device within 24 hours: the program is "
             "suspect, not the device";
  }
  return "";
}

}  // namespace phalanx::agent
