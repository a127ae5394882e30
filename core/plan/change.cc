#include "core/plan/change.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/violation.h"

namespace phalanx::plan {
namespace {

std::string NameOf(const Device& device) { return absl::StrCat(device.node, "/", device.index); }

class Checker {
 public:
  Checker(const Plan& plan, const Change& change)
      : change_(change),
        devices_(plan),
        running_slow_(plan.layout.slow),
        places_(static_cast<int64_t>(plan.node_of.size())),
        gone_(plan.layout.lost.begin(), plan.layout.lost.end()) {}

  absl::Status Check() && {
    const bool paces = change_.slow.has_value() && *change_.slow != running_slow_;
    if (change_.lost.empty() && change_.returned.empty() && !paces)
      Refuse("lost", "", "must name a rank, where none is back");
    const bool lost_fit = Fits("lost", change_.lost.size());
    const bool returned_fit = Fits("returned", returned().size());
    if (lost_fit) CheckLost();
    if (lost_fit && returned_fit) CheckReturned();
    if (change_.slow.has_value() && Fits("slow", change_.slow->size())) CheckSlow();
    return ViolationsStatus(violations_);
  }

 private:
  const std::map<Rank, Device>& returned() const { return change_.returned; }
  void Refuse(const char* field, std::string value, std::string rule) {
    violations_.push_back({field, std::move(value), std::move(rule)});
  }
  void Refuse(const char* field, Rank place, std::string rule) {
    Refuse(field, absl::StrCat(place.value), std::move(rule));
  }

  bool Fits(const char* field, size_t ranks) {
    if (static_cast<int64_t>(ranks) <= places_) return true;
    Refuse(field, absl::StrCat(ranks, " ranks"),
           absl::StrCat("must be no more than the places of the job, ", places_));
    return false;
  }

  bool IsPlace(const char* field, Rank place) {
    if (place.value >= 0 && place.value < places_) return true;
    Refuse(field, place, absl::StrCat("must be a place of the job, below ", places_));
    return false;
  }

  void CheckLost() {
    std::set<Rank> seen;
    for (Rank place : change_.lost) {
      if (!IsPlace("lost", place)) continue;
      if (seen.contains(place)) {
        Refuse("lost", place, "is named twice");
      } else if (gone_.contains(place)) {
        Refuse("lost", place, "is lost already");
      }
      seen.insert(place);
    }
    gone_.insert(seen.begin(), seen.end());
  }

  void CheckReturned() {
    const std::set<Rank> lost(change_.lost.begin(), change_.lost.end());
    std::map<std::pair<NodeName, int32_t>, Rank> taken;
    for (const auto& [place, device] : returned()) {
      if (!IsPlace("returned", place)) continue;
      if (!gone_.contains(place)) {
        Refuse("returned", place, "is not lost");
        continue;
      }
      if (device.node.empty() || device.index < 0) {
        Refuse("returned", place, "must be on a device of a node");
        continue;
      }
      const auto [other, is_new] = taken.try_emplace({device.node, device.index}, place);
      if (!is_new) {
        Refuse("returned", place,
               absl::StrCat("is on ", NameOf(device), ", as place ", other->second.value, " is"));
        continue;
      }
      if (devices_.At(place) == device) {
        if (lost.contains(place))
          Refuse("returned", place, absl::StrCat("is lost on the same device, ", NameOf(device)));
        continue;
      }
      const std::optional<Rank> holder = devices_.PlaceOf(device);
      if (holder.has_value() && !gone_.contains(*holder)) {
        Refuse("returned", place,
               absl::StrCat("is on ", NameOf(device), ", the device of place ", holder->value,
                            ", which is not lost"));
      } else if (holder.has_value() && lost.contains(*holder)) {
        Refuse(
            "returned", place,
            absl::StrCat("is on ", NameOf(device), ", which place ", holder->value, " loses now"));
      }
    }
  }

  void CheckSlow() {
    Rank before{-1};
    for (const SlowPlace& slow : *change_.slow) {
      if (!IsPlace("slow", slow.place)) continue;
      if (slow.place <= before) Refuse("slow", slow.place, "must follow a lower place");
      before = std::max(before, slow.place);
      if (gone_.contains(slow.place) && !returned().contains(slow.place))
        Refuse("slow", slow.place, "is lost");
      if (slow.pace < 1 || slow.pace >= kPaceOfOthers)
        Refuse("slow", slow.place,
               absl::StrCat("has pace ", slow.pace, "; it must lie in [1, ", kPaceOfOthers, ")"));
    }
  }

  const Change& change_;
  const DevicesOfPlaces devices_;
  const SlowPlaces& running_slow_;
  const int64_t places_;
  std::set<Rank> gone_;
  std::vector<Violation> violations_;
};

}  // namespace

absl::Status CheckChange(const Plan& plan, const Change& change) {
  return Checker(plan, change).Check();
}

Device DevicesOfPlaces::At(Rank place) const {
  const auto changed = changed_.find(place);
  return changed == changed_.end() ? plan_.DeviceOf(place) : changed->second;
}

const NodeName& DevicesOfPlaces::NodeOf(Rank place) const {
  const auto changed = changed_.find(place);
  return changed == changed_.end() ? plan_.NodeOf(place) : changed->second.node;
}

std::optional<Rank> DevicesOfPlaces::PlaceOf(const Device& device) const {
  size_t first = 0;
  for (const NodeDevices& entry : plan_.layout.nodes) {
    if (entry.node == device.node) {
      const auto found = std::find(entry.devices.begin(), entry.devices.end(), device.index);
      if (found != entry.devices.end())
        return Rank{static_cast<int32_t>(first) +
                    static_cast<int32_t>(found - entry.devices.begin())};
    }
    first += entry.devices.size();
  }
  return std::nullopt;
}

void DevicesOfPlaces::Swap(Rank a, Rank b) {
  Device of_a = At(a), of_b = At(b);
  changed_[a] = std::move(of_b);
  changed_[b] = std::move(of_a);
}

void DevicesOfPlaces::Return(const std::map<Rank, Device>& returned) {
  std::vector<Device> given_up;
  std::set<std::pair<NodeName, int32_t>> taken;
  std::vector<Rank> without;  // places that lose their device to one of `returned`
  for (const auto& [place, device] : returned) {
    Device before = plan_.DeviceOf(place);
    if (before == device) continue;
    given_up.push_back(std::move(before));
    taken.insert({device.node, device.index});
    const std::optional<Rank> holder = PlaceOf(device);
    if (holder.has_value() && !returned.contains(*holder)) without.push_back(*holder);
    changed_[place] = device;
  }
  std::erase_if(given_up, [&taken](const Device& device) {
    return taken.contains({device.node, device.index});
  });
  for (size_t i = 0; i < without.size(); ++i) changed_[without[i]] = given_up[i];
}

Placement DevicesOfPlaces::ToPlacement() const {
  Cluster cluster = ClusterOf(plan_.layout.nodes);
  for (const auto& [place, device] : changed_)
    cluster.devices[static_cast<size_t>(place.value)] = device;
  return PlacementOf(cluster);
}

}  // namespace phalanx::plan
