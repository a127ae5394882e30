// A smoke run: mutations of valid documents, from a seed that a failure prints.
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "gtest/gtest.h"
#include "tests/fuzz/support/fuzz.h"

namespace phalanx::fuzz {
namespace {

constexpr int kDocuments = 1500;

// Cuts `text` where words and punctuation meet.
std::vector<std::string> Tokens(const std::string& text) {
  std::vector<std::string> tokens;
  for (const char c : text) {
    const bool word =
        std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
    const bool joins =
        word && !tokens.empty() && !tokens.back().empty() &&
        (std::isalnum(static_cast<unsigned char>(tokens.back().back())) ||
         tokens.back().back() == '_' || tokens.back().back() == '.' || tokens.back().back() == '-');
    if (joins) {
      tokens.back() += c;
    } else {
      tokens.push_back(std::string(1, c));
    }
  }
  return tokens;
}

std::string Mutate(std::vector<std::string> tokens, Prng& prng) {
  static const std::vector<std::string> kWords = {
      "0",       "-1",   "1e999",  ".nan",     ".inf",     "99999999999999999999",
      "1048576", "null", "~",      "true",     "\"",       "'",
      "{",       "}",    "[",      "]",        ":",        ": ",
      ",",       "\n",   "  ",     "&a ",      "*a",       "!!str ",
      "|\n",     ">\n",  "? ",     "---\n",    "...\n",    "#",
      "%YAML",   "\t",   "vision", "language", "dp",       "{000..999}",
      "{a,b}",   "2",    "3",      "\\",       "\xC3\xA9", "\xFF",
      "<<",      "16Gi", "3h",     "llama",    "whisper",  "regressor",
      "none",    "tp",   "- "};
  const uint64_t edits = 1 + prng.Below(4);
  for (uint64_t i = 0; i < edits && !tokens.empty(); ++i) {
    const size_t at = prng.Below(tokens.size());
    switch (prng.Below(5)) {
      case 0:
        tokens[at] = kWords[prng.Below(kWords.size())];
        break;
      case 1:
        tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 2:
        tokens.insert(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                      kWords[prng.Below(kWords.size())]);
        break;
      case 3:
        tokens[at] = tokens[prng.Below(tokens.size())];
        break;
      case 4:
        if (!tokens[at].empty())
          tokens[at][prng.Below(tokens[at].size())] ^= static_cast<char>(1 << prng.Below(8));
        break;
    }
  }
  std::string text;
  for (const std::string& token : tokens) text += token;
  if (prng.Below(20) == 0) text.resize(prng.Below(text.size() + 1));
  return text;
}

TEST(JobFileFuzzTest, MutatedDocuments_AreReadOrRefused) {
  const char* chosen = std::getenv("PHALANX_FUZZ_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
  std::vector<std::vector<std::string>> documents;
  for (const std::string& text : Corpus()) documents.push_back(Tokens(text));
  for (int i = 0; i < kDocuments; ++i) {
    Prng prng(seed + static_cast<uint64_t>(i));
    const std::string text = Mutate(documents[prng.Below(documents.size())], prng);
    const std::string wrong = Check(text);
    ASSERT_EQ(wrong, "") << "PHALANX_FUZZ_SEED=" << seed + static_cast<uint64_t>(i) << "\n" << text;
  }
}

TEST(JobFileFuzzTest, RandomPunctuation_IsReadOrRefused) {
  constexpr absl::string_view kAlphabet = "ab01 \n\t:-,[]{}#&*!|>'\"%@`?~.\xC3\xA9";
  Prng prng(2);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    const uint64_t length = prng.Below(200);
    for (uint64_t k = 0; k < length; ++k) text += kAlphabet[prng.Below(kAlphabet.size())];
    ASSERT_EQ(Check(text), "") << text;
  }
}

}  // namespace
}  // namespace phalanx::fuzz
