// core/schedule/search_bound.h: what no step of a layout can beat, without planning it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/job/job_spec.h"
#include "core/schedule/profile.h"
#include "core/schedule/search_space.h"
#include "core/schedule/work_model.h"

namespace phalanx::schedule {

// What a search varies of one layout.
struct Setting {
  int64_t micro = 1;
  job::Schedule schedule;
  // Of the language module, and of all others at least.
  job::Recompute language = job::Recompute::kNone, others = job::Recompute::kNone;
  friend bool operator==(const Setting&, const Setting&) = default;
};

// Of a step.
int64_t MicrobatchesOf(const job::JobSpec& spec, const SearchLayout& layout, int64_t micro);

// Recomputation of a module under a setting: at least what the job says.
job::Recompute RecomputeOf(const job::JobSpec& spec, int32_t module, const Setting& setting);

// Not thread-safe: it keeps what it has worked out. Keeps references to its arguments.
class SearchBounds {
 public:
  SearchBounds(const job::JobSpec& spec, const SearchSpace& space, WorkModel& model)
      : spec_(spec), space_(space), model_(model) {}

  // Seconds of a step under any schedule and recomputation: what a rank works on average.
  double OfLayout(const SearchLayout& layout, int64_t micro);
  // Under that setting: what each rank works, and the language module's pipeline fills and drains.
  double OfSetting(const SearchLayout& layout, const Setting& setting);
  // What each rank works alone.
  double OfWork(const SearchLayout& layout, const Setting& setting);

 private:
  struct Stages {
    std::vector<PassSeconds> by_flow;
    std::vector<double> work;  // of each rank, of all its chunks
    double most = 0, average = 0;
  };

  PartShape ShapeOf(const SearchLayout& layout, int32_t module, int64_t microbatches) const;
  bool DefaultOrder(size_t module) const;
  std::vector<int32_t> LayersByFlow(int32_t module, int32_t pp, const job::Schedule& schedule);
  const Stages& StagesOf(const SearchLayout& layout, int32_t module, int64_t microbatches,
                         const Setting& setting);
  double OfSpan(const SearchLayout& layout, int32_t span, int64_t microbatches,
                const Setting& setting);
  double OfLanguage(const SearchLayout& layout, int64_t microbatches, const Setting& setting);

  const job::JobSpec& spec_;
  const SearchSpace& space_;
  WorkModel& model_;
  // module, tp, rows, microbatches
  std::map<std::tuple<int32_t, int32_t, double, int64_t>, double> totals_;
  // module, tp, pp, chunks, whether in a V, recomputation, rows, microbatches
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t, bool, job::Recompute, double, int64_t>,
           Stages>
      stages_;
};

// The same where devices are held to a power limit, too. As SearchBounds.
class PoweredBounds {
 public:
  PoweredBounds(const job::JobSpec& spec, const SearchSpace& space, const DeviceProfile& profile,
                int32_t items);

  double OfLayout(const SearchLayout& layout, int64_t micro);
  double OfSetting(const SearchLayout& layout, const Setting& setting);

 private:
  const std::optional<DeviceProfile> least_;  // LeastWithinLimit
  WorkModel model_, least_model_;
  SearchBounds bounds_, least_bounds_;
};

}  // namespace phalanx::schedule
