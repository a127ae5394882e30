#include "worker/train/holdings_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"

namespace phalanx::train {
namespace {

// Takes numbers one by one; after the last one all are 0, and it is not whole.
class Numbers {
 public:
  explicit Numbers(absl::Span<const int64_t> numbers) : left_(numbers) {}
  int64_t Next() {
    if (left_.empty()) {
      short_ = true;
      return 0;
    }
    const int64_t number = left_.front();
    left_.remove_prefix(1);
    return number;
  }
  int32_t NextInt() { return static_cast<int32_t>(Next()); }
  // How many entries follow, of at least `each` numbers.
  int64_t NextCount(int64_t each) {
    const int64_t count = Next();
    if (count >= 0 && count <= static_cast<int64_t>(left_.size()) / each) return count;
    short_ = true;
    return 0;
  }
  bool whole() const { return !short_ && left_.empty(); }

 private:
  absl::Span<const int64_t> left_;
  bool short_ = false;
};

void Append(const plan::PartId& part, std::vector<int64_t>* to) {
  to->insert(to->end(), {part.module, part.stage, part.chunk});
}

plan::PartId NextPart(Numbers& from) {
  plan::PartId part;
  part.module = from.NextInt();
  part.stage = from.NextInt();
  part.chunk = from.NextInt();
  return part;
}

bool Empty(const Holdings& holdings) { return holdings.state.empty() && holdings.frozen.empty(); }

// What a rank says of itself first.
struct Word {
  int64_t layout = 0;  // which it has left whole; 0: none
  int64_t step = 0;
  int64_t count = 0;  // of the numbers that say what it holds
};
constexpr size_t kWordNumbers = 3;

absl::StatusOr<std::map<Rank, Holdings>> TellAll(const std::vector<int64_t>& own,
                                                 const std::vector<Word>& words,
                                                 const BulkGroup& group,
                                                 VerifiedExchange& exchange) {
  size_t longest = 1;
  for (const Word& word : words) longest = std::max(longest, static_cast<size_t>(word.count));
  std::vector<int64_t> padded = own;
  padded.resize(longest);
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, exchange.Gather(padded));
  std::map<Rank, Holdings> holdings;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].count == 0) continue;
    std::optional<Holdings> held = DecodeHoldings(
        absl::MakeConstSpan(all).subspan(i * longest, static_cast<size_t>(words[i].count)));
    if (!held.has_value()) {
      return absl::DataLossError(
          absl::StrCat("what rank ", group.ranks[i].value, " says that it holds cannot be"));
    }
    holdings.emplace(group.ranks[i], *std::move(held));
  }
  return holdings;
}

}  // namespace

std::vector<int64_t> EncodeHoldings(const Holdings& holdings) {
  std::vector<int64_t> numbers = {holdings.step, static_cast<int64_t>(holdings.state.size())};
  for (const auto& [name, ranges] : holdings.state) {
    Append(name.part, &numbers);
    numbers.insert(numbers.end(), {name.bucket, static_cast<int64_t>(name.family.kind),
                                   name.family.edge, static_cast<int64_t>(ranges.size())});
    for (const plan::UnitRange& range : ranges)
      numbers.insert(numbers.end(), {range.first, range.count});
  }
  numbers.push_back(static_cast<int64_t>(holdings.frozen.size()));
  for (const FrozenName& name : holdings.frozen) {
    Append(name.part, &numbers);
    numbers.insert(numbers.end(), {name.width, name.tp});
  }
  return numbers;
}

std::optional<Holdings> DecodeHoldings(absl::Span<const int64_t> numbers) {
  constexpr int64_t kRulerNumbers = 7, kRangeNumbers = 2, kFrozenNumbers = 5;
  Numbers from(numbers);
  Holdings holdings{.step = from.Next()};
  for (int64_t left = from.NextCount(kRulerNumbers); left > 0; --left) {
    RulerName name{.part = NextPart(from)};
    name.bucket = from.NextInt();
    const int64_t kind = from.Next();
    if (kind < 0 || kind >= plan::kUnitKinds) return std::nullopt;
    name.family = {.kind = static_cast<plan::UnitKind>(kind), .edge = from.NextInt()};
    std::vector<plan::UnitRange>& ranges = holdings.state[name];
    for (int64_t runs = from.NextCount(kRangeNumbers); runs > 0; --runs) {
      plan::UnitRange range{.first = from.Next()};
      range.count = from.Next();
      const int64_t before = ranges.empty() ? 0 : ranges.back().end();
      if (range.first < before || range.count <= 0) return std::nullopt;
      ranges.push_back(range);
    }
  }
  for (int64_t left = from.NextCount(kFrozenNumbers); left > 0; --left) {
    FrozenName name{.part = NextPart(from)};
    name.width = from.NextInt();
    name.tp = from.NextInt();
    holdings.frozen.push_back(name);
  }
  if (!from.whole()) return std::nullopt;
  return holdings;
}

absl::StatusOr<std::map<Rank, Holdings>> ExchangeHoldings(const OwnHoldings& own,
                                                          const BulkGroup& group, Rank rank,
                                                          at::Device device,
                                                          std::function<bool()> stopped) {
  if (group.communicator == nullptr) {
    std::map<Rank, Holdings> alone;
    if (!Empty(own.holdings)) alone.emplace(rank, own.holdings);
    return alone;
  }
  std::vector<int64_t> numbers;
  if (!Empty(own.holdings)) numbers = EncodeHoldings(own.holdings);
  const uint64_t layout = own.whole == nullptr ? 0 : Digest64(own.whole->digest) | 1;
  VerifiedExchange exchange(group, device, std::move(stopped));
  ASSIGN_OR_RETURN(const std::vector<int64_t> said,
                   exchange.Gather({static_cast<int64_t>(layout), own.holdings.step,
                                    static_cast<int64_t>(numbers.size())}));
  std::vector<Word> words(group.ranks.size());
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t at = i * kWordNumbers;
    words[i] = {said[at], said[at + 1], said[at + 2]};
  }
  const bool alike = std::all_of(words.begin(), words.end(), [&](const Word& word) {
    return word.layout != 0 && word.layout == words[0].layout && word.step == words[0].step;
  });
  if (!alike) return TellAll(numbers, words, group, exchange);
  std::map<Rank, Holdings> holdings;
  for (const Rank member : group.ranks) holdings[member];
  FillHoldings(*own.whole, own.holdings.step, &holdings);
  return holdings;
}

}  // namespace phalanx::train
