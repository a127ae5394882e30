#include "core/schedule/admission.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/schema.h"
#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/shares.h"
#include "core/schedule/choice.h"
#include "core/schedule/losses.h"
#include "core/schedule/tolerance.h"

namespace phalanx::schedule {
namespace {

// A second home in host memory that is left out.
struct Dropped {
  int32_t module = 0;
  std::string why;  // a sentence about the node that has no room for it
};

// All second homes in host memory where the nodes have no room for them: while any is there, ranks
// copy the state of all modules. Snapshots fit.
std::vector<Dropped> HomesWithoutRoom(const plan::Plan& plan,
                                      absl::Span<const plan::MemoryEstimate> needs,
                                      absl::Span<const int64_t> nodes) {
  std::vector<Dropped> dropped;
  const std::vector<plan::HostEstimate> sum = plan::HostMemoryOf(plan, needs);
  const auto shortage = plan::CopiesShortage(plan, sum, nodes);
  if (!shortage.has_value()) return dropped;
  for (const plan::ModulePlan& module : plan.modules) {
    if (!module.TrainsWeights() || !plan::HasHostHome(plan, module.index)) continue;
    dropped.push_back({.module = module.index, .why = shortage->text});
  }
  return dropped;
}

// It is decided so: nothing is kept in mind of other homes.
void LeaveOut(absl::Span<const Dropped> dropped, plan::Layout* layout) {
  for (const Dropped& one : dropped)
    layout->modules[static_cast<size_t>(one.module)].state_copies = 1;
}

std::string NoteOf(const job::JobSpec& spec, const Dropped& dropped) {
  return absl::StrCat("optimizer state of module ",
                      spec.modules[static_cast<size_t>(dropped.module)].name,
                      " has no second home: ", dropped.why);
}

// Instead of mirrors.
enum class Homes : uint8_t {
  kMirrors,     // nothing
  kHost,        // host memory; only where the nodes have room for all of it
  kHostOrNone,  // host memory where the nodes have room; only where they have not for all of it
};

// What is computed again of each module at least.
struct Recomputes {
  job::Recompute language = job::Recompute::kNone, others = job::Recompute::kNone;
  job::Recompute Of(const job::JobSpec& spec, size_t module) const {
    return module == static_cast<size_t>(spec.language) ? language : others;
  }
};

// Of each module.
std::vector<job::Recompute> RecomputeUnder(const job::JobSpec& spec, const Recomputes& least) {
  std::vector<job::Recompute> all;
  for (size_t i = 0; i < spec.modules.size(); ++i)
    all.push_back(std::max(spec.modules[i].recompute, least.Of(spec, i)));
  return all;
}

// What a plan may be lowered to.
struct Lowering {
  int64_t micro = 0;  // 0: as written
  Homes homes = Homes::kMirrors;
  Recomputes recomputes;
};

// As written first, then what costs least.
std::vector<Lowering> Lowerings(const job::JobSpec& spec) {
  using job::Recompute;
  std::vector<Lowering> all = {{}};
  for (int64_t micro = spec.batch.micro / 2; micro >= 1; micro /= 2)
    all.push_back({.micro = micro});
  const int64_t least = spec.batch.micro > 1 ? 1 : 0;
  std::vector<Recomputes> lowered;
  std::vector<Recompute> last = RecomputeUnder(spec, {});
  // Most of what is computed is the language module's.
  for (const Recomputes& least : {Recomputes{Recompute::kSelective, Recompute::kSelective},
                                  Recomputes{Recompute::kSelective, Recompute::kFull},
                                  Recomputes{Recompute::kFull, Recompute::kFull}}) {
    const std::vector<Recompute> now = RecomputeUnder(spec, least);
    if (std::exchange(last, now) != now) lowered.push_back(least);
  }
  const bool open = LeavesHomesOpen(spec);
  if (open) all.push_back({least, Homes::kHost, {}});
  for (const Recomputes& recomputes : lowered) {
    all.push_back({least, Homes::kMirrors, recomputes});
    if (open) all.push_back({least, Homes::kHost, recomputes});
  }
  if (!open) return all;
  all.push_back({least, Homes::kHostOrNone, {}});
  for (const Recomputes& recomputes : lowered)
    all.push_back({least, Homes::kHostOrNone, recomputes});
  return all;
}

// The plan's layout, lowered. Nothing else of it is decided again.
absl::StatusOr<plan::Plan> Lowered(const job::JobSpec& spec, const plan::Layout& as_written,
                                   const Lowering& lowering) {
  plan::Layout layout = as_written;
  layout.micro = lowering.micro;
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    plan::ModuleLayout& module = layout.modules[i];
    if (lowering.homes != Homes::kMirrors && module.state_home == job::StateHome::kMirror) {
      module.state_home = job::StateHome::kHost;
      module.state_copies = std::min(module.state_copies, 2);
    }
    const job::Recompute least = lowering.recomputes.Of(spec, i);
    if (spec.modules[i].recompute < least) module.recompute = least;
  }
  return plan::Expand(spec, std::move(layout));
}

// Whether the second home of any module has moved to host memory, and is there.
bool MovesHomes(const plan::Layout& from, const plan::Layout& to) {
  for (size_t i = 0; i < from.modules.size(); ++i) {
    if (from.modules[i].state_home != to.modules[i].state_home && to.modules[i].state_copies > 1)
      return true;
  }
  return false;
}

constexpr absl::string_view kMovedHomes =
    "optimizer state has its second home in host memory instead of mirrors";

std::vector<std::string> NotesOf(const job::JobSpec& spec, const Lowering& lowering,
                                 bool moves_homes, absl::string_view why) {
  std::vector<std::string> notes;
  const auto add = [&](absl::string_view what) { notes.push_back(absl::StrCat(what, ": ", why)); };
  if (lowering.micro > 0) {
    add(absl::StrCat("batch.micro is ", lowering.micro, " instead of ", spec.batch.micro));
  }
  if (moves_homes) add(kMovedHomes);
  const auto name = [](job::Recompute recompute) {
    return job::RecomputeNames()[static_cast<size_t>(recompute)];
  };
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const job::Module& module = spec.modules[i];
    const job::Recompute least = lowering.recomputes.Of(spec, i);
    if (module.recompute >= least) continue;
    add(absl::StrCat("recompute of module ", module.name, " is ", name(least), " instead of ",
                     name(module.recompute)));
  }
  return notes;
}

// What there is, of which each plan's processes take their part.
class Room {
 public:
  Room(const plan::MemoryLimits& whole, const BytesBeside& beside)
      : whole_(whole), beside_(beside) {}

  const std::vector<int64_t>& nodes() const { return whole_.nodes; }
  // What is left for what the plan needs by estimate. A spare device is left as little as any.
  plan::MemoryLimits For(const plan::Plan& plan, plan::PartSizes& sizes) const {
    plan::MemoryLimits limits = whole_;
    if (!plan::MayLack(plan, whole_)) return limits;
    const std::vector<int64_t> bytes = BesideOfRanks(plan, beside_, sizes);
    const int64_t most = *std::max_element(bytes.begin(), bytes.end());
    for (size_t device = 0; device < limits.devices.size(); ++device)
      limits.LeaveRoom(device, device < bytes.size() ? bytes[device] : most);
    return limits;
  }

 private:
  const plan::MemoryLimits& whole_;
  const BytesBeside& beside_;
};

// Nothing where all fits for sure.
std::vector<plan::MemoryEstimate> NeedsOf(const plan::Plan& plan, const plan::MemoryLimits& limits,
                                          plan::PartSizes& sizes) {
  if (!plan::MayLack(plan, limits)) return {};
  return plan::EstimateMemory(plan, {}, sizes);
}

// A plan that fits, and which second homes it leaves out beyond those that `base` does.
struct Candidate {
  plan::Plan plan;
  plan::MemoryLimits limits;
  std::vector<Dropped> dropped;
};
std::optional<Candidate> CandidateOf(const job::JobSpec& spec, const plan::Layout& base,
                                     const Lowering& lowering, const Room& room,
                                     plan::PartSizes& sizes) {
  if (lowering.homes == Homes::kHostOrNone && room.nodes().empty()) return std::nullopt;
  absl::StatusOr<plan::Plan> plan = Lowered(spec, base, lowering);
  if (!plan.ok()) return std::nullopt;
  plan::MemoryLimits limits = room.For(*plan, sizes);
  const std::vector<plan::MemoryEstimate> needs = NeedsOf(*plan, limits, sizes);
  if (!plan::CheckDeviceMemory(*plan, needs, limits.devices).ok()) return std::nullopt;
  Candidate candidate;
  if (lowering.homes != Homes::kMirrors) {
    plan::Layout layout = plan->layout;
    candidate.dropped = HomesWithoutRoom(*plan, needs, limits.nodes);
    LeaveOut(candidate.dropped, &layout);
    if (candidate.dropped.empty() != (lowering.homes == Homes::kHost)) return std::nullopt;
    if (!candidate.dropped.empty()) plan = plan::Expand(spec, std::move(layout));
    if (!plan.ok()) return std::nullopt;
  }
  candidate.plan = *std::move(plan);
  candidate.limits = std::move(limits);
  return candidate;
}

// What losing devices of the plan costs, as notes of it.
void NoteRisks(const Losses& losses, const plan::MemoryLimits& limits, plan::Plan* plan) {
  for (std::string& risk : RisksOf(*plan, losses)) plan->notes.push_back(std::move(risk));
  for (std::string& one : IntoleranceOf(*plan, losses, limits))
    plan->notes.push_back(std::move(one));
}

// `misfit`, or, if the mirrors that the job asks for by name are what does not fit, that.
absl::Status OfMirrors(const job::JobSpec& spec, const plan::Plan& as_written, const Room& room,
                       const absl::Status& misfit, plan::PartSizes& sizes) {
  if (spec.recovery.state_home != job::StateHome::kMirror) return misfit;
  plan::Layout one_home = as_written.layout;
  for (plan::ModuleLayout& module : one_home.modules) module.state_copies = 1;
  for (const Lowering& lowering : Lowerings(spec)) {
    const absl::StatusOr<plan::Plan> plan = Lowered(spec, one_home, lowering);
    if (!plan.ok() || !plan::CheckMemory(*plan, room.For(*plan, sizes)).ok()) continue;
    std::vector<Violation> violations = ViolationsOf(misfit);
    for (Violation& violation : violations) {
      violation.field = "spec.recovery.state_home";
      violation.value = "mirror";
      absl::StrAppend(&violation.rule, "; with state_copies 1 there is room");
    }
    return ViolationsStatus(violations);
  }
  return misfit;
}

// The plan has no notes of its losses yet.
absl::StatusOr<Admitted> Admit(const job::JobSpec& spec, const plan::Cluster& cluster,
                               const Room& room, Epoch epoch, plan::PartSizes& sizes) {
  ASSIGN_OR_RETURN(const plan::Plan as_written, PlanJob(spec, cluster, epoch));
  const plan::MemoryLimits limits = room.For(as_written, sizes);
  const std::vector<plan::MemoryEstimate> needs = NeedsOf(as_written, limits, sizes);
  RETURN_IF_ERROR(plan::CheckHostMemory(as_written, needs, limits.nodes));
  const absl::Status fits = plan::CheckDeviceMemory(as_written, needs, limits.devices);
  plan::Layout base = as_written.layout;
  const std::vector<Dropped> dropped = HomesWithoutRoom(as_written, needs, limits.nodes);
  LeaveOut(dropped, &base);
  // Of those that fit the first under which the fewest losses are too much.
  std::optional<plan::Plan> best;
  Losses of_best;
  std::string why;  // anything is lowered
  for (const Lowering& lowering : Lowerings(spec)) {
    std::optional<Candidate> candidate = CandidateOf(spec, base, lowering, room, sizes);
    if (!candidate.has_value()) continue;
    plan::Plan& plan = candidate->plan;
    Losses losses = LossesOf(plan, candidate->limits, sizes);
    // Nothing that is lowered gives state a second home, or a module another replica.
    const auto of_memory = std::find_if(losses.costly.begin(), losses.costly.end(),
                                        [](const Loss& loss) { return loss.of_memory; });
    if (why.empty() && !fits.ok()) why = "as written the job does not fit";
    if (why.empty() && of_memory != losses.costly.end()) {
      why = absl::StrCat("without ", DeviceOf(plan, of_memory->rank), ", ", of_memory->trouble);
    }
    const bool has_of_memory = of_memory != losses.costly.end();
    if (!best.has_value() || losses.costly.size() < of_best.costly.size()) {
      plan.candidates = as_written.candidates;
      plan.notes = NotesOf(spec, lowering, MovesHomes(base, plan.layout), why);
      for (const Dropped& one : dropped) plan.notes.push_back(NoteOf(spec, one));
      for (Dropped& one : candidate->dropped) {
        one.why = absl::StrCat(why, ", and ", one.why);
        plan.notes.push_back(NoteOf(spec, one));
      }
      plan.lowering_notes = plan.notes.size();
      best = std::move(plan);
      of_best = std::move(losses);
    }
    if (!has_of_memory) break;
  }
  if (!best.has_value()) return OfMirrors(spec, as_written, room, fits, sizes);
  return Admitted{*std::move(best), std::move(of_best)};
}

}  // namespace

absl::StatusOr<plan::Plan> AdmitJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                    const plan::MemoryLimits& limits, Epoch epoch,
                                    const BytesBeside& beside) {
  plan::PartSizes sizes;  // whatever is lowered and lost, most is the same
  const Room room(limits, beside);
  ASSIGN_OR_RETURN(Admitted admitted, Admit(spec, cluster, room, epoch, sizes));
  NoteRisks(admitted.losses, room.For(admitted.plan, sizes), &admitted.plan);
  return std::move(admitted.plan);
}

absl::StatusOr<Admitted> AdmitWithoutRisks(const job::JobSpec& spec, const plan::Cluster& cluster,
                                           const plan::MemoryLimits& limits, Epoch epoch,
                                           const BytesBeside& beside, plan::PartSizes& sizes) {
  return Admit(spec, cluster, Room(limits, beside), epoch, sizes);
}

absl::StatusOr<plan::Plan> AdmitWithout(const plan::Plan& healthy, absl::Span<const Rank> lost,
                                        const plan::MemoryLimits& whole,
                                        const BytesBeside& beside) {
  plan::PartSizes sizes;
  const Room room(whole, beside);
  ASSIGN_OR_RETURN(plan::Plan plan,
                   AdmitAfter(healthy, {.lost = {lost.begin(), lost.end()}, .spares = false},
                              room.For(healthy, sizes)));
  // Replicas of several widths have other communicators.
  const plan::MemoryLimits limits = room.For(plan, sizes);
  RETURN_IF_ERROR(plan::CheckDeviceMemory(plan, NeedsOf(plan, limits, sizes), limits.devices));
  if (auto risk = RiskOfMoving(plan, limits.devices)) plan.notes.push_back(*std::move(risk));
  NoteRisks(LossesOf(plan, limits, sizes), limits, &plan);
  return plan;
}

absl::StatusOr<plan::Plan> AdmitAfter(const plan::Plan& running, const plan::Change& change,
                                      const plan::MemoryLimits& limits) {
  ASSIGN_OR_RETURN(plan::Plan plan, plan::PlanAfter(running, change, limits));
  plan::PartSizes sizes;
  const std::vector<plan::MemoryEstimate> needs = NeedsOf(plan, limits, sizes);
  RETURN_IF_ERROR(plan::CheckMemory(plan, needs, limits));
  const std::vector<Dropped> dropped = HomesWithoutRoom(plan, needs, limits.nodes);
  if (!dropped.empty()) {
    plan::Layout layout = plan.layout;
    for (const Dropped& one : dropped) {
      plan::ModuleLayout& module = layout.modules[static_cast<size_t>(one.module)];
      plan::SetHomes({module.state_home, 1}, &module);
    }
    ASSIGN_OR_RETURN(plan::Plan lowered, plan::Expand(plan.spec, std::move(layout)));
    lowered.candidates = std::move(plan.candidates);
    lowered.notes = std::move(plan.notes);
    std::erase_if(lowered.notes,
                  [](const std::string& note) { return absl::StartsWith(note, kMovedHomes); });
    for (const Dropped& one : dropped) lowered.notes.push_back(NoteOf(plan.spec, one));
    plan = std::move(lowered);
  }
  plan.lowering_notes = plan.notes.size();
  return plan;
}

}  // namespace phalanx::schedule
