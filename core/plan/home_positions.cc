// Which replicas mirror which (HomePositionsOf of shares.h).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

// Gives each share its homes. Every replica mirrors as many shares as any other as long as there is
// a way: one that has its fill is passed over, and where only others are left, two shares exchange
// mirrors. Nodes go before that, failure domains behind it: a share whose mirror would be one too
// many in each other domain has it in the primary's.
class Mirrors {
 public:
  Mirrors(const Plan& plan, const RankList& group, size_t copies)
      : plan_(plan),
        group_(group),
        count_(group.size()),
        fill_(std::min(copies, count_) - (count_ > 0 ? 1 : 0)),
        load_(count_, 0),
        open_(count_) {
    std::iota(open_.begin(), open_.end(), size_t{0});
    run_ = RunsOf(Where::kNewNode);
    stride_ = StrideOf(run_);
    std::set<absl::string_view> nodes;
    for (size_t i = 0; i < count_ && nodes.size() < copies; i += run_[i]) nodes.insert(node(i));
    nodes_ = nodes.size();
    CountDomains(copies);
    homes_.copies = std::min(copies, count_);
    homes_.all.assign(count_ * homes_.copies, -1);
  }

  HomePositions Choose() {
    for (size_t primary = 0; primary < count_; ++primary) Set(primary, 0, primary);
    if (domains_ < 2) {
      for (size_t primary = 0; primary < count_; ++primary) {
        for (size_t copy = 1; copy < homes_.copies; ++copy) AddMirror(primary, copy);
      }
      return std::move(homes_);
    }
    // The first mirrors of all shares before any second one, and of these first those of shares
    // with all homes in one domain: others could take the last place in another one. Everybody
    // mirrors one share more each time.
    for (size_t copy = 1; copy < homes_.copies; ++copy) {
      fill_ = copy;
      for (size_t at = 0; at < count_; ++at) open_[at] = load_[at] >= fill_ ? at + 1 : at;
      std::vector<size_t> apart;
      for (size_t primary = 0; primary < count_; ++primary) {
        if (AreInOneDomain(primary, copy)) {
          AddMirror(primary, copy);
        } else {
          apart.push_back(primary);
        }
      }
      for (const size_t primary : apart) AddMirror(primary, copy);
    }
    return std::move(homes_);
  }

 private:
  // Best first: in a failure domain that has no home of the share, on a node that has none, on
  // another than the primary's, anywhere.
  enum class Where : uint8_t { kNewDomain, kNewNode, kNotBeside, kAnywhere };
  // Replicas or shares that are looked at for one home, so that planning stays linear.
  static constexpr int kLookedMax = 512;

  const NodeName& node(size_t replica) const { return plan_.NodeOf(group_[replica]); }
  const std::string& domain(size_t replica) const { return plan_.EntryOf(group_[replica]).domain; }
  // Whether one of them is no new place for what the other has.
  bool AreTogether(size_t a, size_t b, Where where) const {
    return where == Where::kNewDomain ? plan_.FailTogether(group_[a], group_[b])
                                      : node(a) == node(b);
  }

  // Of each replica how many from it on are together with it; `count_`: all of them.
  std::vector<size_t> RunsOf(Where where) const {
    std::vector<size_t> run(count_, count_);
    for (size_t i = 2 * count_; i-- > 0;) {
      const size_t at = i % count_, next = (at + 1) % count_;
      run[at] = AreTogether(at, next, where) ? std::min(run[next] + 1, count_) : 1;
    }
    return run;
  }
  // As far on as what is together reaches, so that where nodes, or domains, are equally large each
  // mirror has one primary.
  size_t StrideOf(const std::vector<size_t>& run) const {
    const size_t longest = count_ == 0 ? 0 : *std::max_element(run.begin(), run.end());
    return longest < count_ ? longest : 1;
  }
  // Where no node has a domain nothing is looked at: nodes say as much.
  void CountDomains(size_t copies) {
    bool any = false;
    for (size_t i = 0; i < count_ && !any; i += run_[i]) any = !domain(i).empty();
    if (!any) return;
    domain_run_ = RunsOf(Where::kNewDomain);
    domain_stride_ = StrideOf(domain_run_);
    std::set<std::pair<bool, absl::string_view>> domains;  // whether it is that of its node alone
    for (size_t i = 0; i < count_ && domains.size() < copies; i += domain_run_[i]) {
      const bool alone = domain(i).empty();
      domains.emplace(alone, alone ? node(i) : domain(i));
    }
    domains_ = domains.size();
  }
  size_t Home(size_t primary, size_t copy) const {
    return static_cast<size_t>(homes_.all[primary * homes_.copies + copy]);
  }
  // How many homes a share has so far.
  size_t Chosen(size_t primary) const {
    const auto first = homes_.all.begin() + static_cast<std::ptrdiff_t>(primary * homes_.copies);
    const auto end = first + static_cast<std::ptrdiff_t>(homes_.copies);
    return static_cast<size_t>(std::find(first, end, -1) - first);
  }
  bool AreInOneDomain(size_t primary, size_t copies) const {
    for (size_t copy = 1; copy < copies; ++copy) {
      if (!AreTogether(primary, Home(primary, copy), Where::kNewDomain)) return false;
    }
    return true;
  }
  void Set(size_t primary, size_t copy, size_t home) {
    homes_.all[primary * homes_.copies + copy] = static_cast<int32_t>(home);
  }

  // Why `at` cannot be a home of the share whose homes are the first `copies` but for `but`.
  enum class Bar : uint8_t { kNone, kItself, kTogether };
  Bar BarOf(size_t at, size_t primary, size_t copies, size_t but, Where where) const {
    if (where == Where::kNotBeside && node(primary) == node(at)) return Bar::kTogether;
    Bar bar = Bar::kNone;
    for (size_t copy = 0; copy < copies; ++copy) {
      if (copy == but) continue;
      const size_t home = Home(primary, copy);
      if (where <= Where::kNewNode && AreTogether(home, at, where)) return Bar::kTogether;
      if (home == at) bar = Bar::kItself;
    }
    return bar;
  }
  bool MayBe(size_t at, size_t primary, size_t copies, size_t but, Where where) const {
    return BarOf(at, primary, copies, but, where) == Bar::kNone;
  }

  // The first from `from` on, going round, that has not its fill; `count_`: all have.
  size_t FirstOpen(size_t from) {
    const size_t at = FirstOpenBefore(from, count_);
    return at < count_ ? at : FirstOpenBefore(0, from);
  }
  // `end`: none.
  size_t FirstOpenBefore(size_t from, size_t end) {
    size_t at = from;
    while (at < count_ && open_[at] != at) at = open_[at];
    for (size_t i = from; i < at;) i = std::exchange(open_[i], at);
    return at < end ? at : count_;
  }
  void Load(size_t at) {
    if (++load_[at] >= fill_) open_[at] = at + 1;
  }

  // How many replicas from `at` on are barred with it.
  size_t Run(size_t at, Bar bar, Where where) const {
    if (bar != Bar::kTogether) return 1;
    return where == Where::kNewDomain ? domain_run_[at] : run_[at];
  }

  // The first from `from` on that may be the share's next home and has not its fill. Whole runs of
  // replicas that share a node, or a domain, are passed over.
  size_t FindOpen(size_t primary, size_t copy, size_t from, Where where) {
    size_t step = 0;  // how far it has gone round
    for (int looked = 0; step < count_ && looked < kLookedMax; ++looked) {
      const size_t at = FirstOpen((from + step) % count_);
      if (at == count_) break;
      const size_t way = (at + count_ - from % count_) % count_;
      if (way < step) break;  // once round
      const Bar bar = BarOf(at, primary, copy, copy, where);
      if (bar == Bar::kNone) return at;
      step = way + Run(at, bar, where);
    }
    return count_;
  }
  // How good a home is where it is.
  Where WhereIs(size_t primary, size_t copy) const {
    const size_t home = Home(primary, copy);
    for (const Where where : {Where::kNewDomain, Where::kNewNode}) {
      if (where == Where::kNewDomain && domains_ < 2) continue;
      if (MayBe(home, primary, Chosen(primary), copy, where)) return where;
    }
    return node(home) != node(primary) ? Where::kNotBeside : Where::kAnywhere;
  }
  // Of another share, the nearest before this one: its mirror becomes this one's, and it gets one
  // as good, or as good as `enough`, that has not its fill. The new home; `count_`: there is no
  // such share.
  size_t Exchange(size_t primary, size_t copy, Where where, Where enough) {
    const size_t free = FirstOpen(0);
    if (free == count_) return count_;
    for (size_t back = 1; back < std::min<size_t>(count_, kLookedMax + 1); ++back) {
      const size_t other = (primary + count_ - back) % count_, chosen = Chosen(other);
      for (size_t i = 1; i < chosen; ++i) {
        const size_t mirror = Home(other, i);
        if (!MayBe(mirror, primary, copy, copy, where) ||
            !MayBe(free, other, chosen, i, std::max(WhereIs(other, i), enough))) {
          continue;
        }
        Set(other, i, free);
        Load(free);
        return mirror;
      }
    }
    return count_;
  }
  // Though all have their fill: of the first that may be it one that mirrors least.
  size_t FindLeast(size_t primary, size_t copy, size_t from, Where where) const {
    size_t least = count_;
    int looked = 0;
    for (size_t step = 0; step < count_ && looked < kLookedMax;) {
      const size_t at = (from + step) % count_;
      const Bar bar = BarOf(at, primary, copy, copy, where);
      step += Run(at, bar, where);
      if (bar != Bar::kNone) continue;
      ++looked;
      if (least == count_ || load_[at] < load_[least]) least = at;
    }
    return least;
  }

  bool MayHaveNewDomain(size_t primary, size_t copy) const {
    return domains_ > 1 && (copy < domains_ || AreInOneDomain(primary, copy));
  }
  void AddMirror(size_t primary, size_t copy) {
    for (const Where where :
         {Where::kNewDomain, Where::kNewNode, Where::kNotBeside, Where::kAnywhere}) {
      if (where == Where::kNewDomain && !MayHaveNewDomain(primary, copy)) continue;
      if (where == Where::kNewNode && copy >= nodes_) continue;
      if (where == Where::kNotBeside && nodes_ == 1) continue;
      const size_t stride = where == Where::kNewDomain ? domain_stride_ : stride_;
      const size_t from = primary + (where <= Where::kNewNode ? copy : 1) * stride;
      size_t at = FindOpen(primary, copy, from, where);
      if (at < count_) {
        Load(at);
        return Set(primary, copy, at);
      }
      at = Exchange(primary, copy, where, Where::kNewDomain);
      if (at == count_ && where != Where::kNewDomain && domains_ > 1)
        at = Exchange(primary, copy, where, Where::kNewNode);
      if (at == count_ && where != Where::kNewDomain) {
        at = FindLeast(primary, copy, from, where);
        if (at < count_) ++load_[at];
      }
      if (at < count_) return Set(primary, copy, at);
    }
  }

  const Plan& plan_;
  const RankList& group_;
  const size_t count_;
  size_t fill_;                     // mirrors of a replica where all have equally many so far
  std::vector<size_t> run_;         // of each replica
  size_t stride_ = 1, nodes_ = 0;   // nodes: at most as many as copies
  std::vector<size_t> domain_run_;  // the same of failure domains; where no node has one: empty, 0
  size_t domain_stride_ = 1, domains_ = 0;
  std::vector<size_t> load_;  // mirrors of each replica
  std::vector<size_t> open_;  // itself, or one behind it, before which all have their fill
  HomePositions homes_;
};

}  // namespace

HomePositions HomePositionsOf(const Plan& plan, int32_t module, const RankList& group) {
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module)];
  const auto copies =
      IsMirrored(plan, module) ? static_cast<size_t>(layout.state_copies) : size_t{1};
  return Mirrors(plan, group, copies).Choose();
}

}  // namespace phalanx::plan
