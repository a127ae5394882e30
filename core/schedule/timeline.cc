#include "core/schedule/timeline.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

#include "core/plan/check.h"
#include "core/plan/units.h"

namespace phalanx::schedule {
namespace {

constexpr int64_t kNever = -1;
constexpr size_t kKinds = 3;

constexpr size_t IndexOf(PassKind kind) { return static_cast<size_t>(kind); }

// Of passes that could start at the same time on the same ranks the first of these goes first.
enum class Tier : uint8_t {
  kEager,  // a forward, under forwards_first
  kBackward,
  kWanted,  // a forward of a phased part
  kForward,
  kFillForward,  // from here on: passes that fill
  kFillBackward,
  kFillWeight,
};

// When all crews of a part have run a pass of one microbatch.
struct Production {
  int64_t time = 0;
  int32_t missing = 0;  // crews
};

class ListScheduler {
 public:
  ListScheduler(const Pipeline& pipeline, const OrderRules& rules,
                const std::vector<TickCost>& costs)
      : pipeline_(pipeline),
        rules_(rules),
        costs_(costs),
        microbatches_(pipeline.microbatches),
        groups_(std::clamp(rules.groups, 1, std::max(1, pipeline.microbatches))),
        class_free_(pipeline.classes.size(), 0),
        crews_of_class_(pipeline.classes.size()),
        kept_(pipeline.crews.size(), 0),
        done_of_crew_(pipeline.crews.size()) {
    for (size_t k = 0; k < pipeline.crews.size(); ++k) {
      for (int32_t c : pipeline.crews[k].classes) {
        crews_of_class_[static_cast<size_t>(c)].push_back(static_cast<int32_t>(k));
      }
      first_slot_.push_back(slots_.size());
      const Crew& crew = pipeline.crews[k];
      const int32_t chunks = pipeline.chunks[static_cast<size_t>(crew.module)];
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        slots_.push_back({.crew = static_cast<int32_t>(k),
                          .part = pipeline.PartAt(crew.module, crew.stage, chunk)});
      }
    }
    first_slot_.push_back(slots_.size());
    for (const Part& part : pipeline.parts) {
      const Production none = {.missing = static_cast<int32_t>(part.crews.size())};
      forward_done_.emplace_back(static_cast<size_t>(microbatches_), none);
      backward_done_.emplace_back(static_cast<size_t>(microbatches_), none);
      forwards_of_part_.push_back(0);
    }
  }

  Timeline Run() {
    const size_t total = CountPasses();
    timeline_.passes.reserve(total);
    timeline_.part_end.resize(pipeline_.parts.size());
    for (size_t slot = 0; slot < slots_.size(); ++slot) OfferAll(slot);
    while (!offers_.empty()) {
      const Offer offer = offers_.top();
      offers_.pop();
      Slot& slot = slots_[offer.slot];
      Offered& latest = slot.offered[IndexOf(offer.kind)];
      if (latest.microbatch != offer.microbatch || latest.begin != offer.begin ||
          latest.tier != offer.tier) {
        continue;  // offered again since
      }
      latest = {};
      Offer now;
      if (!MakeOffer(offer.slot, offer.kind, now)) continue;  // no longer allowed
      if (now.begin > offer.begin || now.tier != offer.tier) {
        Push(now);
      } else if (now.tier < Tier::kFillForward || !IsAnotherDue(now)) {
        Place(now);
      }
    }
    PHALANX_CHECK(timeline_.passes.size() == total, "the rules of the parts contradict each other");
    OrderMessages();
    for (int64_t end : class_free_) timeline_.end = std::max(timeline_.end, end);
    return std::move(timeline_);
  }

 private:
  struct Offered {
    int32_t microbatch = -1;
    int64_t begin = kNever;
    Tier tier = Tier::kBackward;
  };
  // A part on one of its crews: passes done so far, and what was offered last.
  struct Slot {
    int32_t crew = 0, part = 0;
    std::array<int32_t, kKinds> done = {};
    std::array<Offered, kKinds> offered = {};
  };
  struct Offer {
    int64_t begin = 0;
    Tier tier = Tier::kBackward;
    int64_t key = 0;  // among chunks of a stage
    int32_t microbatch = 0;
    size_t slot = 0;
    PassKind kind = PassKind::kForward;
    auto Order() const { return std::tuple(begin, tier, key, microbatch, slot, kind); }
    // The queue gives the largest: what comes first.
    bool operator<(const Offer& other) const { return Order() > other.Order(); }
  };

  const Part& PartOf(int32_t part) const { return pipeline_.parts[static_cast<size_t>(part)]; }
  const PartRule& RuleOf(int32_t part) const { return rules_.parts[static_cast<size_t>(part)]; }
  int64_t Length(int32_t part, PassKind kind) const {
    const TickCost& cost = costs_[static_cast<size_t>(part)];
    return kind == PassKind::kForward         ? cost.forward
           : kind == PassKind::kBackwardInput ? cost.backward_input
                                              : cost.backward_weight;
  }

  size_t CountPasses() const {
    size_t count = 0;
    for (const Slot& slot : slots_) {
      const plan::Trains& trains = PartOf(slot.part).trains;
      count += (1 + (trains.any() ? 1 : 0) + (trains.weights ? 1 : 0)) *
               static_cast<size_t>(microbatches_);
    }
    return count;
  }

  // First and last microbatch of a group of phased parts, and the group of a microbatch.
  int32_t GroupFirst(int32_t group) const {
    return static_cast<int32_t>(plan::EvenSplit(microbatches_, groups_, group).first);
  }
  int32_t GroupLast(int32_t group) const {
    return static_cast<int32_t>(plan::EvenSplit(microbatches_, groups_, group).end()) - 1;
  }
  int32_t GroupOf(int32_t microbatch) const {
    return static_cast<int32_t>(plan::SplitIndexOf(microbatches_, groups_, microbatch));
  }
  bool IsWanted(int32_t microbatch) const {
    const int32_t first = GroupFirst(GroupOf(microbatch));
    const int32_t forwards = forwards_of_part_[static_cast<size_t>(rules_.pace_part)];
    return first == 0 || forwards >= first - rules_.lookahead;
  }

  int64_t EarliestOf(int32_t crew, int64_t ready) const {
    for (int32_t c : pipeline_.crews[static_cast<size_t>(crew)].classes) {
      ready = std::max(ready, class_free_[static_cast<size_t>(c)]);
    }
    return ready;
  }

  // Whether the rules let the next pass run, whenever its data is there.
  bool IsAllowed(const Slot& slot, PassKind kind) const {
    const PartRule& rule = RuleOf(slot.part);
    const Part& part = PartOf(slot.part);
    const auto& [forwards, backwards, weights] = slot.done;
    if (rules_.in_turn && pipeline_.chunks[static_cast<size_t>(part.module)] > 1) {
      return IsInTurn(slot, kind);
    }
    switch (kind) {
      case PassKind::kForward: {
        if (forwards == microbatches_) return false;
        if (!part.trains.any()) return forwards < FreedByConsumers(part) + rule.ahead_max;
        const int32_t behind = pipeline_.chunks[static_cast<size_t>(part.module)] - 1 - part.chunk;
        return forwards - backwards < rule.ahead_max &&
               kept_[static_cast<size_t>(slot.crew)] + behind < rule.kept_max;
      }
      case PassKind::kBackwardInput:
        if (!part.trains.any() || backwards == forwards) return false;
        return !rule.alternates || forwards >= std::min(backwards + rule.ahead_max, microbatches_);
      case PassKind::kBackwardWeight:
        return part.trains.weights && weights < backwards;
    }
    return false;
  }
  // See OrderRules::in_turn.
  bool IsInTurn(const Slot& slot, PassKind kind) const {
    const Part& part = PartOf(slot.part);
    const int32_t chunks = pipeline_.chunks[static_cast<size_t>(part.module)];
    const auto stages = static_cast<int32_t>(StagesOf(part.module));
    const int32_t rounds = RoundsOf(part.module);
    const int32_t total = microbatches_ * chunks;
    const auto longest = static_cast<int32_t>(plan::EvenSplit(microbatches_, rounds, 0).count);
    const int32_t first = std::min(total, 2 * (stages - 1 - part.stage) + (chunks - 1) * longest);
    const auto& [forwards, backwards, weights] = done_of_crew_[static_cast<size_t>(slot.crew)];
    const bool forward = forwards < total && forwards - first <= backwards;
    if (forward != (kind == PassKind::kForward)) return false;
    // A round goes through all chunks, so the number of passes done says where the next one is.
    const int32_t done = forward ? forwards : backwards;
    if (done == total) return false;
    const plan::UnitRange round = plan::EvenSplit(
        microbatches_, rounds, plan::SplitIndexOf(microbatches_, rounds, done / chunks));
    const auto turn = static_cast<int32_t>((done - round.first * chunks) / round.count);
    if (part.chunk != (forward ? turn : chunks - 1 - turn)) return false;
    return forward || slot.done[IndexOf(kind)] < slot.done[IndexOf(PassKind::kForward)];
  }
  int32_t FreedByConsumers(const Part& part) const {
    int32_t freed = microbatches_;
    for (int32_t other : part.downstream) {
      freed = std::min(freed, forwards_of_part_[static_cast<size_t>(other)]);
    }
    return freed;
  }

  // When the data of a pass is there, or kNever while a part before it has no time yet.
  int64_t DataReady(const Slot& slot, PassKind kind, int32_t microbatch) const {
    if (kind == PassKind::kBackwardWeight) return 0;  // on its own ranks
    const bool backward = kind == PassKind::kBackwardInput;
    const bool phased = backward && RuleOf(slot.part).phased;
    const Part& part = PartOf(slot.part);
    const auto& done = backward ? backward_done_ : forward_done_;
    int64_t ready = 0;
    for (int32_t other : backward ? part.downstream : part.upstream) {
      const bool whole_group = phased && !RuleOf(other).phased;
      const int32_t wanted = whole_group ? GroupLast(GroupOf(microbatch)) : microbatch;
      const Production& made = done[static_cast<size_t>(other)][static_cast<size_t>(wanted)];
      if (made.missing > 0) return kNever;
      ready = std::max(ready, made.time);
    }
    return ready;
  }

  Tier TierOf(const Slot& slot, PassKind kind, int32_t microbatch) const {
    if (kind == PassKind::kBackwardWeight) return Tier::kFillWeight;
    const bool phased = RuleOf(slot.part).phased;
    if (kind == PassKind::kBackwardInput) return phased ? Tier::kFillBackward : Tier::kBackward;
    if (!phased) {
      const auto module = static_cast<size_t>(PartOf(slot.part).module);
      return rules_.forwards_first && pipeline_.chunks[module] > 1 ? Tier::kEager : Tier::kForward;
    }
    return IsWanted(microbatch) ? Tier::kWanted : Tier::kFillForward;
  }

  int64_t KeyOf(const Slot& slot, PassKind kind, int32_t microbatch) const {
    const Part& part = PartOf(slot.part);
    const int32_t chunks = pipeline_.chunks[static_cast<size_t>(part.module)];
    if (chunks == 1) return 0;
    const bool forward = kind == PassKind::kForward;
    if (rules_.chunk_order == ChunkOrder::kDeepest) return forward ? chunks - part.chunk : 0;
    return plan::SplitIndexOf(microbatches_, RoundsOf(part.module), microbatch) * chunks +
           (forward ? part.chunk : chunks - 1 - part.chunk);
  }
  // Rounds of at least as many microbatches as there are stages, so that the first one is through
  // the last stage when the first stage asks for it again.
  int32_t RoundsOf(int32_t module) const {
    return std::max(1, microbatches_ / static_cast<int32_t>(StagesOf(module)));
  }
  size_t StagesOf(int32_t module) const {
    const auto m = static_cast<size_t>(module);
    const auto first = static_cast<size_t>(pipeline_.first_part[m]);
    const size_t end = m + 1 < pipeline_.first_part.size()
                           ? static_cast<size_t>(pipeline_.first_part[m + 1])
                           : pipeline_.parts.size();
    return (end - first) / static_cast<size_t>(pipeline_.chunks[m]);
  }

  // The next pass of a kind, if it may run and its data has a time.
  bool MakeOffer(size_t index, PassKind kind, Offer& offer) const {
    const Slot& slot = slots_[index];
    if (!IsAllowed(slot, kind)) return false;
    const int32_t microbatch = slot.done[IndexOf(kind)];
    const int64_t ready = DataReady(slot, kind, microbatch);
    if (ready == kNever) return false;
    offer = {.begin = std::max(now_, EarliestOf(slot.crew, ready)),
             .tier = TierOf(slot, kind, microbatch),
             .key = KeyOf(slot, kind, microbatch),
             .microbatch = microbatch,
             .slot = index,
             .kind = kind};
    return true;
  }

  void Push(const Offer& offer) {
    Offered& latest = slots_[offer.slot].offered[IndexOf(offer.kind)];
    const Offered now = {offer.microbatch, offer.begin, offer.tier};
    if (latest.microbatch == now.microbatch && latest.begin == now.begin &&
        latest.tier == now.tier) {
      return;
    }
    latest = now;
    offers_.push(offer);
  }
  void OfferNext(size_t slot, PassKind kind) {
    Offer offer;
    if (MakeOffer(slot, kind, offer)) Push(offer);
  }
  void OfferAll(size_t slot) {
    OfferNext(slot, PassKind::kForward);
    OfferNext(slot, PassKind::kBackwardInput);
    if (RuleOf(slots_[slot].part).weights_delayed) OfferNext(slot, PassKind::kBackwardWeight);
  }
  void OfferPart(int32_t part, PassKind kind) {
    for (int32_t crew : PartOf(part).crews) {
      OfferNext(first_slot_[static_cast<size_t>(crew)] + static_cast<size_t>(PartOf(part).chunk),
                kind);
    }
  }

  // Whether a pass that does not fill wants some of the same ranks so soon that `filler` waits for
  // it. When that one has its place, the filler is offered again.
  bool IsAnotherDue(const Offer& filler) const {
    const Slot& slot = slots_[filler.slot];
    int64_t length = Length(slot.part, filler.kind);
    if (filler.kind == PassKind::kBackwardInput && PartOf(slot.part).trains.weights) {
      length += Length(slot.part, PassKind::kBackwardWeight);
    }
    const int64_t until = filler.begin + length * rules_.patience_percent / 100;
    for (int32_t c : pipeline_.crews[static_cast<size_t>(slot.crew)].classes) {
      for (int32_t crew : crews_of_class_[static_cast<size_t>(c)]) {
        const auto k = static_cast<size_t>(crew);
        for (size_t other = first_slot_[k]; other < first_slot_[k + 1]; ++other) {
          for (PassKind kind : {PassKind::kForward, PassKind::kBackwardInput}) {
            Offer due;
            if (!MakeOffer(other, kind, due)) continue;
            if (due.tier < Tier::kFillForward && due.begin < until) return true;
          }
        }
      }
    }
    return false;
  }

  // Puts the pass on its ranks; returns its end.
  int64_t Run(Slot& slot, PassKind kind, int64_t begin) {
    const int32_t microbatch = slot.done[IndexOf(kind)]++;
    ++done_of_crew_[static_cast<size_t>(slot.crew)][IndexOf(kind)];
    const int64_t end = begin + Length(slot.part, kind);
    timeline_.passes.push_back({slot.part, slot.crew, kind, microbatch, begin});
    int64_t& part_end = timeline_.part_end[static_cast<size_t>(slot.part)];
    part_end = std::max(part_end, end);
    for (int32_t c : pipeline_.crews[static_cast<size_t>(slot.crew)].classes) {
      class_free_[static_cast<size_t>(c)] = end;
    }
    return end;
  }

  // Writes down what one crew has made; when it is the last one the messages can leave.
  void Produce(const Slot& slot, bool backward, int32_t microbatch, int64_t time) {
    const auto p = static_cast<size_t>(slot.part);
    Production& made =
        (backward ? backward_done_ : forward_done_)[p][static_cast<size_t>(microbatch)];
    made.time = std::max(made.time, time);
    if (--made.missing > 0) return;
    if (!backward) ++forwards_of_part_[p];
    for (int32_t link : backward ? PartOf(slot.part).links_in : PartOf(slot.part).links_out) {
      if (backward && !pipeline_.links[static_cast<size_t>(link)].gradients) continue;
      timeline_.messages.push_back({made.time, link, backward, microbatch});
    }
  }

  void Place(const Offer& offer) {
    Slot& slot = slots_[offer.slot];
    const Part& part = PartOf(slot.part);
    int32_t& kept = kept_[static_cast<size_t>(slot.crew)];
    now_ = offer.begin;
    const int64_t end = Run(slot, offer.kind, offer.begin);
    switch (offer.kind) {
      case PassKind::kForward:
        if (part.trains.any()) ++kept;
        Produce(slot, false, offer.microbatch, end);
        for (int32_t other : part.downstream) OfferPart(other, PassKind::kForward);
        for (int32_t other : part.upstream) {
          if (!PartOf(other).trains.any()) OfferPart(other, PassKind::kForward);
        }
        if (slot.part == rules_.pace_part) OfferPhased();
        break;
      case PassKind::kBackwardInput:
        Produce(slot, true, offer.microbatch, end);
        if (!part.trains.weights) {
          --kept;
        } else if (!RuleOf(slot.part).weights_delayed) {
          Run(slot, PassKind::kBackwardWeight, end);
          --kept;
        }
        for (int32_t other : part.upstream) OfferPart(other, PassKind::kBackwardInput);
        break;
      case PassKind::kBackwardWeight:
        --kept;
        break;
    }
    OfferNeighbours(slot.crew);
  }

  // Everything that shares ranks with a crew.
  void OfferNeighbours(int32_t crew) {
    for (int32_t c : pipeline_.crews[static_cast<size_t>(crew)].classes) {
      for (int32_t other : crews_of_class_[static_cast<size_t>(c)]) {
        const auto k = static_cast<size_t>(other);
        for (size_t slot = first_slot_[k]; slot < first_slot_[k + 1]; ++slot) OfferAll(slot);
      }
    }
  }
  void OfferPhased() {
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (RuleOf(slots_[slot].part).phased) OfferNext(slot, PassKind::kForward);
    }
  }

  // Of messages ready at the same time the one further on its way goes first: a rank then passes on
  // what it has before it waits for more.
  int32_t StagesLeft(const Message& message) const {
    const LinkParts& ends = pipeline_.links[static_cast<size_t>(message.link)];
    const int32_t from = PartOf(message.backward ? ends.to : ends.from).graph_stage;
    return message.backward ? from : pipeline_.stages - 1 - from;
  }

  void OrderMessages() {
    const auto key = [this](const Message& m) {
      return std::tuple(m.time, StagesLeft(m), m.link, m.backward, m.microbatch);
    };
    std::sort(timeline_.messages.begin(), timeline_.messages.end(),
              [&key](const Message& a, const Message& b) { return key(a) < key(b); });
    // The weight pass behind a backward pass was placed with it.
    std::stable_sort(timeline_.passes.begin(), timeline_.passes.end(),
                     [](const TimedPass& a, const TimedPass& b) { return a.begin < b.begin; });
  }

  const Pipeline& pipeline_;
  const OrderRules& rules_;
  const std::vector<TickCost>& costs_;
  const int32_t microbatches_;
  const int32_t groups_;
  std::vector<Slot> slots_;  // by crew, then chunk
  std::vector<size_t> first_slot_;
  int64_t now_ = 0;                  // begin of the pass placed last: nothing begins before it
  std::vector<int64_t> class_free_;  // when each rank class is free
  std::vector<std::vector<int32_t>> crews_of_class_;
  std::vector<int32_t> kept_;                              // activations of each crew
  std::vector<std::array<int32_t, kKinds>> done_of_crew_;  // passes, over all chunks
  std::vector<std::vector<Production>> forward_done_;      // [part][microbatch]
  std::vector<std::vector<Production>> backward_done_;     // of the input gradient
  std::vector<int32_t> forwards_of_part_;                  // microbatches that all crews forwarded
  std::priority_queue<Offer> offers_;
  Timeline timeline_;
};

}  // namespace

Timeline MakeTimeline(const Pipeline& pipeline, const OrderRules& rules,
                      const std::vector<TickCost>& costs) {
  return ListScheduler(pipeline, rules, costs).Run();
}

}  // namespace phalanx::schedule
