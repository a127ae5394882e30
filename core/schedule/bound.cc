#include "core/schedule/bound.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace phalanx::schedule {
namespace {

class Bound {
 public:
  Bound(const Pipeline& pipeline, const std::vector<PartCost>& seconds, const BoundOptions& options)
      : pipeline_(pipeline), seconds_(seconds), options_(options) {
    const size_t parts = pipeline.parts.size();
    before_.assign(parts, 0);
    after_.assign(parts, 0);
    round_trip_.assign(parts, 0);
    // A part's graph stage is higher than that of all parts before it.
    std::vector<size_t> order(parts);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&pipeline](size_t a, size_t b) {
      return pipeline.parts[a].graph_stage < pipeline.parts[b].graph_stage;
    });
    for (size_t part : order) FromUpstream(part);
    for (auto part = order.rbegin(); part != order.rend(); ++part) FromDownstream(*part);
  }

  double Seconds() const {
    double bound = 0;
    for (size_t p = 0; p < pipeline_.parts.size(); ++p) {
      const PartCost& cost = seconds_[p];
      bound = std::max(
          bound, before_[p] + cost.forward + round_trip_[p] + cost.backward_input + after_[p]);
    }
    for (const RankClass& ranks : pipeline_.classes) {
      std::vector<int32_t> parts = ranks.parts;
      std::stable_sort(parts.begin(), parts.end(), [this](int32_t a, int32_t b) {
        return PartOf(a).graph_stage < PartOf(b).graph_stage;
      });
      for (size_t first = 0; first < parts.size(); ++first) {
        for (size_t end = first + 1; end <= parts.size(); ++end) {
          bound = std::max(bound, OfRun(parts, first, end));
        }
      }
    }
    return bound;
  }

 private:
  const Part& PartOf(int32_t part) const { return pipeline_.parts[static_cast<size_t>(part)]; }

  void FromUpstream(size_t p) {
    after_[p] = seconds_[p].backward_weight;
    for (int32_t other : pipeline_.parts[p].upstream) {
      const auto u = static_cast<size_t>(other);
      before_[p] = std::max(before_[p], before_[u] + seconds_[u].forward);
      after_[p] = std::max(after_[p], seconds_[u].backward_input + after_[u]);
    }
  }

  void FromDownstream(size_t p) {
    for (int32_t other : pipeline_.parts[p].downstream) {
      const auto d = static_cast<size_t>(other);
      round_trip_[p] = std::max(round_trip_[p],
                                seconds_[d].forward + round_trip_[d] + seconds_[d].backward_input);
    }
  }

  // Parts [first, end) of one device.
  double OfRun(const std::vector<int32_t>& parts, size_t first, size_t end) const {
    const double m = pipeline_.microbatches;
    double head = std::numeric_limits<double>::infinity(), tail_input = head, tail_weight = head;
    double inputs = 0, weights = 0, lives = 0, lives_weights = 0;
    for (size_t i = first; i < end; ++i) {
      const auto p = static_cast<size_t>(parts[i]);
      const PartCost& cost = seconds_[p];
      head = std::min(head, before_[p]);
      tail_input = std::min(tail_input, after_[p]);
      tail_weight = std::min(tail_weight, after_[p] - cost.backward_weight);
      inputs += m * (cost.forward + cost.backward_input);
      weights += m * cost.backward_weight;
      if (options_.live_activations_max.empty()) continue;
      // Each part has a limit of its own, so each gives a bound; the run's is the largest.
      const double limit = std::min<double>(options_.live_activations_max[p], m);
      const double life = cost.forward + round_trip_[p] + cost.backward_input;
      lives = std::max(lives, m * life / limit);
      lives_weights = std::max(lives_weights, m * (life + cost.backward_weight) / limit);
    }
    if (!options_.weights_delayed) {
      return head + tail_weight + std::max(inputs + weights, lives_weights);
    }
    return std::max(head + std::max(inputs + weights, lives_weights),
                    head + tail_input + std::max(inputs, lives));
  }

  const Pipeline& pipeline_;
  const std::vector<PartCost>& seconds_;
  const BoundOptions& options_;
  std::vector<double> before_;      // forward time upstream
  std::vector<double> after_;       // from the end of kBackwardInput to the end of what must follow
  std::vector<double> round_trip_;  // downstream and back
};

}  // namespace

double StepLowerBound(const Pipeline& pipeline, const std::vector<PartCost>& seconds,
                      const BoundOptions& options) {
  return Bound(pipeline, seconds, options).Seconds();
}

}  // namespace phalanx::schedule
