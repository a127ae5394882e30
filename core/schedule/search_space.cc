#include "core/schedule/search_space.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/plan/units.h"

namespace phalanx::schedule {
namespace {

// Up to here every way to do something is looked at. Of 4 modules on 16 devices there would be more
// than a million layouts.
constexpr size_t kModulesFew = 4;
constexpr int32_t kDevicesFew = 16, kDevicesFewOfManyModules = 8;

using Spans = std::vector<int32_t>;  // of each module

// Every way to put modules together, spans numbered by their first modules.
void Extend(size_t modules, int32_t spans, Spans& so_far, std::vector<Spans>& all) {
  if (so_far.size() == modules) return all.push_back(so_far);
  for (int32_t span = 0; span <= spans; ++span) {
    so_far.push_back(span);
    Extend(modules, std::max(spans, span + 1), so_far, all);
    so_far.pop_back();
  }
}

std::vector<Spans> PartitionsOf(const job::JobSpec& spec) {
  const size_t modules = spec.modules.size();
  std::vector<Spans> all;
  if (modules <= kModulesFew) {
    Spans so_far;
    Extend(modules, 0, so_far, all);
    return all;
  }
  Spans apart(modules), language(modules, spec.language == 0 ? 1 : 0);
  std::iota(apart.begin(), apart.end(), 0);
  language[static_cast<size_t>(spec.language)] = spec.language == 0 ? 0 : 1;
  return {Spans(modules, 0), apart, language};
}

int32_t PowerOfTwoWithin(int32_t value) {
  int32_t power = 1;
  while (power <= value / 2) power *= 2;
  return power;
}

// Tensor ranks that each have something to hold.
int64_t WidthMax(const job::JobSpec& spec, int32_t module) {
  const job::Architecture& a = spec.modules[static_cast<size_t>(module)].architecture;
  const plan::UnitCounts units = plan::CountUnits(a);
  int64_t most = std::min(units.query_heads, units.mlp_blocks);
  if (job::TraitsOf(a).vocabulary()) most = std::min(most, units.vocabulary_blocks);
  for (const job::Edge& edge : spec.edges) {
    if (edge.from != module || !edge.projector.has_value()) continue;
    most = std::min(most, plan::BlockCount(edge.projector->hidden_size, a.block));
  }
  return most;
}

class Enumeration {
 public:
  Enumeration(const job::JobSpec& spec, const SearchSpace& space) : spec_(spec), space_(space) {
    for (size_t i = 0; i < spec.modules.size(); ++i)
      width_max_.push_back(WidthMax(spec, static_cast<int32_t>(i)));
    // The language module first: what shares its ranks may have its stages.
    order_.push_back(static_cast<size_t>(spec.language));
    for (size_t i = 0; i < spec.modules.size(); ++i) {
      if (i != order_.front()) order_.push_back(i);
    }
  }

  std::vector<SearchLayout> All() {
    for (Spans& spans : PartitionsOf(spec_)) {
      layout_.span_of = std::move(spans);
      const int32_t count = 1 + *std::max_element(layout_.span_of.begin(), layout_.span_of.end());
      layout_.sizes.assign(static_cast<size_t>(count), 0);
      layout_.degrees.assign(spec_.modules.size(), {});
      GiveSizes(0, space_.devices);
    }
    return std::move(all_);
  }

 private:
  size_t LanguageSpan() const {
    return static_cast<size_t>(layout_.span_of[static_cast<size_t>(spec_.language)]);
  }
  bool few() const {
    const bool many_modules = spec_.modules.size() >= kModulesFew;
    return space_.devices <= (many_modules ? kDevicesFewOfManyModules : kDevicesFew);
  }
  // Whether what stands beside the language module is laid out alike.
  bool Alike() const { return spec_.modules.size() > (few() ? kModulesFew : kModulesFew - 1); }

  // Of a span whose modules the job has laid out; 0: all are open. -1: they differ.
  int32_t WrittenSize(size_t span) const {
    int32_t size = 0;
    for (size_t i = 0; i < spec_.modules.size(); ++i) {
      if (static_cast<size_t>(layout_.span_of[i]) != span || space_.open[i]) continue;
      const int32_t ranks = spec_.modules[i].parallel.ranks;
      if (size != 0 && size != ranks) return -1;
      size = ranks;
    }
    return size;
  }

  std::set<int32_t> SizesOf(size_t span, int32_t left) const {
    const int32_t written = WrittenSize(span);
    if (written < 0 || written > left) return {};
    if (written > 0) return {written};
    if (span == LanguageSpan()) return {left, PowerOfTwoWithin(left)};
    const size_t first = LanguageSpan() == 0 ? 1 : 0;
    if (Alike() && span != first) {
      return layout_.sizes[first] < left ? std::set<int32_t>{layout_.sizes[first]}
                                         : std::set<int32_t>{};
    }
    std::set<int32_t> sizes;
    for (int32_t size = 1; size < left; size = few() ? size + 1 : size * 2) sizes.insert(size);
    return sizes;
  }

  // Of spans from `span` on, that of the language module last.
  void GiveSizes(size_t span, int32_t left) {
    if (span == LanguageSpan()) return GiveSizes(span + 1, left);
    if (span < layout_.sizes.size()) {
      for (const int32_t size : SizesOf(span, left)) {
        layout_.sizes[span] = size;
        GiveSizes(span + 1, left - size);
      }
      return;
    }
    if (left < 1) return;
    for (const int32_t size : SizesOf(LanguageSpan(), left)) {
      layout_.sizes[LanguageSpan()] = size;
      GiveDegrees(0);
    }
  }

  void GiveDegrees(size_t place) {
    if (place == order_.size()) return all_.push_back(layout_);
    const size_t module = order_[place];
    for (const Degrees& degrees : DegreesOf(module)) {
      layout_.degrees[module] = degrees;
      GiveDegrees(place + 1);
    }
  }

  bool MayHaveWidth(size_t module, int32_t tp, int32_t offset) const {
    const int32_t size = layout_.sizes[static_cast<size_t>(layout_.span_of[module])];
    if (size % tp != 0 || tp > space_.node_devices || tp > width_max_[module]) return false;
    if (!few() && (tp & (tp - 1)) != 0) return false;
    // No group across the end of a node.
    const bool nodes = space_.node_devices < space_.devices;
    if (nodes && tp > 1 && (space_.node_devices % tp != 0 || offset % tp != 0)) return false;
    if (!Alike() || module == order_.front()) return true;
    const size_t first = order_[1];
    return module == first || !space_.open[first] || tp == layout_.degrees[first].tp;
  }

  bool MayHaveStages(size_t module, int32_t pp, int32_t ranks) const {
    if (ranks % pp != 0 || pp > spec_.modules[module].architecture.layers) return false;
    const size_t language = order_.front();
    const bool any = few() && spec_.modules.size() <= kModulesFew;
    if (module == language || any || pp == 1) return true;
    return layout_.span_of[module] == layout_.span_of[language] &&
           pp == layout_.degrees[language].pp;
  }

  std::vector<Degrees> DegreesOf(size_t module) const {
    const job::Parallel& written = spec_.modules[module].parallel;
    if (!space_.open[module]) return {{written.tp, written.pp, written.dp}};
    const auto span = static_cast<size_t>(layout_.span_of[module]);
    const int32_t size = layout_.sizes[span];
    const int32_t offset = std::accumulate(
        layout_.sizes.begin(), layout_.sizes.begin() + static_cast<std::ptrdiff_t>(span), 0);
    std::vector<Degrees> all;
    for (int32_t tp = 1; tp <= std::min(size, space_.node_devices); ++tp) {
      if (!MayHaveWidth(module, tp, offset)) continue;
      for (int32_t pp = 1; pp <= size / tp; ++pp) {
        if (!MayHaveStages(module, pp, size / tp)) continue;
        const int32_t dp = size / tp / pp;
        if (dp <= spec_.batch.global) all.push_back({tp, pp, dp});
      }
    }
    return all;
  }

  const job::JobSpec& spec_;
  const SearchSpace& space_;
  std::vector<int64_t> width_max_;
  std::vector<size_t> order_;  // modules, as degrees are given
  SearchLayout layout_;        // so far
  std::vector<SearchLayout> all_;
};

}  // namespace

bool CutsSequences(const job::JobSpec& spec, int32_t tp) {
  return spec.resources.device == job::DeviceKind::kGpu && tp > 1;
}

std::vector<SearchLayout> LayoutsOf(const job::JobSpec& spec, const SearchSpace& space) {
  return Enumeration(spec, space).All();
}

job::JobSpec WithLayout(const job::JobSpec& spec, const SearchSpace& space,
                        const SearchLayout& layout) {
  job::JobSpec laid = spec;
  for (size_t i = 0; i < laid.modules.size(); ++i) {
    job::Module& module = laid.modules[i];
    const auto span = layout.sizes.begin() + layout.span_of[i];
    module.offset = std::accumulate(layout.sizes.begin(), span, 0);
    if (!space.open[i]) continue;
    const Degrees& degrees = layout.degrees[i];
    module.parallel = {.ranks = degrees.ranks(),
                       .tp = degrees.tp,
                       .pp = degrees.pp,
                       .dp = degrees.dp,
                       .expt_dp = degrees.ranks() / degrees.pp,
                       .sequence = CutsSequences(spec, degrees.tp)};
  }
  laid.resources.devices = laid.World();
  return laid;
}

}  // namespace phalanx::schedule
