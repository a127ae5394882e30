// A smoke run: mutations of the corpus, from a seed that a failure prints.
//   PHALANX_FUZZ_SEED=N begins with that one; PHALANX_FUZZ_COUNT=N tries so many.
#include "tests/fuzz/support/fuzz.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "core/base/prng.h"
#include "gtest/gtest.h"

namespace phalanx::fuzz {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// One edit of bytes: a bit, a byte, a run that goes, comes twice, or is another input's.
void Edit(std::string& bytes, const std::string& other, Prng& prng) {
  static const std::string kBytes("\x00\x01\x7F\x80\xFF\n\r \"/?:.0-", 15);
  const size_t at = prng.Below(bytes.size() + 1), run = 1 + prng.Below(16);
  const size_t from = prng.Below(other.size() + 1);
  switch (prng.Below(6)) {
    case 0:
      if (at < bytes.size()) bytes[at] ^= static_cast<char>(1 << prng.Below(8));
      return;
    case 1:
      if (at < bytes.size()) bytes[at] = kBytes[prng.Below(kBytes.size())];
      return;
    case 2:
      bytes.erase(at, run);
      return;
    case 3:
      bytes.insert(at, bytes.substr(prng.Below(bytes.size() + 1), run));
      return;
    case 4:
      bytes.insert(at, other.substr(from, run));
      return;
    default:
      if (prng.Below(8) == 0) bytes.resize(at);
  }
}

TEST(FuzzTest, Corpus_IsTaken) {
  for (const std::string& bytes : Corpus()) ASSERT_EQ(Check(bytes), "") << absl::CHexEscape(bytes);
}

TEST(FuzzTest, MutatedCorpus_IsTakenOrRefused) {
  const std::vector<std::string> corpus = Corpus();
  const uint64_t first = FromEnvironment("PHALANX_FUZZ_SEED", 1);
  const uint64_t count = FromEnvironment("PHALANX_FUZZ_COUNT", 3000);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Prng prng(seed);
    std::string bytes = corpus[prng.Below(corpus.size())];
    const uint64_t edits = 1 + prng.Below(4);
    for (uint64_t i = 0; i < edits; ++i) {
      if (Mutated != nullptr && prng.Below(4) != 0) {
        bytes = Mutated(bytes, prng);
      } else {
        Edit(bytes, corpus[prng.Below(corpus.size())], prng);
      }
    }
    ASSERT_EQ(Check(bytes), "") << "PHALANX_FUZZ_SEED=" << seed << "\n" << absl::CHexEscape(bytes);
  }
}

}  // namespace
}  // namespace phalanx::fuzz
