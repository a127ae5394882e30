#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/plan/plan.h"

namespace phalanx::plan {
namespace {

using Use = CommunicatorSpec::Use;

// Ranks with work in some module, ascending.
RankList RanksAtWork(const Plan& plan) {
  std::vector<bool> used(static_cast<size_t>(plan.world), false);
  for (const ModulePlan& module : plan.modules) {
    const ReplicaTable& replicas = module.replicas;
    for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
      if (!replicas.Present(dp)) continue;
      for (int32_t pp = 0; pp < replicas.stages(); ++pp) {
        for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
          for (int32_t tp = 0; tp < replicas.Width(dp, pp); ++tp) {
            used[static_cast<size_t>(replicas.At(dp, pp, cp, tp).value)] = true;
          }
        }
      }
    }
  }
  RankList ranks;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    if (used[static_cast<size_t>(rank)]) ranks.push_back(Rank{rank});
  }
  return ranks;
}

// Ranks of one stage over all present replicas.
void InsertStage(const Plan& plan, const PartId& part, std::set<Rank>* ranks) {
  const ReplicaTable& replicas = plan.replicas(part.module);
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    if (!replicas.Present(dp)) continue;
    for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
      const RankList group = replicas.Ranks(dp, part.stage, cp);
      ranks->insert(group.begin(), group.end());
    }
  }
}

// Every rank that can be an end of a link's message.
RankList RanksOfLinks(const Plan& plan) {
  std::set<Rank> ranks;
  for (const Link& link : plan.links) {
    InsertStage(plan, link.from, &ranks);
    InsertStage(plan, link.to, &ranks);
  }
  return {ranks.begin(), ranks.end()};
}

class Collector {
 public:
  void Add(Use use, std::string name, int32_t module, RankList ranks) {
    if (ranks.size() < 2) return;
    if (!seen_.insert({use, ranks}).second) return;
    specs_.push_back({use, std::move(name), module, std::move(ranks)});
  }
  std::vector<CommunicatorSpec> Take() && { return std::move(specs_); }

 private:
  std::set<std::pair<Use, RankList>> seen_;
  std::vector<CommunicatorSpec> specs_;
};

}  // namespace

const char* OperationName(CommunicatorOperation operation) {
  switch (operation) {
    case CommunicatorOperation::kAllReduce:
      return "all-reduce";
    case CommunicatorOperation::kReduceScatter:
      return "reduce-scatter";
    case CommunicatorOperation::kAllGather:
      return "all-gather";
    case CommunicatorOperation::kExchange:
      return "exchange";
  }
  return "operation";
}

std::vector<CommunicatorSpec> Communicators(const Plan& plan) {
  Collector all;
  all.Add(Use::kControl, "control", -1, RanksAtWork(plan));
  const RankList ends = RanksOfLinks(plan);
  all.Add(Use::kForward, "forward", -1, ends);
  all.Add(Use::kBackward, "backward", -1, ends);
  for (const ModulePlan& module : plan.modules) {
    const ReplicaTable& replicas = module.replicas;
    const std::string& name = plan.module_spec(module.index).name;
    int32_t number = 0;
    for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
      if (!replicas.Present(dp)) continue;
      for (int32_t pp = 0; pp < replicas.stages(); ++pp) {
        for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
          all.Add(Use::kTensor, absl::StrCat(name, ".tp[", number++, "]"), module.index,
                  plan.TensorGroup(module.index, dp, pp, cp));
        }
      }
    }
    number = 0;
    for (int32_t pp = 0; pp < replicas.stages(); ++pp) {
      for (RankList& group : plan.DataGroups(module.index, pp)) {
        all.Add(Use::kData, absl::StrCat(name, ".dp[", number++, "]"), module.index,
                std::move(group));
      }
    }
  }
  return std::move(all).Take();
}

int32_t FindCommunicator(const std::vector<CommunicatorSpec>& communicators,
                         CommunicatorSpec::Use use, const RankList& ranks) {
  for (size_t i = 0; i < communicators.size(); ++i) {
    if (communicators[i].use == use && communicators[i].ranks == ranks)
      return static_cast<int32_t>(i);
  }
  return -1;
}

}  // namespace phalanx::plan
