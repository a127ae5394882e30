#include "core/plan/part_sizes.h"

#include <utility>

#include "core/plan/copies.h"

namespace phalanx::plan {
namespace {

// As RoundedOf (activation_estimate.h) has it.
bool IsRounded(MatrixRole role) {
  return role == MatrixRole::kQkv || role == MatrixRole::kO || role == MatrixRole::kGateUp ||
         role == MatrixRole::kDown;
}

// Ranks with which a piece that several hold travels. `one_rank`: both ends of the module are on
// it.
int64_t OthersOf(const Piece& piece, bool one_rank) {
  // Inside a rank nothing is packed.
  if (piece.holding == Holding::kTied) return one_rank ? 0 : 1;
  // A follower exchanges with its leader alone.
  return piece.primary ? piece.holders - 1 : 1;
}

PartSize SizeOf(const StageParameters& parameters, bool one_rank) {
  PartSize size = {.elements = parameters.elements,
                   .trained_extent = parameters.trained_extent,
                   .led = parameters.LedElements()};
  for (const LocalMatrix& matrix : parameters.matrices) {
    if (IsRounded(matrix.role)) size.rounded += matrix.rows * matrix.cols;
    for (const Piece& piece : matrix.pieces) {
      if (!matrix.trains) {
        size.leads_frozen |= piece.primary && piece.rows > 0;
        continue;
      }
      if (piece.holding == Holding::kExclusive) continue;
      const int64_t elements = piece.rows * matrix.cols * OthersOf(piece, one_rank);
      size.spread += elements;
      if (piece.holding != Holding::kDuplicate) size.folded += elements;
    }
  }
  return size;
}

}  // namespace

PartSizes::Key PartSizes::KeyOf(const Plan& plan, const Place& place, int32_t tp, int32_t chunk) {
  const ModulePlan& module = plan.modules[static_cast<size_t>(place.module)];
  const bool one_rank = module.StageAt(0) == module.LastStage();
  const ReplicaTable& replicas = module.replicas;
  const int32_t shares =
      replicas.EqualWidths(place.pp) ? replicas.present_replicas() * replicas.cp() : 1;
  return {KindOfPart(plan, {place.module, place.pp, chunk}),
          place.module,
          place.width,
          tp,
          shares,
          plan.parallel(place.module).sequence,
          one_rank};
}

const PartSize& PartSizes::Of(const Plan& plan, const Place& place, int32_t chunk) {
  const Key key = KeyOf(plan, place, place.tp, chunk);
  const auto [entry, is_new] = known_.try_emplace(key);
  // Its last part says whether both ends are on one rank.
  if (is_new) entry->second = SizeOf(ParametersOf(plan, place, chunk), std::get<6>(key));
  return entry->second;
}

const std::vector<std::set<int32_t>>& PartSizes::CopyPeersOf(const Plan& plan, const Place& place,
                                                             int32_t chunk) {
  const auto [entry, is_new] = known_peers_.try_emplace(KeyOf(plan, place, 0, chunk));
  if (!is_new) return entry->second;
  entry->second.resize(static_cast<size_t>(place.width));
  for (const Copy& copy : CopiesInSlot(plan, place, chunk)) {
    entry->second[static_cast<size_t>(copy.lead.tp)].insert(copy.follower.tp);
    entry->second[static_cast<size_t>(copy.follower.tp)].insert(copy.lead.tp);
  }
  return entry->second;
}

const HomeLoads& PartSizes::LoadsOf(const Plan& plan, const PartId& part) {
  const ModulePlan& module = plan.modules[static_cast<size_t>(part.module)];
  const ReplicaTable& replicas = module.replicas;
  std::vector<int32_t> seats = {replicas.cp(), plan.parallel(part.module).sequence ? 1 : 0};
  for (const int32_t dp : replicas.order()) {
    seats.push_back(dp);
    seats.push_back(replicas.Width(dp, part.stage));
    for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
      for (const Rank rank : replicas.Ranks(dp, part.stage, cp)) {
        seats.push_back(rank.value);
        seats.push_back(plan.node_of[static_cast<size_t>(rank.value)]);
      }
    }
  }
  const int32_t homes = IsMirrored(plan, part.module)
                            ? plan.layout.modules[static_cast<size_t>(part.module)].state_copies
                            : 1;
  const auto [entry, is_new] =
      known_loads_.try_emplace({part, module.pp(), module.chunks(), KindOfPart(plan, part),
                                plan.parallel(part.module).tp, homes, std::move(seats)});
  if (is_new) entry->second = HomeLoadsOf(plan, part);
  return entry->second;
}

}  // namespace phalanx::plan
