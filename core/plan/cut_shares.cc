#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/numeric/int128.h"
#include "core/plan/parameters.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

int64_t QuantaOf(int64_t elements) { return (elements + kShareQuantum - 1) / kShareQuantum; }

// Quanta of one tensor rank of all replicas of a class together.
struct Load {
  int64_t poured = 0;
  int64_t dealt = 0;  // of these, to the replicas, of the buckets before
  // Of the bucket at hand: quanta that each replica may still be given for loads to be even.
  std::vector<int64_t> room;
  size_t next = 0;  // no replica before it has room
};

// The replicas of one width: their ranks lead the same units, so they are given alike.
struct WidthClass {
  std::vector<int32_t> replicas;
  std::vector<Load> loads;  // of each tensor rank
};

// The widest first.
using WidthClasses = std::map<int32_t, WidthClass, std::greater<>>;

WidthClasses ClassesOf(const ReplicaTable& table, int32_t pp) {
  WidthClasses classes;
  int32_t replica = 0;
  for (const int32_t dp : table.order()) {
    const int32_t width = table.Width(dp, pp);
    WidthClass& same = classes[width];
    same.loads.resize(static_cast<size_t>(width));
    for (int32_t cp = 0; cp < table.cp(); ++cp) same.replicas.push_back(replica++);
  }
  return classes;
}

// One rank of each replica of a class that could be home of a segment.
struct Candidate {
  Load* load = nullptr;  // into WidthClass::loads
  int32_t tp = 0;
  int64_t replicas = 0;
  int64_t given = 0;  // quanta of the segment
  int64_t left = 0;   // of these, not yet dealt
};

// Quanta of a segment that have one home in the whole stage.
struct Wanted {
  int64_t first = 0, count = 0;
  int32_t tp = 0, replica = 0;  // the home
  bool stays = false;           // it can be their home now
};

// Quanta of a segment that are one replica's.
struct Dealt {
  int64_t first = 0, count = 0;
  int32_t replica = 0;
};

// A run of units with the same leaders, in one bucket.
struct RulerSegment {
  UnitFamily family;
  UnitRange elements;
  std::vector<Candidate> candidates;  // of each class, the widest first
  std::vector<Wanted> wanted;         // all of it; then what is not dealt yet
  std::vector<Dealt> dealt;

  int64_t quanta() const { return QuantaOf(elements.count); }
};

// Gives `quanta` more to the candidates with the least load a replica, as water finds its level.
void Pour(int64_t quanta, std::vector<Candidate>& candidates) {
  std::vector<Candidate*> order;
  for (Candidate& candidate : candidates) order.push_back(&candidate);
  std::stable_sort(order.begin(), order.end(), [](const Candidate* a, const Candidate* b) {
    return a->load->poured * b->replicas < b->load->poured * a->replicas;
  });
  // The level is sum / replicas over the candidates below it.
  int64_t replicas = 0, sum = quanta;
  size_t end = 0;
  for (; end < order.size(); ++end) {
    const Candidate& next = *order[end];
    if (end > 0 && sum * next.replicas <= next.load->poured * replicas) break;
    sum += next.load->poured;
    replicas += next.replicas;
  }
  int64_t rest = quanta;
  const auto give = [&rest](Candidate* candidate, int64_t more) {
    candidate->given += more;
    candidate->load->poured += more;
    rest -= more;
  };
  for (size_t i = 0; i < end; ++i)
    give(order[i], sum * order[i]->replicas / replicas - order[i]->load->poured);
  for (size_t i = 0; rest > 0; ++i) give(order[i], 1);
}

// How uneven loads are: the sum over all replicas of the square of what each has. In whole numbers,
// 2^-20 square quanta, since all ranks have to come to the same.
absl::uint128 UnevennessOf(const std::vector<Candidate>& candidates) {
  absl::uint128 sum = 0;
  for (const Candidate& candidate : candidates) {
    const absl::uint128 poured = static_cast<uint64_t>(candidate.load->poured);
    sum += ((poured * poured) << 20) / static_cast<uint64_t>(candidate.replicas);
  }
  return sum;
}

// Pours all of a segment, unless loads are no more even then. Returns whether they are.
bool PourAgain(RulerSegment& segment) {
  const absl::uint128 before = UnevennessOf(segment.candidates);
  std::vector<int64_t> given;
  for (Candidate& candidate : segment.candidates) {
    given.push_back(candidate.given);
    candidate.load->poured -= candidate.given;
    candidate.given = 0;
  }
  Pour(segment.quanta(), segment.candidates);
  // Less by more than what was rounded down.
  if (UnevennessOf(segment.candidates) + segment.candidates.size() < before) return true;
  // Remainders of a quantum that would only change hands.
  for (size_t i = 0; i < given.size(); ++i) {
    Candidate& candidate = segment.candidates[i];
    candidate.load->poured += given[i] - candidate.given;
    candidate.given = given[i];
  }
  return false;
}

// Whoever leads a unit in each class can be its home.
void AppendSegments(const Plan& plan, const PartId& part, const FamilyRuler& ruler,
                    WidthClasses& classes, std::vector<RulerSegment>* segments) {
  // Of each class the last units of its tensor ranks that lead some.
  std::vector<std::map<int64_t, int32_t>> leaders;
  std::set<int64_t> ends;
  for (const auto& [width, same] : classes) {
    std::map<int64_t, int32_t>& by_end = leaders.emplace_back();
    Place place{.module = part.module, .pp = part.stage, .width = width};
    for (; place.tp < width; ++place.tp) {
      const UnitRange led = LedUnits(plan, place, ruler.family);
      if (led.count > 0) by_end[led.end()] = place.tp;
    }
    for (const auto& [end, tp] : by_end) ends.insert(end);
  }
  int64_t first = 0;
  for (const int64_t end : ends) {
    RulerSegment segment{
        .family = ruler.family,
        .elements = {first * ruler.unit_elements, (end - first) * ruler.unit_elements}};
    auto by_end = leaders.begin();
    for (auto& [width, same] : classes) {
      const int32_t tp = (by_end++)->upper_bound(first)->second;
      segment.candidates.push_back({.load = &same.loads[static_cast<size_t>(tp)],
                                    .tp = tp,
                                    .replicas = static_cast<int64_t>(same.replicas.size())});
    }
    segments->push_back(std::move(segment));
    first = end;
  }
}

// Cuts the buckets of one part, one after the other.
class Cutter {
 public:
  Cutter(const Plan& plan, const PartId& part)
      : plan_(plan),
        part_(part),
        table_(plan.replicas(part.module)),
        whole_(*ReplicaTable::Create(plan.modules[static_cast<size_t>(part.module)].grid, {})),
        whole_homes_(static_cast<size_t>(whole_.Width(0, part.stage))),
        mirrored_(IsMirrored(plan, part.module)),
        classes_(ClassesOf(table_, part.stage)) {
    first_of_.resize(static_cast<size_t>(table_.replicas()));
    for (const int32_t dp : table_.order()) {
      first_of_[static_cast<size_t>(dp)] = static_cast<int32_t>(seats_.size());
      for (int32_t cp = 0; cp < table_.cp(); ++cp) seats_.push_back({.dp = dp, .cp = cp});
    }
    int32_t index = 0;
    for (const auto& [width, same] : classes_) {
      for (size_t i = 0; i < same.replicas.size(); ++i) {
        Seat& seat = seats_[static_cast<size_t>(same.replicas[i])];
        seat.width_class = index;
        seat.index = i;
      }
      class_at_.push_back(&same);
      ++index;
    }
  }

  // `whole`: what CutEvenly has of the bucket under the healthy width.
  std::vector<RulerShare> Cut(const BucketRulers& bucket, std::vector<EvenRun> whole) {
    std::vector<RulerSegment> segments;
    for (const FamilyRuler& ruler : bucket.rulers)
      AppendSegments(plan_, part_, ruler, classes_, &segments);
    Want(std::move(whole), &segments);
    Quotas(&segments);
    Room();
    // First all that stays, so that nobody's room is filled with what is another's.
    for (RulerSegment& segment : segments) Keep(&segment);
    std::vector<RulerShare> shares;
    for (RulerSegment& segment : segments) {
      Fill(&segment);
      Append(&segment, &shares);
    }
    return shares;
  }

 private:
  struct Seat {  // of a replica
    int32_t dp = 0, cp = 0;
    int32_t width_class = 0;
    size_t index = 0;  // in its class
  };

  const Seat& SeatOf(int32_t replica) const { return seats_[static_cast<size_t>(replica)]; }
  Candidate& CandidateOf(const Seat& seat, RulerSegment* segment) const {
    return segment->candidates[static_cast<size_t>(seat.width_class)];
  }
  // The rank of a replica that leads the segment now, and in the whole stage.
  Rank LeaderNow(const Seat& seat, const RulerSegment& segment) const {
    const Candidate& candidate = segment.candidates[static_cast<size_t>(seat.width_class)];
    return table_.At(seat.dp, part_.stage, seat.cp, candidate.tp);
  }
  Rank LeaderWhole(const Seat& seat, int32_t tp) const {
    return whole_.At(seat.dp, part_.stage, seat.cp, tp);
  }

  void Want(std::vector<EvenRun> whole, std::vector<RulerSegment>* segments) const {
    std::sort(whole.begin(), whole.end(), [](const EvenRun& a, const EvenRun& b) {
      return std::tie(a.family, a.elements.first) < std::tie(b.family, b.elements.first);
    });
    auto run = whole.begin();
    for (RulerSegment& segment : *segments) {
      const UnitRange& all = segment.elements;
      for (int64_t at = all.first; at < all.end();) {
        while (run->family < segment.family || run->elements.end() <= at) ++run;
        const int64_t end = std::min(run->elements.end(), all.end());
        // A quantum is as its first element is.
        const int64_t first = QuantaOf(at - all.first), behind = QuantaOf(end - all.first);
        at = end;
        if (behind == first) continue;
        if (!segment.wanted.empty() && segment.wanted.back().tp == run->tp &&
            segment.wanted.back().replica == run->replica) {
          segment.wanted.back().count += behind - first;
          continue;
        }
        const Seat& seat = SeatOf(run->replica);
        segment.wanted.push_back({.first = first,
                                  .count = behind - first,
                                  .tp = run->tp,
                                  .replica = run->replica,
                                  .stays = LeaderNow(seat, segment) == LeaderWhole(seat, run->tp)});
      }
    }
  }

  // How much of each segment each class gets: at first what stays, then the rest where there is
  // least, then as even as leaders allow. What is even is poured as it was, so little changes.
  void Quotas(std::vector<RulerSegment>* segments) const {
    for (RulerSegment& segment : *segments) {
      for (const Wanted& wanted : segment.wanted) {
        if (!wanted.stays) continue;
        Candidate& candidate = CandidateOf(SeatOf(wanted.replica), &segment);
        candidate.given += wanted.count;
        candidate.load->poured += wanted.count;
      }
    }
    for (RulerSegment& segment : *segments) {
      int64_t rest = segment.quanta();
      for (const Candidate& candidate : segment.candidates) rest -= candidate.given;
      Pour(rest, segment.candidates);
    }
    // Each pouring lowers the sum of squared loads or leaves all as it is, so this comes to the
    // most even cut that leaders allow.
    constexpr int kSweepsMax = 64;
    bool changed = true;
    for (int sweep = 0; changed && sweep < kSweepsMax; ++sweep) {
      changed = false;
      for (RulerSegment& segment : *segments) changed |= PourAgain(segment);
    }
    for (RulerSegment& segment : *segments) {
      for (Candidate& candidate : segment.candidates) candidate.left = candidate.given;
    }
  }

  // What a class has is even over its replicas, but for what Keep() leaves as it is.
  void Room() {
    for (auto& [width, same] : classes_) {
      const auto count = static_cast<int64_t>(same.replicas.size());
      for (Load& load : same.loads) {
        load.room.assign(same.replicas.size(), 0);
        for (size_t i = 0; i < load.room.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          load.room[i] =
              EvenSplit(load.poured, count, at).count - EvenSplit(load.dealt, count, at).count;
        }
        load.dealt = load.poured;
        load.next = 0;
      }
    }
  }

  // Padding makes what replicas have in the whole stage up to a quantum more than even; that stays
  // as it is.
  void Keep(RulerSegment* segment) const {
    std::vector<Wanted> rest;
    for (Wanted wanted : segment->wanted) {
      if (wanted.stays) {
        const Seat& seat = SeatOf(wanted.replica);
        Candidate& candidate = CandidateOf(seat, segment);
        const int64_t room = candidate.load->room[seat.index] + 1;
        Deal(wanted.replica, std::min({wanted.count, candidate.left, room}), segment, &wanted);
      }
      if (wanted.count > 0) rest.push_back(wanted);
    }
    segment->wanted = std::move(rest);
  }

  // Deals the rest: to whoever mirrors it in the whole stage, then in order.
  void Fill(RulerSegment* segment) {
    for (Wanted& wanted : segment->wanted) {
      if (!mirrored_) break;
      const RankList& homes = HomesInWhole(wanted);
      for (size_t i = 1; i < homes.size() && wanted.count > 0; ++i) {
        const ReplicaTable::Position at = *whole_.PositionOf(homes[i]);
        const int32_t replica = first_of_[static_cast<size_t>(at.dp)] + at.cp;
        const Seat& seat = SeatOf(replica);
        if (LeaderNow(seat, *segment) != homes[i]) continue;
        const Candidate& candidate = CandidateOf(seat, segment);
        Deal(replica, std::min({wanted.count, candidate.left, candidate.load->room[seat.index]}),
             segment, &wanted);
      }
    }
    size_t width_class = 0;
    for (Wanted& wanted : segment->wanted) {
      while (wanted.count > 0) {
        while (segment->candidates[width_class].left == 0) ++width_class;
        Load& load = *segment->candidates[width_class].load;
        while (load.room[load.next] <= 0) ++load.next;
        Deal(class_at_[width_class]->replicas[load.next],
             std::min({wanted.count, segment->candidates[width_class].left, load.room[load.next]}),
             segment, &wanted);
      }
    }
  }

  // Gives a replica the first quanta of `wanted`.
  void Deal(int32_t replica, int64_t count, RulerSegment* segment, Wanted* wanted) const {
    if (count <= 0) return;
    const Seat& seat = SeatOf(replica);
    Candidate& candidate = CandidateOf(seat, segment);
    candidate.left -= count;
    candidate.load->room[seat.index] -= count;
    segment->dealt.push_back({.first = wanted->first, .count = count, .replica = replica});
    wanted->first += count;
    wanted->count -= count;
  }

  static void Append(RulerSegment* segment, std::vector<RulerShare>* shares) {
    std::sort(segment->dealt.begin(), segment->dealt.end(),
              [](const Dealt& a, const Dealt& b) { return a.first < b.first; });
    const UnitRange& all = segment->elements;
    const size_t begin = shares->size();
    for (const Dealt& dealt : segment->dealt) {
      const int64_t first = all.first + dealt.first * kShareQuantum;
      const int64_t end = std::min(first + dealt.count * kShareQuantum, all.end());
      if (shares->size() > begin && shares->back().replica == dealt.replica) {
        shares->back().elements.count += end - first;
      } else {
        shares->push_back({segment->family, {first, end - first}, dealt.replica});
      }
    }
  }

  const RankList& HomesInWhole(const Wanted& wanted) {
    std::vector<RankList>& homes = whole_homes_[static_cast<size_t>(wanted.tp)];
    if (homes.empty()) {
      RankList group;
      for (const Seat& seat : seats_) group.push_back(LeaderWhole(seat, wanted.tp));
      homes = HomesOf(plan_, part_.module, group);
    }
    return homes[static_cast<size_t>(wanted.replica)];
  }

  const Plan& plan_;
  const PartId part_;
  const ReplicaTable& table_;
  const ReplicaTable whole_;
  std::vector<std::vector<RankList>> whole_homes_;  // by tp, replica; made when asked for
  const bool mirrored_;
  WidthClasses classes_;
  std::vector<const WidthClass*> class_at_;  // into classes_
  std::vector<Seat> seats_;                  // of each replica
  std::vector<int32_t> first_of_;            // by dp, of a present one: the first of its replicas
};

// The equal parts of one tensor rank's bucket.
struct EvenParts {
  int32_t tp = 0;
  int64_t first = 0;  // in the flat buffers
  int64_t count = 0;  // elements of each
};

// `on_ruler`: where the part of a unit that is in these slabs begins, on the ruler of one unit.
void AppendSlabs(const LedSlabs& slabs, int64_t on_ruler, int64_t unit_elements,
                 const EvenParts& parts, std::vector<EvenRun>* runs) {
  for (int64_t i = 0; i < slabs.units.count; ++i) {
    const int64_t slab = slabs.offset + i * slabs.elements;
    // What is behind an offset on the ruler is as far behind it in the buffer.
    const int64_t ahead = (slabs.units.first + i) * unit_elements + on_ruler - slab;
    for (int64_t at = slab; at < slab + slabs.elements;) {
      const int64_t replica = (at - parts.first) / parts.count;
      const int64_t end =
          std::min(slab + slabs.elements, parts.first + (replica + 1) * parts.count);
      runs->push_back({.family = slabs.family,
                       .elements = {at + ahead, end - at},
                       .tp = parts.tp,
                       .replica = static_cast<int32_t>(replica)});
      at = end;
    }
  }
}

}  // namespace

std::vector<std::vector<EvenRun>> CutEvenly(const Plan& plan, const PartId& part, int32_t width) {
  std::vector<std::vector<EvenRun>> cut;
  Place place{.module = part.module,
              .dp = plan.replicas(part.module).FirstPresent(),
              .pp = part.stage,
              .width = width};
  for (; place.tp < width; ++place.tp) {
    const StageParameters parameters = ParametersOf(plan, place, part.chunk);
    const std::vector<BucketRulers> buckets = RulersOf(plan, place, parameters);
    cut.resize(buckets.size());
    for (size_t b = 0; b < buckets.size(); ++b) {
      // The bucket is as long as padding makes it where widths are equal.
      const int64_t replicas = parameters.replicas;
      const int64_t quanta = QuantaOf(parameters.buckets[b].elements);
      const EvenParts parts{.tp = place.tp,
                            .first = parameters.buckets[b].offset,
                            .count = (quanta + replicas - 1) / replicas * kShareQuantum};
      std::map<UnitFamily, int64_t> before;  // elements of a unit in earlier matrices
      for (const LedSlabs& slabs : buckets[b].slabs) {
        int64_t& of_unit = before[slabs.family];
        AppendSlabs(slabs, of_unit, buckets[b].Find(slabs.family)->unit_elements, parts, &cut[b]);
        of_unit += slabs.elements;
      }
    }
  }
  return cut;
}

std::vector<std::vector<RulerShare>> CutShares(const Plan& plan, const PartId& part) {
  std::vector<std::vector<EvenRun>> whole =
      CutEvenly(plan, part, plan.module_spec(part.module).parallel.tp);
  Cutter cutter(plan, part);
  std::vector<std::vector<RulerShare>> buckets;
  for (const BucketRulers& bucket : RulersOf(plan, part))
    buckets.push_back(cutter.Cut(bucket, std::move(whole[buckets.size()])));
  return buckets;
}

}  // namespace phalanx::plan
