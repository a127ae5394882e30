// What schedules ask of layouts.
#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/job/graph.h"
#include "core/job/references.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

bool TakesChunks(ScheduleName name) {
  return name == ScheduleName::kAuto || name == ScheduleName::kInterleaved ||
         name == ScheduleName::kZeroBubbleV || name == ScheduleName::kThreePhase;
}

void CheckChunkCount(const JobSpec& spec, Report& report) {
  const Schedule& schedule = spec.schedule;
  const std::string path = "spec.schedule.chunks";
  if (schedule.chunks > 1 && !TakesChunks(schedule.name)) {
    report.Add(path, "this schedule has one chunk a rank");
  } else if (schedule.name == ScheduleName::kZeroBubbleV && schedule.chunks > kChunksOfVee) {
    report.Add(path, absl::StrCat("zero_bubble_v has ", kChunksOfVee, " chunks a rank"));
  }
}

// The stages of the language module are what is cut into chunks.
void CheckChunkedStages(const JobSpec& spec, Report& report) {
  if (!report.Sound("spec.language")) return;
  const std::string path = ModulePath(static_cast<size_t>(spec.language));
  const Module& language = spec.modules[static_cast<size_t>(spec.language)];
  const Parallel& parallel = language.parallel;
  if (!report.Sound(path + ".parallel.pp")) return;
  const int32_t chunks = ChunksOf(spec, spec.language);
  const std::string written = "spec.schedule.chunks";
  if (chunks < 2 || !report.Sound(written)) return;
  const int32_t layers = language.architecture.layers;
  if (layers > 0 && report.Sound(path + ".architecture.layers") &&
      layers < int64_t{parallel.pp} * chunks) {
    report.Add(report.Written(written) != nullptr ? written : "spec.schedule.name",
               absl::StrCat("every chunk of every stage needs a layer: ", parallel.pp, " x ",
                            chunks, ", and '", language.name, "' has ", layers));
  } else if (!parallel.layers.empty() && report.Sound(path + ".parallel.layers") &&
             *std::min_element(parallel.layers.begin(), parallel.layers.end()) < chunks) {
    report.Add(path + ".parallel.layers",
               absl::StrCat("every stage needs a layer for each of its ", chunks, " chunks"));
  }
}

// Whether microbatches and pipeline parts can be counted.
bool StepKnown(const JobSpec& spec, const Report& report) {
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (!report.Sound(ModulePath(i) + ".parallel")) return false;
  }
  return report.Sound("spec.language") && report.Sound("spec.batch");
}

void CheckEncoderChunks(const JobSpec& spec, Report& report) {
  const Schedule& schedule = spec.schedule;
  const std::string path = "spec.schedule.encoder_chunks";
  if (schedule.encoder_chunks == 1) return;
  if (schedule.name != ScheduleName::kThreePhase && schedule.name != ScheduleName::kAuto) {
    report.Add(path, "only three_phase cuts encoder passes");
    return;
  }
  if (!StepKnown(spec, report)) return;
  const int64_t microbatches = MicrobatchesOf(spec);
  if (schedule.encoder_chunks > microbatches) {
    report.Add(path, absl::StrCat("may not exceed the microbatches (", microbatches, ")"));
  }
}

// Whether it is known which modules share ranks.
bool SpansKnown(const JobSpec& spec, const Report& report) {
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (!report.Sound(ModulePath(i) + ".offset") || spec.modules[i].offset == kUnplaced) {
      return false;
    }
  }
  return true;
}

void CheckPlanningLoad(const JobSpec& spec, Report& report) {
  if (!StepKnown(spec, report) || !SpansKnown(spec, report)) return;
  const int64_t microbatches = MicrobatchesOf(spec), load = PlanningLoad(spec);
  if (microbatches * load <= kPlanningLoadMax) return;
  report.Add("spec.batch.global",
             absl::StrCat("makes ", microbatches, " microbatches with a planning load of ", load,
                          " each (n x n for each kind of rank that holds n pipeline parts): at "
                          "most ",
                          kPlanningLoadMax, " in a step; a larger batch.micro makes fewer"));
}

void CheckPhases(const JobSpec& spec, Report& report) {
  if (spec.schedule.name != ScheduleName::kThreePhase) return;
  if (!report.Sound("spec.language") || !report.Sound("spec.edges")) return;
  const Module& language = spec.modules[static_cast<size_t>(spec.language)];
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const Module& module = spec.modules[i];
    const bool placed = report.Sound(ModulePath(i) + ".offset") &&
                        report.Sound(ModulePath(i) + ".parallel.ranks") &&
                        module.offset != kUnplaced;
    if (!placed) return;  // it may be the one
    if (HasPhases(spec, static_cast<int32_t>(i))) return;
  }
  report.Add("spec.schedule.name",
             absl::StrCat("needs an encoder on the ranks of '", language.name, "' that feeds it"));
}

}  // namespace

void CheckSchedule(const JobSpec& spec, Report& report) {
  if (!report.Sound("spec.schedule")) return;
  CheckChunkCount(spec, report);
  CheckChunkedStages(spec, report);
  CheckEncoderChunks(spec, report);
  CheckPlanningLoad(spec, report);
  CheckPhases(spec, report);
}

}  // namespace phalanx::job
