// coordinator/machine/recovery.h: what a coordinator knows of a job between the loss of ranks and
// the first step of the layout that is left.
//
// In order: the layout of the next epoch is planned and stored, and its assignment is also the stop
// of the epoch that runs; every process that is left says where its state stands (RankQuiet); from
// that follows the step from which the next epoch goes on, which is stored and told (BeginEpoch);
// ranks move state, apply the step where that is still to be done, and say that they are ready.
// Who is lost meanwhile, before the step is stored, is left out of yet another epoch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/machine/events.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// Of ranks of the next epoch to find each other.
inline constexpr int32_t kTriesMax = 5;
// Of these, by_choice, so many first ones in which the word of peers costs nobody his place.
inline constexpr int32_t kTriesWithoutBlame = 3;

struct Recovery {
  // Planning the next layout. Waiting: there is none without some of those that are lost. Leaving:
  // it is stored and assigned, and ranks are to say where their state stands. Entering: it is
  // stored and told from where training goes on, and not all ranks are ready.
  enum class Stage : uint8_t { kPlanning, kWaiting, kLeaving, kEntering } stage = Stage::kPlanning;
  bool goes_back = false;  // to a checkpoint, so nobody is asked for state: there is no kLeaving
  // Beside goes_back: to copies in host memory. kLeaving: ranks are to say which there are.
  bool from_copies = false;
  // Places without work, of nodes without any, that are to say so, too: awaited with the others,
  // and done without where they do not in time.
  std::set<int32_t> keepers;
  int32_t lost_keepers = 0;  // that had said so: at most kTriesMax are planned for again
  // Nobody is lost, some are back: ranks leave `from` once they are connected for the next epoch.
  bool beside = false;
  bool paces = false;  // beside, and nobody is back: samples are dealt otherwise
  // Nobody had to leave `from`: it began beside, and none of those that trained is lost since. That
  // they do not find each other now ends no job, and counts in no budget.
  bool by_choice = false;
  bool entered = false;  // some epoch has begun on the way, so `back` may have been given state
  Epoch from;            // that ended; 0 where it goes back
  Epoch left;            // beside goes_back: the first that was left for it; 0: none has been yet
  FailureCause cause;    // the first one
  Instant since;
  std::set<int32_t> lost;     // ranks, since `from`
  std::set<int32_t> back;     // ranks that were left out before and are not any more
  std::set<int32_t> spared;   // of these, lost since `from`: a spare is their device now
  std::set<int32_t> awaited;  // ranks of `from` that have not said where their state stands
  // Of those that are lost: their processes may live, out of reach. What they say counts, and they
  // are awaited, too, should the next epoch have them.
  std::set<int32_t> silent;
  std::map<int32_t, RankQuiet> quiets;
  std::map<int32_t, RankCopies> copies;
  bool needs_lost =
      false;  // waiting: those have state that nobody else has, on their devices alone
  std::set<int32_t> tried;  // of those that are waited for: with them it still could not go on
  int32_t tries = 0;        // at most kTriesMax, unless by_choice
};

// Of a verdict on what peers say: whether it is about one that trains on while others come back, or
// that did until a moment ago. They do not find each other then, be it that its daemon is away, and
// who came back stays out.
bool AccusesWhoTrains(const Recovery& recovery, const FailureCause& verdict);

// Whether it is what a rank has met on being connected while it trains: that costs its process at
// most, and would not come again in a layout as there was.
bool MetWhileConnecting(const Recovery& recovery, const FailureCause& cause);

// Whether the next epoch is planned by_choice, too, once `lost` are, which were not before;
// `apart`: ranks of the present one have not found each other, and nobody is to blame.
bool StaysByChoice(const Recovery& recovery, const std::set<int32_t>& lost, bool apart);

// Whether those that are back may have state, and were to have it by_choice: where ranks do not
// find each other they keep their places for a few tries.
bool MayHoldState(const Recovery& recovery);

// Ranks that were lost and are not in the next layout, which lacks `lost`, have a spare's device
// there.
void NoteSpared(Recovery& recovery, const plan::RankList& lost);

// "ranks 3, 4".
std::string LostText(const Recovery& recovery);
// "it waits for ranks 3, 4, which it cannot go on without", "it goes on without ranks 3, 4: ranks
// 0, 2 have still to say where their state stands".
std::string StageText(const Recovery& recovery);

// But for what is only told of a step, and may be no number.
bool SameStart(const EpochStart& a, const EpochStart& b);

// Takes from a report of a rank that leaves `from`, which has begun, but not on that rank, what it
// learned before: that was counted in then, or the rank was not heard and its steps are given up.
void ForgetBefore(Epoch from, RankQuiet& quiet);

// From where the next epoch goes on: the last step that any of them knows to be decided, or that
// was `reported`. Errors: Internal, naming ranks and step, where two know a step to be decided
// differently, or where the state of one is of neither that step nor the one before.
absl::StatusOr<EpochStart> Settle(const std::map<int32_t, RankQuiet>& quiets,
                                  const std::optional<EpochStart>& reported);

}  // namespace phalanx::coordinator
