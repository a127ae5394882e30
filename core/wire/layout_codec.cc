#include "core/wire/layout_codec.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/job/schema.h"

namespace phalanx::wire {
namespace {

using job::ScheduleName;
using job::StateHome;

template <typename Value>
std::string NameIn(absl::Span<const absl::string_view> names, Value value) {
  return std::string(names[static_cast<size_t>(value)]);
}

template <typename Value>
absl::StatusOr<Value> AnyValueIn(absl::Span<const absl::string_view> names, size_t first,
                                 absl::string_view field, absl::string_view text) {
  const auto found =
      std::find(names.begin() + static_cast<std::ptrdiff_t>(first), names.end(), text);
  if (found != names.end()) return static_cast<Value>(found - names.begin());
  return absl::InvalidArgumentError(
      absl::StrCat("layout: ", field, " is \"", text, "\", which this version does not know"));
}

// A layout leaves nothing open: 0, "auto", is no value of it.
template <typename Value>
absl::StatusOr<Value> ValueIn(absl::Span<const absl::string_view> names, absl::string_view field,
                              absl::string_view text) {
  static_assert(static_cast<int>(Value::kAuto) == 0);
  return AnyValueIn<Value>(names, 1, field, text);
}

void ModuleToProto(const plan::ModuleLayout& module, v1::ModuleLayout* out) {
  out->mutable_layers()->Assign(module.layers.begin(), module.layers.end());
  for (const plan::SlotChange& change : module.changes) {
    v1::ModuleLayout::SlotChange* to = out->add_changes();
    to->set_dp(change.dp);
    to->set_pp(change.pp);
    for (Rank rank : change.ranks) to->add_ranks(rank.value);
  }
  out->mutable_speeds()->Assign(module.speeds.begin(), module.speeds.end());
  out->set_state_home(NameIn(job::StateHomeNames(), module.state_home));
  out->set_state_copies(module.state_copies);
  if (module.recompute.has_value())
    out->set_recompute(NameIn(job::RecomputeNames(), *module.recompute));
  out->mutable_order()->Assign(module.order.begin(), module.order.end());
  if (module.admitted_homes.has_value()) {
    out->set_admitted_home(NameIn(job::StateHomeNames(), module.admitted_homes->home));
    out->set_admitted_copies(module.admitted_homes->copies);
  }
  if (!module.lowered.has_value()) return;
  v1::ModuleLayout::Lowered& lowered = *out->mutable_lowered();
  lowered.set_tp(module.lowered->tp);
  lowered.set_dp(module.lowered->dp);
  lowered.set_pp(module.lowered->pp);
  lowered.mutable_layers()->Assign(module.lowered->layers.begin(), module.lowered->layers.end());
  for (Rank rank : module.lowered->ranks) lowered.add_ranks(rank.value);
}

absl::StatusOr<plan::ModuleLayout> ModuleFromProto(const v1::ModuleLayout& from) {
  const absl::StatusOr<StateHome> home =
      ValueIn<StateHome>(job::StateHomeNames(), "state_home", from.state_home());
  if (!home.ok()) return home.status();
  plan::ModuleLayout module{.layers = {from.layers().begin(), from.layers().end()},
                            .speeds = {from.speeds().begin(), from.speeds().end()},
                            .state_home = *home,
                            .state_copies = from.state_copies(),
                            .order = {from.order().begin(), from.order().end()}};
  if (!from.recompute().empty()) {
    ASSIGN_OR_RETURN(module.recompute, AnyValueIn<job::Recompute>(job::RecomputeNames(), 0,
                                                                  "recompute", from.recompute()));
  }
  if (!from.admitted_home().empty()) {
    ASSIGN_OR_RETURN(
        const StateHome admitted,
        ValueIn<StateHome>(job::StateHomeNames(), "admitted_home", from.admitted_home()));
    module.admitted_homes = plan::HomeChoice{admitted, from.admitted_copies()};
  }
  for (const v1::ModuleLayout::SlotChange& change : from.changes()) {
    module.changes.push_back(
        {.dp = change.dp(), .pp = change.pp(), .ranks = RanksOf(change.ranks())});
  }
  if (from.has_lowered()) {
    const v1::ModuleLayout::Lowered& lowered = from.lowered();
    module.lowered = plan::LoweredGrid{.tp = lowered.tp(),
                                       .dp = lowered.dp(),
                                       .pp = lowered.pp(),
                                       .layers = {lowered.layers().begin(), lowered.layers().end()},
                                       .ranks = RanksOf(lowered.ranks())};
  }
  return module;
}

}  // namespace

plan::RankList RanksOf(const google::protobuf::RepeatedField<int32_t>& values) {
  plan::RankList ranks;
  for (int32_t value : values) ranks.push_back(Rank{value});
  return ranks;
}

void ToProto(const plan::Placement& placement, v1::Placement* out) {
  for (const plan::NodeDevices& node : placement) {
    v1::NodeDevices* to = out->add_nodes();
    to->set_node(node.node);
    to->mutable_devices()->Assign(node.devices.begin(), node.devices.end());
    to->set_domain(node.domain);
  }
}

plan::Placement FromProto(const v1::Placement& placement) {
  plan::Placement result;
  for (const v1::NodeDevices& node : placement.nodes()) {
    result.push_back({node.node(), {node.devices().begin(), node.devices().end()}, node.domain()});
  }
  return result;
}

void ToProto(const plan::Layout& layout, v1::Layout* out) {
  out->set_epoch(layout.epoch.value);
  out->set_derivation(layout.derivation);
  out->set_schedule(NameIn(job::ScheduleNames(), layout.schedule.name));
  out->set_chunks(layout.schedule.chunks);
  out->set_encoder_chunks(layout.schedule.encoder_chunks);
  for (const plan::ModuleLayout& module : layout.modules) ModuleToProto(module, out->add_modules());
  ToProto(layout.nodes, out->mutable_placement());
  for (Rank rank : layout.lost) out->add_lost(rank.value);
  for (Rank rank : layout.idle) out->add_idle(rank.value);
  out->set_data_digest(layout.data_digest);
  out->set_micro(layout.micro);
  out->set_products(layout.products);
  for (const plan::SlowPlace& slow : layout.slow) {
    v1::Layout::SlowPlace& to = *out->add_slow();
    to.set_place(slow.place.value);
    to.set_pace(slow.pace);
  }
}

absl::StatusOr<plan::Layout> FromProto(const v1::Layout& from) {
  const absl::StatusOr<ScheduleName> schedule =
      ValueIn<ScheduleName>(job::ScheduleNames(), "schedule", from.schedule());
  if (!schedule.ok()) return schedule.status();
  plan::Layout layout{.epoch = Epoch{from.epoch()},
                      .derivation = from.derivation(),
                      .schedule = {.name = *schedule,
                                   .chunks = from.chunks(),
                                   .encoder_chunks = from.encoder_chunks()},
                      .micro = from.micro(),
                      .nodes = FromProto(from.placement()),
                      .lost = RanksOf(from.lost()),
                      .idle = RanksOf(from.idle()),
                      .data_digest = from.data_digest(),
                      .products = from.products()};
  for (const v1::Layout::SlowPlace& slow : from.slow())
    layout.slow.push_back({Rank{slow.place()}, slow.pace()});
  for (const v1::ModuleLayout& module : from.modules()) {
    absl::StatusOr<plan::ModuleLayout> decoded = ModuleFromProto(module);
    if (!decoded.ok()) return decoded.status();
    layout.modules.push_back(*std::move(decoded));
  }
  return layout;
}

}  // namespace phalanx::wire
