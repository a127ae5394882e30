#include "core/schedule/tolerance.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/job/devices.h"
#include "core/plan/shares.h"
#include "core/schedule/admission.h"

namespace phalanx::schedule {
namespace {

bool Has(const job::JobSpec& spec, job::Rung rung) {
  const std::vector<job::Rung>& ladder = spec.recovery.ladder;
  return std::find(ladder.begin(), ladder.end(), rung) != ladder.end();
}

constexpr char kNoCheckpoints[] = "it writes no checkpoint before its last step";

// That the job can go back to; empty: none before its last step.
std::string CheckpointOf(const job::JobSpec& spec, const Loss& loss) {
  if (loss.steps >= 0) return "its last checkpoint";
  if (!spec.checkpoint.has_value() || !spec.checkpoint->resume_from.has_value()) return "";
  return absl::StrCat("the checkpoint that it starts from",
                      *spec.checkpoint->resume_from == "latest" ? ", if there is one" : "");
}

// Whether those that are left have all of the state, and room to write a checkpoint of it.
bool MaySave(plan::Plan plan, const Loss& loss, const plan::MemoryLimits& limits) {
  if (!plan.spec.checkpoint.has_value() || plan::CopiesToHost(plan)) return false;
  for (const plan::Place& place : plan.PlacesOf(loss.rank)) {
    if (HasOneHome(plan, place)) return false;
  }
  plan.spec.recovery.ladder = job::AllRungs();
  return AdmitAfter(plan, {.lost = {loss.rank}}, limits).ok();
}

// What becomes of the job where no layout is left without the device.
std::string WithoutLayout(const plan::Plan& plan, const Loss& loss,
                          const plan::MemoryLimits& limits) {
  const job::JobSpec& spec = plan.spec;
  if (!Has(spec, job::Rung::kWait)) return absl::StrCat("ends the job: ", loss.trouble);
  const std::string checkpoint = CheckpointOf(spec, loss);
  std::string then = absl::StrCat("fails, since ", kNoCheckpoints);
  if (loss.steps < 0 && MaySave(plan, loss, limits)) {
    then = "saves its state and begins again with that on other devices";
  } else if (!checkpoint.empty()) {
    then = absl::StrCat("begins again on other devices with ", checkpoint);
  }
  return absl::StrCat("stops the job: ", loss.trouble, "; it waits up to ",
                      absl::FormatDuration(spec.recovery.hold),
                      " (recovery.hold) for what is lost, then ", then);
}

// What becomes of it where state is lost of which there was one home, in module `of`.
std::string WithoutState(const plan::Plan& plan, const Loss& loss, int32_t of, int32_t told) {
  const job::JobSpec& spec = plan.spec;
  const std::string why = absl::StrCat(
      of == told ? "its state"
                 : absl::StrCat("the state of ", plan.module_spec(of).name, " beside it"),
      " has one home (state_copies: ", plan.layout.modules[static_cast<size_t>(of)].state_copies,
      ")");
  const std::string checkpoint = CheckpointOf(spec, loss);
  if (checkpoint.empty()) return absl::StrCat("ends the job: ", why, ", and ", kNoCheckpoints);
  if (!Has(spec, job::Rung::kRestart))
    return absl::StrCat("ends the job: ", why, ", and recovery.ladder has no restart");
  return absl::StrCat("sends the job back to ", checkpoint, ": ", why);
}

// What losing a device of the module comes to; nothing: training goes on where it stands.
std::optional<std::string> FateOf(const plan::Plan& plan, const Loss& loss, int32_t module,
                                  const plan::MemoryLimits& limits) {
  const auto left = AdmitAfter(plan, {.lost = {loss.rank}}, limits);
  if (!left.ok()) return WithoutLayout(plan, loss, limits);
  std::optional<int32_t> of;  // itself, where that is one of several
  for (const plan::Place& place : plan.PlacesOf(loss.rank)) {
    if (HasOneHome(plan, place) && (!of.has_value() || place.module == module)) of = place.module;
  }
  if (!of.has_value()) return std::nullopt;
  return WithoutState(plan, loss, *of, module);
}

}  // namespace

std::vector<std::string> IntoleranceOf(const plan::Plan& plan, const Losses& losses,
                                       const plan::MemoryLimits& limits) {
  std::vector<std::string> sentences;
  if (losses.costly.empty()) return sentences;
  for (const plan::ModulePlan& module : plan.modules) {
    const auto of_module = [&](Rank rank) {
      const std::vector<plan::Place> places = plan.PlacesOf(rank);
      return std::any_of(places.begin(), places.end(),
                         [&](const plan::Place& place) { return place.module == module.index; });
    };
    const auto known = std::count_if(losses.looked_at.begin(), losses.looked_at.end(), of_module);
    std::vector<const Loss*> costly;
    for (const Loss& loss : losses.costly) {
      if (of_module(loss.rank)) costly.push_back(&loss);
    }
    if (known == 0 || static_cast<std::ptrdiff_t>(costly.size()) < known) continue;
    std::optional<std::string> first;
    const bool all = std::all_of(costly.begin(), costly.end(), [&](const Loss* loss) {
      std::optional<std::string> fate = FateOf(plan, *loss, module.index, limits);
      const bool ends = fate.has_value();
      if (ends && !first.has_value()) first = std::move(fate);
      return ends;
    });
    if (!all) continue;
    sentences.push_back(absl::StrCat(plan.module_spec(module.index).name, ": the loss of ",
                                     module.grid.size() == 1 ? "its device " : "any one device ",
                                     *first));
  }
  return sentences;
}

std::vector<std::string> IntoleranceOf(const job::JobSpec& spec) {
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, job::DevicesOf(spec)), Epoch{1});
  if (!plan.ok()) return {};
  return IntoleranceOf(*plan, LossesOf(*plan, {}), {});
}

}  // namespace phalanx::schedule
