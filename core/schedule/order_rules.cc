#include "core/schedule/order_rules.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/plan/activations.h"
#include "core/plan/units.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;

PartRule RuleOf(const plan::Plan& plan, const Pipeline& pipeline, const Part& part) {
  const int32_t microbatches = pipeline.microbatches;
  PartRule rule;
  rule.kept_max =
      static_cast<int32_t>(plan::ActivationsKeptMax(plan, part.module, part.stage, microbatches));
  rule.weights_delayed = plan::DelaysWeights(plan);
  rule.phased = plan.RunsInPhases(part.module);
  if (plan.RunsAhead(part.module) || plan.modules[static_cast<size_t>(part.module)].chunks() > 1) {
    rule.ahead_max = microbatches;  // kept_max is the limit
    return rule;
  }
  rule.ahead_max = std::min(pipeline.stages - part.graph_stage, microbatches);
  const bool has_chunks =
      std::any_of(plan.modules.begin(), plan.modules.end(),
                  [](const plan::ModulePlan& module) { return module.chunks() > 1; });
  rule.alternates = !has_chunks;
  return rule;
}

OrderRules CommonRules(const plan::Plan& plan, const Pipeline& pipeline) {
  OrderRules rules;
  for (const Part& part : pipeline.parts) rules.parts.push_back(RuleOf(plan, pipeline, part));
  if (plan.spec.schedule.name == ScheduleName::kZeroBubbleV) {
    rules.chunk_order = ChunkOrder::kDeepest;
  }
  if (plan.spec.schedule.name == ScheduleName::kThreePhase) {
    rules.groups = std::min(plan.spec.schedule.encoder_chunks, pipeline.microbatches);
  }
  rules.pace_part = pipeline.PartAt(plan.spec.language, 0, 0);
  return rules;
}

constexpr int32_t kUnlimited = INT32_MAX;

// In a V of p ranks the way from a first part through all others and back takes a microbatch so
// long that (3 p - rank) / 2 of them keep the rank busy; more at the start only crowd out the turn.
void LimitFirstChunk(const plan::Plan& plan, const Pipeline& pipeline, int32_t more,
                     OrderRules& rules) {
  if (more == kUnlimited) return;
  const int32_t language = plan.spec.language;
  const int32_t stages = plan.modules[static_cast<size_t>(language)].pp();
  for (int32_t stage = 0; stage < stages; ++stage) {
    const int32_t limit = std::max(1, (3 * stages - stage) / 2 + more);
    PartRule& rule = rules.parts[static_cast<size_t>(pipeline.PartAt(language, stage, 0))];
    rule.ahead_max = std::min(rule.ahead_max, limit);
  }
}

// See OrderRules::in_turn.
bool CanTakeTurns(const plan::Plan& plan, const Pipeline& pipeline, const OrderRules& rules) {
  if (plan.spec.schedule.name != ScheduleName::kInterleaved) return false;
  const plan::ModulePlan& language = plan.modules[static_cast<size_t>(plan.spec.language)];
  const int32_t first = language.GraphStage(0, 0);
  const int32_t rounds = std::max(1, pipeline.microbatches / language.pp());
  const int64_t longest = plan::EvenSplit(pipeline.microbatches, rounds, 0).count;
  const int64_t ahead = std::min<int64_t>(pipeline.microbatches, 2 * longest);
  for (size_t p = 0; p < pipeline.parts.size(); ++p) {
    const Part& part = pipeline.parts[p];
    if (part.module == language.index && !part.trains.any()) return false;
    if (part.graph_stage < first && rules.parts[p].ahead_max < ahead) return false;
  }
  return language.chunks() > 1;
}

}  // namespace

std::vector<OrderRules> RulesOf(const plan::Plan& plan, const Pipeline& pipeline) {
  const OrderRules common = CommonRules(plan, pipeline);
  std::vector<OrderRules> choices = {common};
  const auto multiply = [&choices](auto values, auto set) {
    std::vector<OrderRules> product;
    for (const OrderRules& rules : choices) {
      for (const auto& value : values) set(value, product.emplace_back(rules));
    }
    choices = std::move(product);
  };
  const bool fills =
      std::any_of(common.parts.begin(), common.parts.end(),
                  [](const PartRule& rule) { return rule.weights_delayed || rule.phased; });
  const int32_t chunks = plan.modules[static_cast<size_t>(plan.spec.language)].chunks();
  if (fills) {
    multiply(std::array{0, 50, 100},
             [](int32_t percent, OrderRules& rules) { rules.patience_percent = percent; });
  }
  if (chunks > 1) {
    multiply(std::array{true, false},
             [](bool first, OrderRules& rules) { rules.forwards_first = first; });
  }
  if (CanTakeTurns(plan, pipeline, common)) {
    choices.push_back(common);
    choices.back().in_turn = true;
  }
  if (plan.spec.schedule.name == ScheduleName::kZeroBubbleV) {
    multiply(std::array{kUnlimited, -1, 1}, [&](int32_t more, OrderRules& rules) {
      LimitFirstChunk(plan, pipeline, more, rules);
    });
  }
  if (common.groups > 1) {
    const int32_t group = (pipeline.microbatches + common.groups - 1) / common.groups;
    multiply(std::array{group, 2 * group, 0},
             [](int32_t lookahead, OrderRules& rules) { rules.lookahead = lookahead; });
    // Where tensor groups of an encoder join ranks of all stages there is no bubble to fill.
    choices.push_back(common);
    choices.back().groups = 1;
  }
  return choices;
}

OrderRules EvaluationRulesOf(const Pipeline& pipeline) {
  OrderRules rules;
  for (const Part& part : pipeline.parts) {
    rules.parts.push_back({.ahead_max = pipeline.stages - part.graph_stage});
  }
  return rules;
}

BoundOptions BoundOptionsOf(const plan::Plan& plan, const Pipeline& pipeline) {
  BoundOptions options;
  for (const Part& part : pipeline.parts) {
    const PartRule rule = RuleOf(plan, pipeline, part);
    options.weights_delayed |= rule.weights_delayed;
    options.live_activations_max.push_back(part.trains.any() ? rule.kept_max
                                                             : pipeline.microbatches);
  }
  return options;
}

}  // namespace phalanx::schedule
