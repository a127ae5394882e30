// core/plan/change.h: what changes between two epochs of a job: places that are lost, places that
// are back, and which device is whose.
//
// Pure.
#pragma once

#include <map>
#include <optional>

#include "absl/status/status.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// What has happened since a plan was made. A place that is lost and gets another device at once is
// in both.
struct Change {
  RankList lost;  // places whose devices are gone
  // Places that are back, each on its device or on another one: one of another place that is lost,
  // or one that the job has not had.
  std::map<Rank, Device> returned;
  // Whether idle devices may take over as `recovery.ladder` says, and which of them may not all the
  // same: places.
  bool spares = true;
  RankList unfit;
  // Whether modules may restart with lower degrees as `recovery.ladder` says.
  bool restart = true;
  // Those that are slow from now on, instead of the layout's; nullopt: they stay, but for places
  // that are lost or get another device.
  std::optional<SlowPlaces> slow = std::nullopt;
};

// Errors: InvalidArgument with violations, all at once (nothing changes; no place, a place that
// does not exist, that is lost twice or already, that is back and was not lost, or on the device on
// which it is lost; a device that is no name, that comes twice, or is that of a place which is not
// lost; slow places that do not ascend, are none with work, are lost, or have no pace of a slow
// one).
absl::Status CheckChange(const Plan& plan, const Change& change);

// The device of each place of a plan while some change hands. O(places that did).
class DevicesOfPlaces {
 public:
  // `plan` outlives it.
  explicit DevicesOfPlaces(const Plan& plan) : plan_(plan) {}

  Device At(Rank place) const;
  const NodeName& NodeOf(Rank place) const;
  // Which place has it in the plan, if any.
  std::optional<Rank> PlaceOf(const Device& device) const;
  void Swap(Rank a, Rank b);
  // Each of these places gets its device. A place that has lost it to another one gets one that
  // those had: both are gone.
  void Return(const std::map<Rank, Device>& returned);

  bool changed() const { return !changed_.empty(); }
  // O(places).
  Placement ToPlacement() const;

 private:
  const Plan& plan_;
  std::map<Rank, Device> changed_;
};

}  // namespace phalanx::plan
