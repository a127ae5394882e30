// core/schedule/device_kinds.h: which profile goes with the devices that nodes have.
//
// Drivers name devices ("NVIDIA H200"), profiles are of kinds ("h200"). Names are compared whole: a
// part of a board, or the same chip with another power limit, is another device.
//
// Pure. Safe to call from any thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "core/schedule/process_memory.h"
#include "core/schedule/profile.h"

namespace phalanx::schedule {

// The kind of a device that its driver calls `name`; empty: not known. Of a kind that is known this
// build may have no profile (FindProfile).
absl::string_view KindOfDevice(absl::string_view name);

// What a search counts with.
struct DeviceCosts {
  DeviceProfile profile = NominalProfile();
  // Where the profile is the nominal one, why: a phrase such as "no profile of NVIDIA L40S". Empty:
  // not known, or it is that of a kind.
  std::string why_nominal;
};

// Of devices that drivers call so, "": whose driver does not say. The profile of their kind where
// all are of one kind that has one, else the nominal one, with what processes take of those
// devices.
DeviceCosts CostsOfDevices(const std::set<std::string>& names);

// What processes take of devices that drivers call so beside what plans estimate: of the kind that
// has the most of it; nothing: their kinds have no profile.
BytesBeside BesideOfDevices(const std::set<std::string>& names);

}  // namespace phalanx::schedule
