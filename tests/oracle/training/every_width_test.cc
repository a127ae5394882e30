// Replicas of every width compute the plain model's step, whichever of their slots are missing.
//
// Cases and architectures are dealt from a seed: what a module is goes round over the widths.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::Layout;

constexpr uint64_t kSeed = 7;
constexpr int64_t kBlock = 4;

// All cards once in a random order, then once again.
template <typename Card>
class Deck {
 public:
  explicit Deck(std::vector<Card> cards) : cards_(std::move(cards)), next_(cards_.size()) {}
  const Card& Deal(Prng& prng) {
    if (next_ == cards_.size()) {
      for (size_t i = cards_.size(); i > 1; --i)
        std::swap(cards_[i - 1], cards_[static_cast<size_t>(prng.Below(i))]);
      next_ = 0;
    }
    return cards_[next_++];
  }

 private:
  std::vector<Card> cards_;
  size_t next_;
};

// Slots of one replica: bit i is tensor position i.
using Slots = uint32_t;

int32_t CountOf(Slots slots) { return static_cast<int32_t>(__builtin_popcount(slots)); }

// `count` of the slots of a replica of `healthy` ranks.
Slots DrawSlots(Prng& prng, int32_t healthy, int32_t count) {
  Slots slots = 0;
  while (CountOf(slots) < count) slots |= Slots{1} << prng.Below(static_cast<uint64_t>(healthy));
  return slots;
}
// Some, but not all.
Slots DrawSlots(Prng& prng, int32_t healthy) {
  return DrawSlots(prng, healthy, 1 + static_cast<int32_t>(prng.Below(healthy - 1)));
}

// Slots that are missing of a module, by replica.
struct Hits {
  std::string module;
  int32_t healthy = 1, offset = 0;
  std::vector<Slots> missing;
};

std::string NameOf(const Hits& hits) {
  std::string name = absl::StrCat(hits.module, "_t", hits.healthy, "_dp", hits.missing.size());
  for (size_t dp = 0; dp < hits.missing.size(); ++dp) {
    if (hits.missing[dp] == 0) continue;
    absl::StrAppend(&name, "_r", hits.healthy - CountOf(hits.missing[dp]), "_of_", dp, "_without");
    for (int32_t slot = 0; slot < hits.healthy; ++slot)
      if ((hits.missing[dp] >> slot & 1) != 0) absl::StrAppend(&name, "_", slot);
  }
  return name;
}

void AppendRanks(const Hits& hits, plan::RankList& lost) {
  for (size_t dp = 0; dp < hits.missing.size(); ++dp) {
    for (int32_t slot = 0; slot < hits.healthy; ++slot) {
      if ((hits.missing[dp] >> slot & 1) == 0) continue;
      lost.push_back(Rank{hits.offset + static_cast<int32_t>(dp) * hits.healthy + slot});
    }
  }
}

// A language model with something for each of eight ranks.
struct Decoder {
  int32_t heads, kv_heads;
  bool tied_head;
  int64_t vocabulary;
};

// MHA, and GQA with KV heads that a width does not divide or has none for each rank; of the
// vocabularies' 8 and 11 blocks the last is short.
std::vector<Decoder> Decoders() {
  std::vector<Decoder> all;
  for (const auto& [heads, kv_heads] : {std::pair(8, 8), std::pair(8, 4), std::pair(8, 2),
                                        std::pair(8, 1), std::pair(12, 6), std::pair(12, 3)}) {
    for (const bool tied_head : {false, true}) {
      for (const int64_t vocabulary : {29, 41})
        all.push_back({heads, kv_heads, tied_head, vocabulary});
    }
  }
  return all;
}

job::Architecture ArchitectureOf(const Decoder& decoder) {
  return support::Llama({.hidden_size = 2 * decoder.heads,
                         .layers = 2,
                         .heads = decoder.heads,
                         .kv_heads = decoder.kv_heads,
                         .mlp_size = 38,  // ten blocks, the last one padded
                         .block = kBlock,
                         .vocabulary = decoder.vocabulary,
                         .context = 64,
                         .tied_head = decoder.tied_head});
}

struct WidthCase {
  NamedJob job;
  plan::RankList lost;
  Hits hits;  // of the language model
  Decoder decoder;
};

class EveryWidthTest : public testing::TestWithParam<WidthCase> {};

TEST_P(EveryWidthTest, EqualsThePlainModel) { ExpectEqualsPlain(GetParam().job, GetParam().lost); }

std::string NameOfCase(const testing::TestParamInfo<WidthCase>& info) {
  return info.param.job.name;
}

class Dealer {
 public:
  explicit Dealer(uint64_t seed)
      : prng_(seed),
        decoders_(Decoders()),
        recomputes_({job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {}

  Prng& prng() { return prng_; }
  // A language model alone, of which some replica lacks `missing`, and one time in three another
  // replica other slots.
  WidthCase Language(int32_t healthy, size_t replicas, Slots missing, bool slices) {
    WidthCase made{.hits = HitsOf("language", 0, healthy, replicas, missing),
                   .decoder = decoders_.Deal(prng_)};
    const Decoder& decoder = made.decoder;
    AJob job;
    job.Module("language", ArchitectureOf(decoder), LayoutOf(made.hits, slices)).Batch(6, 2);
    Finish(absl::StrCat(NameOf(made.hits), "_heads", decoder.heads, "_kv", decoder.kv_heads,
                        "_vocabulary", decoder.vocabulary, decoder.tied_head ? "_tied" : "",
                        slices ? "_slices" : ""),
           std::move(job), {made.hits}, made);
    return made;
  }
  // An encoder feeding a language model, each of so many ranks a replica, either or both of them
  // hit.
  WidthCase Encoder(const std::string& family, const job::Architecture& encoder, bool hits_encoder,
                    bool hits_language) {
    const auto draw = [this](const std::string& module, int32_t offset, bool hit) {
      const auto healthy = static_cast<int32_t>(3 + prng_.Below(2));
      return HitsOf(module, offset, healthy, 2, hit ? DrawSlots(prng_, healthy) : 0);
    };
    const Hits first = draw(family, 0, hits_encoder);
    const bool slices = prng_.Below(2) == 0;
    WidthCase made{.hits = draw("language", 2 * first.healthy, hits_language),
                   .decoder = decoders_.Deal(prng_)};
    AJob job;
    job.Module(family, encoder, LayoutOf(first, slices))
        .Module("language", ArchitectureOf(made.decoder), LayoutOf(made.hits, slices))
        .Edge(family, "language", {.projector = 20})
        .Batch(6, 2);
    Finish(absl::StrCat(NameOf(first), "_", NameOf(made.hits), slices ? "_slices" : ""),
           std::move(job), {first, made.hits}, made);
    return made;
  }

 private:
  Hits HitsOf(const std::string& module, int32_t offset, int32_t healthy, size_t replicas,
              Slots missing) {
    Hits hits{.module = module, .healthy = healthy, .offset = offset};
    hits.missing.resize(replicas);
    const auto hit = static_cast<size_t>(prng_.Below(replicas));
    hits.missing[hit] = missing;
    if (missing == 0 || prng_.Below(3) > 0) return hits;
    Slots other = missing;
    while (other == missing) other = DrawSlots(prng_, healthy);
    hits.missing[(hit + 1) % replicas] = other;
    return hits;
  }
  Layout LayoutOf(const Hits& hits, bool slices) {
    return {.tp = hits.healthy,
            .dp = static_cast<int32_t>(hits.missing.size()),
            .offset = hits.offset,
            .recompute = recomputes_.Deal(prng_),
            .sequence = slices};
  }
  static void Finish(const std::string& name, AJob job, const std::vector<Hits>& all,
                     WidthCase& made) {
    job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
    made.job = Named(name, std::move(job));
    for (const Hits& hits : all) AppendRanks(hits, made.lost);
  }

  Prng prng_;
  Deck<Decoder> decoders_;
  Deck<job::Recompute> recomputes_;
};

// Of two to four ranks every set of missing slots, of two and three replicas on whole rows and of
// either on slices; of eight every width, whose slots are missing anywhere.
std::vector<WidthCase> EveryWidth() {
  Dealer dealer(kSeed);
  std::vector<WidthCase> cases;
  for (const int32_t healthy : {2, 3, 4}) {
    for (Slots missing = 1; missing + 1 < Slots{1} << healthy; ++missing) {
      for (const size_t replicas : {2, 3})
        cases.push_back(dealer.Language(healthy, replicas, missing, /*slices=*/false));
      cases.push_back(dealer.Language(healthy, 2 + missing % 2, missing, /*slices=*/true));
    }
  }
  for (int32_t count = 1; count < 8; ++count) {
    for (const size_t replicas : {2, 3}) {
      for (const bool slices : {false, true}) {
        const Slots missing = DrawSlots(dealer.prng(), 8, count);
        cases.push_back(dealer.Language(8, replicas, missing, slices));
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Decoders, EveryWidthTest, testing::ValuesIn(EveryWidth()), NameOfCase);

// Quick-GELU, tanh-GELU and GELU.
std::vector<WidthCase> EveryEncoder() {
  Dealer dealer(kSeed + 1);
  const support::ClipShape vision = {.hidden_size = 16,
                                     .layers = 2,
                                     .heads = 4,
                                     .mlp_size = 24,
                                     .block = kBlock,
                                     .image_size = 4,
                                     .patch_size = 2};
  std::vector<WidthCase> cases;
  for (const auto& [encoder, language] :
       {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    cases.push_back(dealer.Encoder("clip", support::ClipVision(vision), encoder, language));
    cases.push_back(dealer.Encoder("siglip", support::SiglipVision(vision), encoder, language));
    cases.push_back(dealer.Encoder("whisper", TinyAudio(), encoder, language));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Encoders, EveryWidthTest, testing::ValuesIn(EveryEncoder()), NameOfCase);

// What the deal above has come to: each kind of grouping, with a tied head and without, at every
// T; a vocabulary that a width does not divide with each of them; gaps among eight slots; two
// replicas that lack different slots.
TEST(EveryWidthCasesTest, EveryKindOfDecoder_IsDealtToEveryT) {
  enum class Grouping { kMha, kUndivided, kFewerThanRanks };
  std::set<std::tuple<int32_t, Grouping, bool>> at_t;
  std::set<std::tuple<Grouping, bool>> undivided_vocabulary;
  std::set<std::pair<int32_t, Slots>> missing_at;
  int32_t gaps = 0;
  std::set<std::pair<int32_t, bool>> both_hit;  // T, on slices
  for (const WidthCase& c : EveryWidth()) {
    const bool slices = c.job.spec.modules[0].parallel.sequence;
    int32_t hit = 0;
    for (const Slots missing : c.hits.missing) {
      if (missing == 0) continue;
      ++hit;
      const int32_t width = c.hits.healthy - CountOf(missing);
      missing_at.emplace(c.hits.healthy, missing);
      const Slots lowest = missing & (~missing + 1);
      if (c.hits.healthy == 8 && (missing & (missing + lowest)) != 0) ++gaps;
      const Grouping grouping = c.decoder.kv_heads == c.decoder.heads ? Grouping::kMha
                                : c.decoder.kv_heads < width          ? Grouping::kFewerThanRanks
                                                                      : Grouping::kUndivided;
      if (grouping == Grouping::kUndivided && c.decoder.kv_heads % width == 0) continue;
      at_t.emplace(c.hits.healthy, grouping, c.decoder.tied_head);
      if ((c.decoder.vocabulary + kBlock - 1) / kBlock % width != 0)
        undivided_vocabulary.emplace(grouping, c.decoder.tied_head);
    }
    if (hit == 2) both_hit.emplace(c.hits.healthy, slices);
  }
  for (const int32_t healthy : {3, 4, 8}) {
    for (const bool tied : {false, true}) {
      EXPECT_TRUE(at_t.contains({healthy, Grouping::kMha, tied})) << healthy;
      EXPECT_TRUE(at_t.contains({healthy, Grouping::kUndivided, tied})) << healthy;
      EXPECT_TRUE(at_t.contains({healthy, Grouping::kFewerThanRanks, tied})) << healthy;
    }
  }
  EXPECT_EQ(undivided_vocabulary.size(), 6u);
  EXPECT_EQ(both_hit.size(), 8u);
  EXPECT_GE(gaps, 10);
  for (const int32_t healthy : {2, 3, 4}) {
    for (Slots missing = 1; missing + 1 < Slots{1} << healthy; ++missing)
      EXPECT_TRUE(missing_at.contains({healthy, missing})) << healthy << " without " << missing;
  }
}

}  // namespace
}  // namespace phalanx::oracle
