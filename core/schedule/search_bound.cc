#include "core/schedule/search_bound.h"

#include <algorithm>
#include <numeric>

#include "core/job/graph.h"
#include "core/plan/cost.h"
#include "core/plan/layout.h"
#include "core/plan/units.h"
#include "core/schedule/power_bound.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;

// Of a step, whose other parts take energy, too.
constexpr double kPasses = 0.98;

bool DelaysWeights(const job::Schedule& schedule) {
  return schedule.name == ScheduleName::kZeroBubbleH1 ||
         schedule.name == ScheduleName::kZeroBubbleV;
}

}  // namespace

int64_t MicrobatchesOf(const job::JobSpec& spec, const SearchLayout& layout, int64_t micro) {
  const int64_t lanes = layout.degrees[static_cast<size_t>(spec.language)].dp;
  const int64_t samples = (spec.batch.global + lanes - 1) / lanes;
  return (samples + micro - 1) / micro;
}

job::Recompute RecomputeOf(const job::JobSpec& spec, int32_t module, const Setting& setting) {
  return std::max(spec.modules[static_cast<size_t>(module)].recompute,
                  module == spec.language ? setting.language : setting.others);
}

PartShape SearchBounds::ShapeOf(const SearchLayout& layout, int32_t module,
                                int64_t microbatches) const {
  const auto m = static_cast<size_t>(module);
  const Degrees& degrees = layout.degrees[m];
  const job::Parallel& written = spec_.modules[m].parallel;
  const bool open = space_.open[m];
  const double samples = SamplesOfMicrobatch(
      spec_, module, layout.degrees[static_cast<size_t>(spec_.language)].dp, microbatches);
  return {.module = module,
          .width = degrees.tp,
          .sequence = open ? CutsSequences(spec_, degrees.tp) : written.sequence,
          .rows = model_.RowsOfLane(module, samples, degrees.dp) / (open ? 1 : written.cp),
          .microbatches = microbatches};
}

double SearchBounds::OfLayout(const SearchLayout& layout, int64_t micro) {
  const int64_t microbatches = MicrobatchesOf(spec_, layout, micro);
  std::vector<double> spans(layout.sizes.size(), 0);
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    const PartShape shape = ShapeOf(layout, static_cast<int32_t>(i), microbatches);
    const auto [total, is_new] =
        totals_.try_emplace({shape.module, shape.width, shape.rows, shape.microbatches});
    if (is_new) total->second = model_.OfModule(shape).total();
    spans[static_cast<size_t>(layout.span_of[i])] += total->second / layout.degrees[i].pp;
  }
  return static_cast<double>(microbatches) * *std::max_element(spans.begin(), spans.end());
}

std::vector<int32_t> SearchBounds::LayersByFlow(int32_t module, int32_t pp,
                                                const job::Schedule& schedule) {
  const job::Module& spec = spec_.modules[static_cast<size_t>(module)];
  const plan::PartOrder order = {
      .pp = pp,
      .chunks = job::ChunksOf(spec_, schedule, module),
      .path = module == spec_.language && schedule.name == ScheduleName::kZeroBubbleV
                  ? plan::ChunkPath::kVee
                  : plan::ChunkPath::kLoop};
  const bool open = space_.open[static_cast<size_t>(module)];
  if (open || spec.parallel.layers.empty())
    return plan::BalanceLayers(spec_, module, order.count());
  std::vector<int32_t> layers;
  for (int32_t flow = 0; flow < order.count(); ++flow) {
    const int32_t stage = order.StageAt(flow);
    layers.push_back(
        static_cast<int32_t>(plan::EvenSplit(spec.parallel.layers[static_cast<size_t>(stage)],
                                             order.chunks, order.ChunkAt(flow))
                                 .count));
  }
  return layers;
}

const SearchBounds::Stages& SearchBounds::StagesOf(const SearchLayout& layout, int32_t module,
                                                   int64_t microbatches, const Setting& setting) {
  PartShape shape = ShapeOf(layout, module, microbatches);
  shape.recompute = RecomputeOf(spec_, module, setting);
  const int32_t pp = layout.degrees[static_cast<size_t>(module)].pp;
  const int32_t chunks = job::ChunksOf(spec_, setting.schedule, module);
  const bool vee = module == spec_.language && setting.schedule.name == ScheduleName::kZeroBubbleV;
  const auto [entry, is_new] = stages_.try_emplace(
      {module, shape.width, pp, chunks, vee, shape.recompute, shape.rows, shape.microbatches});
  Stages& stages = entry->second;
  if (!is_new) return stages;
  const std::vector<int32_t> layers = LayersByFlow(module, pp, setting.schedule);
  for (size_t flow = 0; flow < layers.size(); ++flow) {
    shape.layers = layers[flow];
    shape.first = flow == 0;
    shape.last = flow + 1 == layers.size();
    stages.by_flow.push_back(model_.OfPart(shape));
  }
  const plan::PartOrder order = {.pp = pp,
                                 .chunks = static_cast<int32_t>(layers.size()) / pp,
                                 .path = vee ? plan::ChunkPath::kVee : plan::ChunkPath::kLoop};
  stages.work.resize(static_cast<size_t>(pp));
  for (size_t flow = 0; flow < layers.size(); ++flow)
    stages.work[static_cast<size_t>(order.StageAt(static_cast<int32_t>(flow)))] +=
        stages.by_flow[flow].total();
  stages.most = *std::max_element(stages.work.begin(), stages.work.end());
  stages.average = std::accumulate(stages.work.begin(), stages.work.end(), 0.0) / pp;
  return stages;
}

bool SearchBounds::DefaultOrder(size_t module) const {
  return space_.open[module] || spec_.modules[module].parallel.order == job::Parallel{}.order;
}

// Of a microbatch, on the rank of the span that works most.
double SearchBounds::OfSpan(const SearchLayout& layout, int32_t span, int64_t microbatches,
                            const Setting& setting) {
  std::vector<const std::vector<double>*> works;  // of each module there
  double most = 0, average = 0;
  bool default_order = true;
  int32_t runs = 1;  // of ranks on which no stage changes
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    if (layout.span_of[i] != span) continue;
    const auto module = static_cast<int32_t>(i);
    const Stages& stages = StagesOf(layout, module, microbatches, setting);
    works.push_back(&stages.work);
    most = std::max(most, stages.most);
    average += stages.average;
    default_order &= DefaultOrder(i);
    runs = std::lcm(runs, layout.degrees[i].pp);
  }
  most = std::max(most, average);
  if (!default_order) return most;
  for (int32_t run = 0; run < runs; ++run) {
    double sum = 0;
    for (const std::vector<double>* work : works)
      sum += (*work)[static_cast<size_t>(run) * work->size() / static_cast<size_t>(runs)];
    most = std::max(most, sum);
  }
  return most;
}

// As core/schedule/bound.h, of the language module alone: the first chunks are what fills.
double SearchBounds::OfLanguage(const SearchLayout& layout, int64_t microbatches,
                                const Setting& setting) {
  const std::vector<PassSeconds>& stages =
      StagesOf(layout, spec_.language, microbatches, setting).by_flow;
  const auto pp = static_cast<size_t>(layout.degrees[static_cast<size_t>(spec_.language)].pp);
  const bool vee = setting.schedule.name == ScheduleName::kZeroBubbleV;
  const auto count = static_cast<double>(microbatches);
  double before = 0, chain = stages.front().backward_weight, most = 0;
  for (size_t stage = 0; stage < pp; ++stage) {
    double inputs = 0, weights = 0;
    for (size_t flow = stage; flow < stages.size(); flow += pp) {
      const size_t turned = flow >= pp && vee ? 2 * pp - 1 - stage : flow;
      inputs += stages[turned].forward + stages[turned].backward_input;
      weights += stages[turned].backward_weight;
    }
    const double after = chain - stages[stage].backward_weight;
    const double work = before + count * (inputs + weights);
    most = std::max(most, DelaysWeights(setting.schedule)
                              ? std::max(work, before + count * inputs + chain)
                              : work + std::max(0.0, after));
    before += stages[stage].forward;
    chain += stages[stage].backward_input;
  }
  return most;
}

double SearchBounds::OfSetting(const SearchLayout& layout, const Setting& setting) {
  const int64_t microbatches = MicrobatchesOf(spec_, layout, setting.micro);
  return std::max(OfLanguage(layout, microbatches, setting), OfWork(layout, setting));
}

double SearchBounds::OfWork(const SearchLayout& layout, const Setting& setting) {
  const int64_t microbatches = MicrobatchesOf(spec_, layout, setting.micro);
  double bound = 0;
  for (size_t span = 0; span < layout.sizes.size(); ++span) {
    const double work = OfSpan(layout, static_cast<int32_t>(span), microbatches, setting);
    bound = std::max(bound, static_cast<double>(microbatches) * work);
  }
  return bound;
}

PoweredBounds::PoweredBounds(const job::JobSpec& spec, const SearchSpace& space,
                             const DeviceProfile& profile, int32_t items)
    : least_(LeastWithinLimit(profile)),
      model_(spec, profile, items),
      least_model_(spec, least_.has_value() ? *least_ : profile, items),
      bounds_(spec, space, model_),
      least_bounds_(spec, space, least_model_) {}

double PoweredBounds::OfLayout(const SearchLayout& layout, int64_t micro) {
  const double bound = bounds_.OfLayout(layout, micro);
  if (!least_.has_value()) return bound;
  return std::max(bound, kPasses * least_bounds_.OfLayout(layout, micro));
}

double PoweredBounds::OfSetting(const SearchLayout& layout, const Setting& setting) {
  const double bound = bounds_.OfSetting(layout, setting);
  if (!least_.has_value()) return bound;
  return std::max(bound, kPasses * least_bounds_.OfWork(layout, setting));
}

}  // namespace phalanx::schedule
