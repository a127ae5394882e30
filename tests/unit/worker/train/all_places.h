// tests/unit/worker/train/all_places.h: the places of a rank that would stand everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace phalanx::train {

inline std::vector<plan::Place> AllPlaces(const plan::Plan& plan) {
  std::vector<plan::Place> places;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) places.push_back(place);
  }
  return places;
}

}  // namespace phalanx::train
