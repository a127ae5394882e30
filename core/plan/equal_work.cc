#include "core/plan/equal_work.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/plan/samples.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using Samples = std::vector<std::vector<int64_t>>;  // of a step, by module and replica

// What the rank at these places does, whichever replicas they are of; of each sample, where there
// are no `samples`.
std::string WorkAcrossReplicas(const std::vector<Place>& places, const Samples& samples) {
  std::string text;
  for (const Place& place : places) {
    absl::StrAppend(&text, place.module, " pp", place.pp, " cp", place.cp, " tp", place.tp, "/",
                    place.width);
    if (!samples.empty())
      absl::StrAppend(&text, " n",
                      samples[static_cast<size_t>(place.module)][static_cast<size_t>(place.dp)]);
    absl::StrAppend(&text, ";");
  }
  return text;
}

// The same within one replica, whichever tensor positions they are of.
std::string WorkInReplica(const Plan& plan, const std::vector<Place>& places) {
  std::string text;
  for (const Place& place : places) {
    const TensorUnits units =
        TensorUnitsOf(plan.module_spec(place.module).architecture, place.width, place.tp);
    absl::StrAppend(&text, place.module, " pp", place.pp, " cp", place.cp, " dp", place.dp, " of ",
                    units.query_heads.count, " ", units.kv_heads.count, " ", units.mlp_blocks.count,
                    " ", units.vocabulary_blocks.count, ";");
  }
  return text;
}

bool HasLikeInOtherReplica(const Plan& plan, const std::vector<Place>& places,
                           const std::string& work, const Samples& samples) {
  const Place& first = places.front();
  const int32_t replicas = plan.replicas(first.module).replicas();
  for (int32_t dp = 0; dp < replicas; ++dp) {
    if (dp == first.dp || plan.Width(first.module, dp, first.pp) != first.width) continue;
    Place other = first;
    other.dp = dp;
    if (WorkAcrossReplicas(plan.PlacesOf(plan.RankOf(other)), samples) == work) return true;
  }
  return false;
}

uint64_t WorkOf(const Plan& plan, const std::vector<Place>& places, const Samples& samples) {
  const std::string across = WorkAcrossReplicas(places, samples);
  const bool has_like = HasLikeInOtherReplica(plan, places, across, samples);
  return std::max<uint64_t>(1, Digest64(has_like ? across : WorkInReplica(plan, places)));
}

}  // namespace

uint64_t EqualWork(const Plan& plan, Rank rank) {
  const std::vector<Place> places = plan.PlacesOf(rank);
  if (places.empty()) return 0;
  Samples samples(plan.modules.size());
  for (const Place& place : places)
    samples[static_cast<size_t>(place.module)] = LaneSamplesOfStep(plan, place.module);
  // Of another rank's further modules nothing is known here, and it does not do the same.
  for (size_t module = 0; module < samples.size(); ++module)
    samples[module].resize(static_cast<size_t>(plan.modules[module].replicas.replicas()));
  return WorkOf(plan, places, samples);
}

uint64_t LikeWork(const Plan& plan, Rank rank) {
  const std::vector<Place> places = plan.PlacesOf(rank);
  return places.empty() ? 0 : WorkOf(plan, places, {});
}

}  // namespace phalanx::plan
