// Homes of optimizer state under failure domains, against all assignments of small cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "core/plan/shares.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::Llama;
using ::testing::ElementsAre;

// Of each replica a number: its node, or its node's domain.
using NodeNumbers = std::vector<int32_t>;

// One replica a device. Without domains each node fails alone.
Plan PlanOfNodes(const NodeNumbers& nodes, const NodeNumbers& domains, int32_t copies) {
  Cluster cluster;
  for (size_t i = 0; i < nodes.size(); ++i) {
    cluster.devices.push_back({absl::StrCat("node-", nodes[i]), static_cast<int32_t>(i),
                               domains.empty() ? "" : absl::StrCat("rack-", domains[i])});
  }
  const auto dp = static_cast<int32_t>(nodes.size());
  job::JobSpec spec = AJob().Module("language", Llama(), {.dp = dp}).Batch(dp, 1);
  spec.recovery.state_copies = copies;
  return *MakePlan(spec, cluster, Epoch{1});
}

// Places in the data group, primary first, of each share.
std::vector<NodeNumbers> HomesIn(const Plan& plan) {
  std::vector<NodeNumbers> homes;
  for (const RankList& of_share : HomesOf(plan, 0, plan.DataGroups(0, 0)[0])) {
    homes.emplace_back();
    for (const Rank home : of_share) homes.back().push_back(home.value);
  }
  return homes;
}

size_t SpanOf(const NodeNumbers& homes, const NodeNumbers& of_replica) {
  std::set<int32_t> seen;
  for (const int32_t home : homes) seen.insert(of_replica[static_cast<size_t>(home)]);
  return seen.size();
}

// Shares all of whose homes are in one domain.
int32_t Together(const std::vector<NodeNumbers>& homes, const NodeNumbers& domains) {
  return static_cast<int32_t>(
      std::count_if(homes.begin(), homes.end(),
                    [&](const NodeNumbers& one) { return SpanOf(one, domains) == 1; }));
}

// How many shares each replica mirrors.
NodeNumbers LoadsOf(const std::vector<NodeNumbers>& homes) {
  NodeNumbers loads(homes.size(), 0);
  for (const NodeNumbers& one : homes) {
    for (size_t i = 1; i < one.size(); ++i) ++loads[static_cast<size_t>(one[i])];
  }
  return loads;
}

// Tries every choice of homes where all replicas mirror equally many shares, and each share has its
// homes on as many nodes as there can be.
class Search {
 public:
  Search(const NodeNumbers& nodes, const NodeNumbers& domains, int32_t copies)
      : nodes_(nodes),
        domains_(domains),
        count_(static_cast<int32_t>(nodes.size())),
        copies_(copies),
        left_(nodes.size(), copies - 1) {
    std::set<int32_t> all(nodes.begin(), nodes.end());
    apart_ = std::min(all.size(), static_cast<size_t>(copies));
  }

  // The fewest shares with all homes in one domain; -1: there is no such choice.
  int32_t Fewest() {
    least_ = count_ + 1;
    Share(0, 0);
    return least_ > count_ ? -1 : least_;
  }

 private:
  void Share(int32_t share, int32_t together) {
    if (together >= least_) return;
    if (share == count_) {
      least_ = together;
      return;
    }
    NodeNumbers homes = {share};
    Mirror(homes, 0, together);
  }
  // Mirrors ascend: in which order they are chosen says nothing.
  void Mirror(NodeNumbers& homes, int32_t from, int32_t together) {
    if (static_cast<int32_t>(homes.size()) == copies_) {
      if (SpanOf(homes, nodes_) < apart_) return;
      return Share(homes.front() + 1, together + (SpanOf(homes, domains_) == 1 ? 1 : 0));
    }
    for (int32_t at = from; at < count_; ++at) {
      int32_t& left = left_[static_cast<size_t>(at)];
      if (at == homes.front() || left == 0) continue;
      --left;
      homes.push_back(at);
      Mirror(homes, at + 1, together);
      homes.pop_back();
      ++left;
    }
  }

  const NodeNumbers &nodes_, &domains_;
  const int32_t count_, copies_;
  NodeNumbers left_;  // shares that each may still mirror
  size_t apart_ = 1;
  int32_t least_ = 0;
};

// Calls `see` with every way to part `count` replicas, numbered by first appearance.
template <typename See>
void ForEachPartition(int32_t count, See see) {
  NodeNumbers parts(static_cast<size_t>(count), 0);
  for (;;) {
    see(parts);
    size_t at = parts.size();
    while (--at > 0) {
      const int32_t most = *std::max_element(parts.begin(), parts.begin() + static_cast<int>(at));
      if (parts[at] <= most) break;
    }
    if (at == 0) return;
    ++parts[at];
    std::fill(parts.begin() + static_cast<int>(at) + 1, parts.end(), 0);
  }
}

// Domains are of whole nodes.
bool AreOfNodes(const NodeNumbers& domains, const NodeNumbers& nodes) {
  for (size_t a = 0; a < nodes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (nodes[a] == nodes[b] && domains[a] != domains[b]) return false;
    }
  }
  return true;
}

// Some replica may mirror `more` shares more than any does without domains.
void ExpectAsGoodAsWithout(const NodeNumbers& nodes, const NodeNumbers& domains, int32_t copies,
                           int32_t more = 0) {
  const std::vector<NodeNumbers> without = HomesIn(PlanOfNodes(nodes, {}, copies));
  const std::vector<NodeNumbers> homes = HomesIn(PlanOfNodes(nodes, domains, copies));
  ASSERT_EQ(homes.size(), without.size());
  for (size_t share = 0; share < homes.size(); ++share) {
    EXPECT_EQ(homes[share].front(), static_cast<int32_t>(share));
    EXPECT_EQ(std::set<int32_t>(homes[share].begin(), homes[share].end()).size(),
              homes[share].size());
    EXPECT_GE(SpanOf(homes[share], nodes), SpanOf(without[share], nodes));
  }
  const NodeNumbers loads = LoadsOf(homes), before = LoadsOf(without);
  EXPECT_LE(*std::max_element(loads.begin(), loads.end()),
            *std::max_element(before.begin(), before.end()) + more);
}

TEST(FailureDomainsTest, EveryCaseOfFewReplicas_HasAsFewSharesInOneDomainAsEvenLoadsAllow) {
  for (const int32_t copies : {2, 3}) {
    for (int32_t dp = copies; dp <= (copies == 2 ? 6 : 5); ++dp) {
      NodeNumbers nodes(static_cast<size_t>(dp));  // one a replica
      std::iota(nodes.begin(), nodes.end(), 0);
      ForEachPartition(dp, [&](const NodeNumbers& domains) {
        SCOPED_TRACE(absl::StrCat(copies, " copies, domains ", absl::StrJoin(domains, " ")));
        ExpectAsGoodAsWithout(nodes, domains, copies);
        EXPECT_EQ(Together(HomesIn(PlanOfNodes(nodes, domains, copies)), domains),
                  Search(nodes, domains, copies).Fewest());
      });
    }
  }
}

TEST(FailureDomainsTest, NodesOfSeveralReplicas_HaveNoMoreSharesInOneDomainThanEvenLoadsAllow) {
  for (const int32_t copies : {2, 3}) {
    for (int32_t dp = copies; dp <= 5; ++dp) {
      ForEachPartition(dp, [&](const NodeNumbers& nodes) {
        ForEachPartition(dp, [&](const NodeNumbers& domains) {
          if (!AreOfNodes(domains, nodes)) return;
          SCOPED_TRACE(absl::StrCat(copies, " copies, nodes ", absl::StrJoin(nodes, " "),
                                    ", domains ", absl::StrJoin(domains, " ")));
          ExpectAsGoodAsWithout(nodes, domains, copies, copies - 2);
          const int32_t fewest = Search(nodes, domains, copies).Fewest();
          if (fewest < 0) return;
          EXPECT_LE(Together(HomesIn(PlanOfNodes(nodes, domains, copies)), domains), fewest);
        });
      });
    }
  }
}

// No domain has more than half of the replicas, or of an odd number one more than that, wherever
// they are in the order.
TEST(FailureDomainsTest, ManyReplicasInAnyOrder_AreApartAndMirrorOneShareEach) {
  Prng prng(5);
  for (int round = 0; round < 200; ++round) {
    const auto dp = static_cast<int32_t>(2 + prng.Below(30));
    const auto racks = static_cast<int32_t>(2 + prng.Below(4));
    NodeNumbers nodes(static_cast<size_t>(dp)), domains;
    std::iota(nodes.begin(), nodes.end(), 0);
    NodeNumbers of_rack(static_cast<size_t>(racks), 0);
    while (domains.size() < nodes.size()) {
      const auto rack = static_cast<int32_t>(prng.Below(static_cast<uint64_t>(racks)));
      if (2 * (of_rack[static_cast<size_t>(rack)] + 1) > dp + 1) continue;
      ++of_rack[static_cast<size_t>(rack)];
      domains.push_back(rack);
    }
    const int32_t most = *std::max_element(of_rack.begin(), of_rack.end());
    SCOPED_TRACE(absl::StrJoin(domains, " "));
    const std::vector<NodeNumbers> homes = HomesIn(PlanOfNodes(nodes, domains, 2));
    EXPECT_EQ(Together(homes, domains), std::max(0, 2 * most - dp));
    for (const int32_t load : LoadsOf(homes)) EXPECT_EQ(load, 1);
  }
}

// Two racks of two nodes of two: from rack to rack, not from node to node.
TEST(FailureDomainsTest, EqualDomains_MirrorEachOther) {
  const NodeNumbers nodes = {0, 0, 1, 1, 2, 2, 3, 3}, racks = {0, 0, 0, 0, 1, 1, 1, 1};
  EXPECT_THAT(
      HomesIn(PlanOfNodes(nodes, racks, 2)),
      ElementsAre(NodeNumbers{0, 4}, NodeNumbers{1, 5}, NodeNumbers{2, 6}, NodeNumbers{3, 7},
                  NodeNumbers{4, 0}, NodeNumbers{5, 1}, NodeNumbers{6, 2}, NodeNumbers{7, 3}));
}

TEST(FailureDomainsTest, DomainOfEachNodeAlone_IsAsWithoutDomains) {
  for (int32_t dp = 2; dp <= 6; ++dp) {
    ForEachPartition(dp, [&](const NodeNumbers& nodes) {
      EXPECT_EQ(HomesIn(PlanOfNodes(nodes, nodes, 2)), HomesIn(PlanOfNodes(nodes, {}, 2)))
          << "nodes " << absl::StrJoin(nodes, " ");
    });
  }
}

// A node without a domain is one of its own, also if it has another one's name.
TEST(FailureDomainsTest, NodeWithoutADomain_FailsAlone) {
  const Plan plan = [] {
    job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 3}).Batch(3, 1);
    return *MakePlan(spec, {{{"a", 0, "b"}, {"c", 0, "b"}, {"b", 0}}}, Epoch{1});
  }();
  EXPECT_TRUE(plan.FailTogether(Rank{0}, Rank{1}));
  EXPECT_FALSE(plan.FailTogether(Rank{0}, Rank{2}));
}

TEST(FailureDomainsTest, Spare_BringsTheDomainOfItsNode) {
  const job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 2}).Batch(2, 1);
  const Plan plan =
      *MakePlan(spec, {{{"a", 0, "rack-0"}, {"b", 0, "rack-1"}, {"c", 0, "rack-2"}}}, Epoch{1});
  const Layout next = LayoutAfter(plan, {.lost = {Rank{0}}})->layout;
  EXPECT_THAT(next.nodes,
              ElementsAre(NodeDevices{"c", {0}, "rack-2"}, NodeDevices{"b", {0}, "rack-1"},
                          NodeDevices{"a", {0}, "rack-0"}));
}

TEST(FailureDomainsTest, Digest_IsAnotherOneWithDomainsAlone) {
  const NodeNumbers nodes = {0, 1, 2, 3};
  const Plan without = PlanOfNodes(nodes, {}, 2), with = PlanOfNodes(nodes, {0, 0, 1, 1}, 2);
  EXPECT_NE(without.digest, with.digest);
  EXPECT_EQ(Expand(with.spec, with.layout)->digest, with.digest);
  EXPECT_EQ(PlanOfNodes(nodes, {}, 2).digest, without.digest);
}

}  // namespace
}  // namespace phalanx::plan
