// Which replicas mirror which (HomePositionsOf of shares.h).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

// Gives each share its homes. Every replica mirrors as many shares as any other as long as there is
// a way: one that has its fill is passed over, and where only others are left, two shares exchange
// mirrors.
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
    // Of each replica how many from it on share its node; `count_`: all of them.
    run_.assign(count_, count_);
    for (size_t i = 2 * count_; i-- > 0;) {
      const size_t at = i % count_, next = (at + 1) % count_;
      run_[at] = node(at) != node(next) ? 1 : std::min(run_[next] + 1, count_);
    }
    // As far on as a node reaches, so that where nodes are equally large each mirror has one
    // primary.
    const size_t longest = count_ == 0 ? 0 : *std::max_element(run_.begin(), run_.end());
    stride_ = longest < count_ ? longest : 1;
    std::set<absl::string_view> nodes;
    for (size_t i = 0; i < count_ && nodes.size() < copies; i += run_[i]) nodes.insert(node(i));
    nodes_ = nodes.size();
    homes_.copies = std::min(copies, count_);
    homes_.all.assign(count_ * homes_.copies, -1);
  }

  HomePositions Choose() {
    for (size_t primary = 0; primary < count_; ++primary) {
      Set(primary, 0, primary);
      for (size_t copy = 1; copy < homes_.copies; ++copy) AddMirror(primary, copy);
    }
    return std::move(homes_);
  }

 private:
  // Best first: on a node that has no home of the share, on another than the primary's, anywhere.
  enum class Where : uint8_t { kNewNode, kNotBeside, kAnywhere };
  // Replicas or shares that are looked at for one home, so that planning stays linear.
  static constexpr int kLookedMax = 512;

  const NodeName& node(size_t replica) const { return plan_.NodeOf(group_[replica]); }
  size_t Home(size_t primary, size_t copy) const {
    return static_cast<size_t>(homes_.all[primary * homes_.copies + copy]);
  }
  void Set(size_t primary, size_t copy, size_t home) {
    homes_.all[primary * homes_.copies + copy] = static_cast<int32_t>(home);
  }

  // Why `at` cannot be a home of the share whose homes are the first `copies` but for `but`.
  enum class Bar : uint8_t { kNone, kItself, kNode };
  Bar BarOf(size_t at, size_t primary, size_t copies, size_t but, Where where) const {
    if (where == Where::kNotBeside && node(primary) == node(at)) return Bar::kNode;
    Bar bar = Bar::kNone;
    for (size_t copy = 0; copy < copies; ++copy) {
      if (copy == but) continue;
      const size_t home = Home(primary, copy);
      if (where == Where::kNewNode && node(home) == node(at)) return Bar::kNode;
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

  // The first from `from` on that may be the share's next home and has not its fill. Whole runs of
  // replicas that share a node are passed over.
  size_t FindOpen(size_t primary, size_t copy, size_t from, Where where) {
    size_t step = 0;  // how far it has gone round
    for (int looked = 0; step < count_ && looked < kLookedMax; ++looked) {
      const size_t at = FirstOpen((from + step) % count_);
      if (at == count_) break;
      const size_t way = (at + count_ - from % count_) % count_;
      if (way < step) break;  // once round
      const Bar bar = BarOf(at, primary, copy, copy, where);
      if (bar == Bar::kNone) return at;
      step = way + (bar == Bar::kNode ? run_[at] : 1);
    }
    return count_;
  }
  // How good a home is where it is.
  Where WhereIs(size_t primary, size_t copy) const {
    const size_t home = Home(primary, copy);
    if (MayBe(home, primary, homes_.copies, copy, Where::kNewNode)) return Where::kNewNode;
    return node(home) != node(primary) ? Where::kNotBeside : Where::kAnywhere;
  }
  // Of a share before this one: its mirror becomes this one's, and it gets one as good that has not
  // its fill. The new home; `count_`: there is no such share.
  size_t Exchange(size_t primary, size_t copy, Where where) {
    const size_t free = FirstOpen(0);
    if (free == count_) return count_;
    const size_t first = primary > kLookedMax ? primary - kLookedMax : 0;
    for (size_t other = primary; other-- > first;) {
      for (size_t i = 1; i < homes_.copies; ++i) {
        const size_t mirror = Home(other, i);
        if (!MayBe(mirror, primary, copy, copy, where) ||
            !MayBe(free, other, homes_.copies, i, WhereIs(other, i))) {
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
      step += bar == Bar::kNode ? run_[at] : 1;
      if (bar != Bar::kNone) continue;
      ++looked;
      if (least == count_ || load_[at] < load_[least]) least = at;
    }
    return least;
  }

  void AddMirror(size_t primary, size_t copy) {
    for (const Where where : {Where::kNewNode, Where::kNotBeside, Where::kAnywhere}) {
      if (where == Where::kNewNode && copy >= nodes_) continue;
      if (where == Where::kNotBeside && nodes_ == 1) continue;
      const size_t from = primary + (where == Where::kNewNode ? copy : 1) * stride_;
      size_t at = FindOpen(primary, copy, from, where);
      if (at < count_) {
        Load(at);
        return Set(primary, copy, at);
      }
      at = Exchange(primary, copy, where);
      if (at == count_) {
        at = FindLeast(primary, copy, from, where);
        if (at < count_) ++load_[at];
      }
      if (at < count_) return Set(primary, copy, at);
    }
  }

  const Plan& plan_;
  const RankList& group_;
  const size_t count_;
  const size_t fill_;              // mirrors of a replica where all have equally many
  std::vector<size_t> run_;        // of each replica
  size_t stride_ = 1, nodes_ = 0;  // nodes: at most as many as copies
  std::vector<size_t> load_;       // mirrors of each replica
  std::vector<size_t> open_;       // itself, or one behind it, before which all have their fill
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
