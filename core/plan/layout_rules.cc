#include "core/plan/layout_rules.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/plan/grid.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using job::Family;
using job::ScheduleName;

constexpr int32_t kChunksOfVee = 2;

// Whether there is a way along edges; the graph must have no cycle.
bool Feeds(const job::JobSpec& spec, int32_t from, int32_t to) {
  return std::any_of(spec.edges.begin(), spec.edges.end(), [&](const job::Edge& edge) {
    return edge.from == from && (edge.to == to || Feeds(spec, edge.to, to));
  });
}

class Rules {
 public:
  explicit Rules(const job::JobSpec& spec) : spec_(spec) {}

  std::vector<Violation> Check() && {
    if (spec_.modules.empty()) Add("spec.modules", "", "a job needs at least one module");
    for (size_t i = 0; i < spec_.modules.size(); ++i) CheckModule(static_cast<int32_t>(i));
    if (spec_.language < 0 || spec_.language >= static_cast<int32_t>(spec_.modules.size())) {
      Add("spec.language", absl::StrCat(spec_.language), "must be one of the modules");
    }
    for (size_t i = 0; i < spec_.edges.size(); ++i) CheckEdge(i);
    if (violations_.empty() && DataFlowOrder(spec_).size() != spec_.modules.size()) {
      Add("spec.edges", "", "the module graph must have no cycle");
    }
    if (violations_.empty()) CheckSchedule();
    CheckBatch();
    return std::move(violations_);
  }

 private:
  void Add(std::string field, std::string value, std::string rule) {
    violations_.push_back({std::move(field), std::move(value), std::move(rule)});
  }

  void CheckModule(int32_t index) {
    const job::Module& module = spec_.modules[static_cast<size_t>(index)];
    const job::Parallel& parallel = module.parallel;
    const std::string path = absl::StrCat("spec.modules[", index, "]");
    if (!CheckDegrees(path + ".parallel", parallel)) return;
    if (module.offset < 0 || int64_t{module.offset} + parallel.ranks > kWorldMax) {
      Add(path + ".offset", absl::StrCat(module.offset),
          absl::StrCat("ranks must lie in [0, ", kWorldMax, ")"));
      return;
    }
    for (int32_t other = 0; other < index; ++other) CheckSpans(path, module, other);
    CheckLayers(path, module, ChunksOf(spec_, index));
    CheckWidth(path, module);
  }

  bool CheckDegrees(const std::string& path, const job::Parallel& parallel) {
    const int64_t degrees[] = {parallel.tp, parallel.cp,      parallel.pp,     parallel.dp,
                               parallel.ep, parallel.expt_tp, parallel.expt_dp};
    const bool positive = std::all_of(std::begin(degrees), std::end(degrees),
                                      [](int64_t d) { return d >= 1 && d <= kWorldMax; });
    if (!positive || parallel.ranks < 1) {
      Add(path, "", absl::StrCat("every degree must be in [1, ", kWorldMax, "]"));
      return false;
    }
    const auto divides = [&parallel](int64_t a, int64_t b, int64_t c, int64_t rest) {
      const int64_t product = a * b;  // below 2^40; each further factor is checked before it counts
      return product <= kWorldMax && product * c <= kWorldMax &&
             product * c * rest == parallel.ranks;
    };
    if (!divides(parallel.tp, parallel.cp, parallel.pp, parallel.dp)) {
      Add(path + ".tp", absl::StrCat(parallel.tp),
          absl::StrCat("tp*cp*pp must divide ranks (", parallel.ranks, ")"));
      return false;
    }
    if (!divides(parallel.expt_tp, parallel.ep, parallel.pp, parallel.expt_dp)) {
      Add(path + ".ep", absl::StrCat(parallel.ep),
          absl::StrCat("expt_tp*ep*pp must divide ranks (", parallel.ranks, ")"));
      return false;
    }
    return true;
  }

  void CheckSpans(const std::string& path, const job::Module& module, int32_t other_index) {
    const job::Module& other = spec_.modules[static_cast<size_t>(other_index)];
    const int64_t first = module.offset, end = first + module.parallel.ranks;
    const int64_t other_first = other.offset;
    const int64_t other_end = other_first + other.parallel.ranks;
    const bool equal = first == other_first && end == other_end;
    if (equal || end <= other_first || other_end <= first) return;
    Add(path + ".offset", absl::StrCat(module.offset),
        absl::StrCat("ranks [", first, ", ", end, ") overlap those of ", other.name, " [",
                     other_first, ", ", other_end, "); spans must be equal or disjoint"));
  }

  void CheckLayers(const std::string& path, const job::Module& module, int32_t chunks) {
    const job::Parallel& parallel = module.parallel;
    const int32_t layers = module.architecture.layers;
    const bool known = module.architecture.family != Family::kNone || layers > 0;
    if (known && layers < int64_t{parallel.pp} * chunks) {
      Add(path + ".parallel.pp", absl::StrCat(parallel.pp),
          chunks == 1
              ? absl::StrCat("every stage needs a layer; the module has ", layers)
              : absl::StrCat("every chunk of every stage needs a layer (",
                             int64_t{parallel.pp} * chunks, " of them); the module has ", layers));
      return;
    }
    if (parallel.layers.empty()) return;
    const std::string value = absl::StrCat("[", absl::StrJoin(parallel.layers, ", "), "]");
    const std::string field = path + ".parallel.layers";
    if (parallel.layers.size() != static_cast<size_t>(parallel.pp)) {
      Add(field, value, absl::StrCat("must have one entry a stage (", parallel.pp, ")"));
      return;
    }
    if (*std::min_element(parallel.layers.begin(), parallel.layers.end()) < chunks) {
      Add(field, value,
          absl::StrCat("every stage needs at least ", chunks, chunks == 1 ? " layer" : " layers"));
      return;
    }
    const int64_t sum = std::accumulate(parallel.layers.begin(), parallel.layers.end(), int64_t{0});
    if (known && sum != layers) {
      Add(field, value,
          absl::StrCat("must add up to architecture.layers (", layers, "), not ", sum));
    }
  }

  void CheckWidth(const std::string& path, const job::Module& module) {
    const job::Architecture& architecture = module.architecture;
    if (architecture.family == Family::kNone) return;
    const UnitCounts units = CountUnits(architecture);
    const int32_t tp = module.parallel.tp;
    const auto check = [&](int64_t count, absl::string_view what) {
      if (tp <= count) return;
      Add(path + ".parallel.tp", absl::StrCat(tp),
          absl::StrCat("may not exceed the number of ", what, " (", count, ")"));
    };
    check(units.query_heads, "query heads");
    check(units.mlp_blocks, "MLP blocks: mlp_size / block");
    if (architecture.family == Family::kLlama) {
      check(units.vocabulary_blocks, "vocabulary blocks: vocabulary / block");
    }
  }

  void CheckEdge(size_t index) {
    const job::Edge& edge = spec_.edges[index];
    const std::string path = absl::StrCat("spec.edges[", index, "]");
    const auto known = [this](int32_t module) {
      return module >= 0 && module < static_cast<int32_t>(spec_.modules.size());
    };
    if (!known(edge.from) || !known(edge.to)) {
      Add(path, "", "both ends must be modules of the job");
      return;
    }
    const job::Module& from = spec_.modules[static_cast<size_t>(edge.from)];
    const job::Module& to = spec_.modules[static_cast<size_t>(edge.to)];
    if (to.architecture.family == Family::kClipVision ||
        to.architecture.family == Family::kWhisper) {
      Add(path + ".to", to.name, "an encoder takes no rows from another module");
      return;
    }
    if (from.architecture.family == Family::kNone || to.architecture.family == Family::kNone)
      return;
    if (!edge.projector.has_value()) {
      if (from.architecture.hidden_size != to.architecture.hidden_size) {
        Add(path + ".projector", "",
            absl::StrCat("hidden_size of ", from.name, " (", from.architecture.hidden_size,
                         ") and of ", to.name, " (", to.architecture.hidden_size,
                         ") differ, so a projector is needed"));
      }
      return;
    }
    const int64_t blocks = BlockCount(edge.projector->hidden_size, from.architecture.block);
    if (from.parallel.tp > blocks) {
      Add(path + ".projector.hidden_size", absl::StrCat(edge.projector->hidden_size),
          absl::StrCat("must have at least one block of ", from.architecture.block,
                       " a tensor rank of ", from.name, " (", from.parallel.tp, ")"));
    }
  }

  // Of a graph that is sound.
  void CheckSchedule() {
    const job::Schedule& schedule = spec_.schedule;
    const auto modules = static_cast<int32_t>(spec_.modules.size());
    const bool one_chunk =
        schedule.name == ScheduleName::k1F1B || schedule.name == ScheduleName::kZeroBubbleH1;
    if (one_chunk && schedule.chunks > 1) {
      Add("spec.schedule.chunks", absl::StrCat(schedule.chunks),
          "this schedule has one chunk a rank");
    }
    if (schedule.name == ScheduleName::kZeroBubbleV && schedule.chunks > 1 &&
        schedule.chunks != kChunksOfVee) {
      Add("spec.schedule.chunks", absl::StrCat(schedule.chunks),
          absl::StrCat("zero_bubble_v has ", kChunksOfVee, " chunks a rank"));
    }
    if (schedule.encoder_chunks < 1) {
      Add("spec.schedule.encoder_chunks", absl::StrCat(schedule.encoder_chunks),
          "must be at least 1");
    }
    bool phases = false;
    for (int32_t module = 0; module < modules; ++module) phases |= RunsInPhases(spec_, module);
    if (schedule.name == ScheduleName::kThreePhase && !phases) {
      Add("spec.schedule.name", "three_phase",
          "needs a module on the ranks of the language module that feeds it");
    }
  }

  void CheckBatch() {
    if (spec_.batch.global < 1)
      Add("spec.batch.global", absl::StrCat(spec_.batch.global), "must be at least 1");
    if (spec_.batch.micro < 1)
      Add("spec.batch.micro", absl::StrCat(spec_.batch.micro), "must be at least 1");
    if (spec_.schedule.chunks < 1) {
      Add("spec.schedule.chunks", absl::StrCat(spec_.schedule.chunks), "must be at least 1");
    }
  }

  const job::JobSpec& spec_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> CheckLayout(const job::JobSpec& spec) { return Rules(spec).Check(); }

std::vector<int32_t> DataFlowOrder(const job::JobSpec& spec) {
  const auto count = static_cast<int32_t>(spec.modules.size());
  std::vector<int32_t> order;
  std::vector<bool> placed(spec.modules.size(), false);
  for (bool progress = true; progress;) {
    progress = false;
    for (int32_t module = 0; module < count && !progress; ++module) {
      if (placed[static_cast<size_t>(module)]) continue;
      const bool ready =
          std::all_of(spec.edges.begin(), spec.edges.end(), [&](const job::Edge& edge) {
            return edge.to != module || placed[static_cast<size_t>(edge.from)];
          });
      if (!ready) continue;
      placed[static_cast<size_t>(module)] = true;
      order.push_back(module);
      progress = true;
    }
  }
  return order;
}

int32_t ChunksOf(const job::JobSpec& spec, int32_t module) {
  if (module != spec.language) return 1;
  return spec.schedule.name == ScheduleName::kZeroBubbleV ? kChunksOfVee
                                                          : std::max(1, spec.schedule.chunks);
}

bool RunsInPhases(const job::JobSpec& spec, int32_t module) {
  if (spec.schedule.name != ScheduleName::kThreePhase || module == spec.language) return false;
  const job::Module& language = spec.modules[static_cast<size_t>(spec.language)];
  const job::Module& other = spec.modules[static_cast<size_t>(module)];
  return other.offset == language.offset && other.parallel.ranks == language.parallel.ranks &&
         Feeds(spec, module, spec.language);
}

bool RunsAhead(const job::JobSpec& spec, int32_t module) {
  if (spec.schedule.name != ScheduleName::kThreePhase) return false;
  for (int32_t other = 0; other < static_cast<int32_t>(spec.modules.size()); ++other) {
    if (!RunsInPhases(spec, other)) continue;
    if (other == module || Feeds(spec, module, other)) return true;
  }
  return false;
}

}  // namespace phalanx::plan
