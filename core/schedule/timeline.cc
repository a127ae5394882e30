#include "core/schedule/timeline.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "core/plan/check.h"

namespace phalanx::schedule {
namespace {

constexpr int64_t kNever = -1;

class ListScheduler {
 public:
  ListScheduler(const Pipeline& pipeline, const std::vector<std::vector<Pass>>& orders,
                const std::vector<TickCost>& costs)
      : pipeline_(pipeline),
        orders_(orders),
        costs_(costs),
        next_(pipeline.parts.size(), 0),
        class_free_(pipeline.classes.size(), 0) {
    for (const std::vector<Pass>& order : orders) {
      forward_done_.emplace_back(order.size(), kNever);
      backward_done_.emplace_back(order.size(), kNever);
    }
  }

  Timeline Run() {
    size_t total = 0;
    for (const std::vector<Pass>& order : orders_) total += order.size();
    timeline_.passes.reserve(total);
    for (size_t part = 0; part < orders_.size(); ++part) Offer(static_cast<int32_t>(part));
    while (!offers_.empty()) {
      Candidate offer = offers_.top();
      offers_.pop();
      const int64_t begin = EarliestOf(offer.part, offer.begin);
      if (begin > offer.begin) {  // its ranks were taken meanwhile
        offer.begin = begin;
        offers_.push(offer);
        continue;
      }
      Place(offer.part, begin);
    }
    PHALANX_CHECK(timeline_.passes.size() == total,
                  "the orders of the parts contradict each other");
    OrderMessages();
    timeline_.class_end = class_free_;
    return std::move(timeline_);
  }

 private:
  struct Candidate {
    int64_t begin = 0;
    bool backward = false;
    int32_t microbatch = 0;
    int32_t part = 0;
    // The queue gives the largest: the earliest, then backward, then the earlier microbatch.
    bool operator<(const Candidate& other) const {
      return std::tuple(begin, !backward, microbatch, part) >
             std::tuple(other.begin, !other.backward, other.microbatch, other.part);
    }
  };

  const Part& PartOf(int32_t part) const { return pipeline_.parts[static_cast<size_t>(part)]; }

  int64_t EarliestOf(int32_t part, int64_t ready) const {
    for (int32_t c : PartOf(part).classes) {
      ready = std::max(ready, class_free_[static_cast<size_t>(c)]);
    }
    return ready;
  }

  // When the data of a pass is there, or kNever while a part before it has no time yet.
  int64_t DataReady(int32_t part, const Pass& pass) const {
    const auto& done = pass.backward ? backward_done_ : forward_done_;
    int64_t ready = 0;
    for (int32_t other : pass.backward ? PartOf(part).downstream : PartOf(part).upstream) {
      const int64_t time = done[static_cast<size_t>(other)][static_cast<size_t>(pass.microbatch)];
      if (time == kNever) return kNever;
      ready = std::max(ready, time);
    }
    return ready;
  }

  // Puts the next pass of a part up for a place, if its data has a time.
  void Offer(int32_t part) {
    const auto p = static_cast<size_t>(part);
    if (next_[p] == orders_[p].size()) return;
    const Pass& pass = orders_[p][next_[p]];
    const int64_t ready = DataReady(part, pass);
    if (ready == kNever) return;
    offers_.push({EarliestOf(part, ready), pass.backward, pass.microbatch, part});
  }

  void OfferIfNextIs(int32_t part, const Pass& pass) {
    const auto p = static_cast<size_t>(part);
    if (next_[p] < orders_[p].size() && orders_[p][next_[p]] == pass) Offer(part);
  }

  void Place(int32_t part, int64_t begin) {
    const auto p = static_cast<size_t>(part);
    const Pass pass = orders_[p][next_[p]++];
    const TickCost& cost = costs_[p];
    const int64_t produced = begin + (pass.backward ? cost.backward_input : cost.forward);
    const int64_t end = pass.backward ? produced + cost.backward_weight : produced;
    timeline_.passes.push_back({part, pass, begin});
    (pass.backward ? backward_done_ : forward_done_)[p][static_cast<size_t>(pass.microbatch)] =
        produced;
    for (int32_t c : PartOf(part).classes) class_free_[static_cast<size_t>(c)] = end;
    for (int32_t link : pass.backward ? PartOf(part).links_in : PartOf(part).links_out) {
      timeline_.messages.push_back({produced, link, pass.backward, pass.microbatch});
    }
    Offer(part);
    for (int32_t other : pass.backward ? PartOf(part).upstream : PartOf(part).downstream) {
      OfferIfNextIs(other, pass);
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
  }

  const Pipeline& pipeline_;
  const std::vector<std::vector<Pass>>& orders_;
  const std::vector<TickCost>& costs_;
  std::vector<size_t> next_;                         // of each part, into its order
  std::vector<int64_t> class_free_;                  // when each rank class is free
  std::vector<std::vector<int64_t>> forward_done_;   // [part][microbatch]
  std::vector<std::vector<int64_t>> backward_done_;  // of the input gradient
  std::priority_queue<Candidate> offers_;
  Timeline timeline_;
};

}  // namespace

std::vector<Pass> OneForwardOneBackward(int32_t warmup, int32_t microbatches) {
  warmup = std::clamp(warmup, 0, microbatches);
  std::vector<Pass> passes;
  passes.reserve(2 * static_cast<size_t>(microbatches));
  for (int32_t m = 0; m < warmup; ++m) passes.push_back({false, m});
  for (int32_t m = warmup; m < microbatches; ++m) {
    passes.push_back({false, m});
    passes.push_back({true, m - warmup});
  }
  for (int32_t m = microbatches - warmup; m < microbatches; ++m) passes.push_back({true, m});
  return passes;
}

Timeline MakeTimeline(const Pipeline& pipeline, const std::vector<std::vector<Pass>>& orders,
                      const std::vector<TickCost>& costs) {
  return ListScheduler(pipeline, orders, costs).Run();
}

}  // namespace phalanx::schedule
