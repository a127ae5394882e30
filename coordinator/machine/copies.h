// coordinator/machine/copies.h: copies of state in memory of the nodes' daemons, and which of them
// a job goes back to where processes have lost state.
//
// While an epoch trains whose layout has its second homes in host memory, each of its ranks copies
// its state every `recovery.state_every` steps, all of them at the same steps, into two buffers
// that outlive its process. A rank writes over a copy only once all have a later one. So there is
// always a step of which all have a whole copy, unless a daemon is gone; with its copies training
// goes on behind that step, in whatever layout.
//
// Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/machine/events.h"
#include "coordinator/machine/records.h"
#include "core/base/shared.h"

namespace phalanx::coordinator {

// Whether ranks of the layout keep copies.
bool KeepsCopies(const plan::Layout& layout);

// An epoch whose ranks may have left copies.
struct CopiedEpoch {
  Epoch epoch;
  Shared<plan::Layout> layout;  // in which they lie
  std::string plan_digest;
  // An epoch behind it began there: copies of later steps are of no use. -1: it has not begun.
  int64_t last_step = std::numeric_limits<int64_t>::max();
};
// The newest ones of a job, ascending.
class CopiedEpochs {
 public:
  // Stored, perhaps once more. The one before goes if the epoch is of another training.
  void Planned(const EpochPlanned& planned, bool goes_back);
  void Began(Epoch epoch, int64_t step);
  const CopiedEpoch* Find(Epoch epoch) const;
  const std::vector<CopiedEpoch>& all() const { return all_; }

 private:
  static constexpr size_t kEpochsMax = 8;
  std::vector<CopiedEpoch> all_;
};

struct ChosenCopies {
  Epoch epoch;  // of the copies
  EpochStart start;
};
// Of the newest epoch that has any, the last step of which every rank that was given buffers in it
// has a whole copy. `found`: of all ranks of the epoch that is to begin. Whether all ranks that
// keep copies are among them is for those to see that take them. nullopt: there is none.
std::optional<ChosenCopies> ChooseCopies(const CopiedEpochs& epochs,
                                         const std::map<int32_t, RankCopies>& found);

}  // namespace phalanx::coordinator
