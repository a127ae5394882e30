// core/schedule/search.h: the layouts under which a job trains fastest.
//
// A search looks at every layout of search_space.h, under each with micro batches that are powers
// of two, the schedules that the layout can have, and recomputation: of a layout, schedule and
// micro batch the one that computes least again of those that fit. What a setting takes is the
// simulated step of its plan under the costs of a profile (work_model.h); of steps of many
// microbatches beginnings are simulated (long_step.h), short ones to see which are of interest.
// The shortest step wins, of equals the one that needs least memory; but of those
// within half a percent of it, which no simulation tells apart, the one with the fewest tensor
// ranks and stages.
//
// The best are proposed as they would be admitted (admission.h) to devices of that memory: with the
// micro batch and recomputation under which losses fit, too, and in the order of their steps then.
// So a proposal runs as it is ranked. What is lowered is taken to be no faster than as written:
// layouts are admitted in the order of what they take as written, until none that is left can be
// among the best, be what a glance says of it a few percent too much. Where mirrors do not fit, and
// the job leaves open where second homes are, a layout is looked at with them in host memory, too.
//
// Settings whose bound is above the last of the best that are known are not planned: the bound is
// what the busiest rank works, and what a pipeline takes to fill and to drain, which no simulated
// step is below. So the best are those of trying all, where steps are short enough that a glance is
// all of them.
//
// What it does not look at: host memory, which counts as enough; devices that differ; samples that
// are shorter than the context. A function of its arguments, however many threads it takes; it may
// be stopped. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/job/job_spec.h"
#include "core/schedule/profile.h"
#include "core/schedule/search_space.h"

namespace phalanx::schedule {

inline constexpr int32_t kSearchDevicesMax = 4096;
inline constexpr int32_t kSearchModulesMax = 8;
// Steps that count as equal, as a factor.
inline constexpr double kNearlyEqual = 1.005;
// So much longer a step may take of which more losses of devices are survived.
inline constexpr double kWorthALoss = 1.02;

// By which layouts are looked at.
struct SearchThreads {
  size_t count = 1;  // the caller's among them; at most 32 are of use
  // Runs run(0) on the caller's thread, each of run(1) to run(count - 1) on one of its own or not
  // at all, and returns once all that run have returned (core/posix/beside.h); null: run(0) alone.
  std::function<void(size_t count, absl::FunctionRef<void(size_t)> run)> run = nullptr;
};

struct SearchOptions {
  int32_t devices = 1;        // in [1, kSearchDevicesMax]
  int32_t node_devices = 8;   // of each node; the last one may have fewer
  int64_t device_memory = 0;  // bytes of each; 0: not known, which holds anything
  DeviceProfile profile = NominalProfile();
  int32_t items = 1;  // images or sounds of a sample
  size_t best = 10;   // so many layouts at most
  // Modules whose layout is free; empty: all of them.
  std::vector<bool> open = {};
  // Else batch.micro, recomputation and the schedule are free. True: microbatches are no larger
  // than written, no module computes again less than written, and a schedule that is named and
  // resources.devices stay.
  bool keep_written = false;
  // False: tries everything, for tests.
  bool use_bounds = true;
  SearchThreads threads;
  // Asked before each layout and each plan of one that the caller's thread looks at, which has its
  // part of every round, on that thread; null: nobody stops it. What is not OK ends the search with
  // that.
  std::function<absl::Status()> go_on = nullptr;
};

// What a step is made of on the rank that works longest, in seconds. They add up to the step.
struct StepParts {
  double compute = 0;    // products, attention, memory
  double recompute = 0;  // activations computed again
  double tensor = 0;     // tensor ranks exchange rows
  double waiting = 0;    // for other ranks
  double update = 0;     // reduction, optimizer and gather, as far as no pass hides them
};

// Which devices of a plan training goes on without from where it stands, if one of them is lost
// (core/schedule/losses.h).
enum class Survived { kNone, kSome, kAny };

struct Proposal {
  // The job under this layout: degrees, ranks and offsets, recomputation, batch.micro, schedule and
  // resources.devices are chosen, everything else is as it was.
  job::JobSpec spec;
  double step = 0;         // seconds
  bool by_glance = false;  // `step` is what beginnings of it say; of what a search proposes never
  double bubble = 0;       // 1 - busy / (ranks x time of all passes)
  double clock_mhz = 0;    // of the rank that keeps up the lowest; 0: not known
  int64_t memory = 0;      // bytes of the rank that needs most, with what no estimate counts
  StepParts parts;
  Survived survives = Survived::kAny;  // as admitted; else not known
  std::string slower;                  // why it comes behind the one before it; empty for the first
};

struct SearchResult {
  std::vector<Proposal> best;  // the choice, then the others by their steps, one for each layout
  int64_t layouts = 0;         // that there are
  int64_t too_large = 0;       // of those that were looked at: no setting fits the memory
  int64_t simulated = 0;       // settings
};

// Errors: InvalidArgument with violations: too many modules or devices, modules of unknown shape,
// no layout at all, or none that fits the memory (spec.modules, with what the smallest needs). What
// options.go_on says.
absl::StatusOr<SearchResult> SearchLayouts(const job::JobSpec& spec, const SearchOptions& options);

}  // namespace phalanx::schedule
