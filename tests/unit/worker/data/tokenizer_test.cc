// The tokenizer against sentencepiece's own tools, and its rules one by one on a small model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/prng.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"
#include "tests/support/tools.h"
#include "worker/data/data_set.h"
#include "worker/data/tokenizer_model.pb.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::MakeFolder;
using ::phalanx::support::ReadFile;
using ::phalanx::support::TokenizerModel;
using ::phalanx::support::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Load(const std::string& model) {
  const std::string path = MakeFolder("tokenizer") + "/t.model";
  WriteFile(path, model);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string LoadFault(const std::string& bytes) {
  const std::string path = MakeFolder("tokenizer") + "/t.model";
  WriteFile(path, bytes);
  return std::string(Tokenizer::Load(path).status().message());
}

// A model of the given pieces after <unk> and </s>.
tokenizer_model::Model ModelOf(tokenizer_model::Trainer::Algorithm algorithm,
                               const std::vector<std::pair<std::string, float>>& pieces) {
  tokenizer_model::Model model;
  model.mutable_trainer_spec()->set_model_type(algorithm);
  tokenizer_model::Piece* unknown = model.add_pieces();
  unknown->set_piece("<unk>");
  unknown->set_type(tokenizer_model::Piece::UNKNOWN);
  tokenizer_model::Piece* end = model.add_pieces();
  end->set_piece("</s>");
  end->set_type(tokenizer_model::Piece::CONTROL);
  for (const auto& [text, score] : pieces) {
    tokenizer_model::Piece* piece = model.add_pieces();
    piece->set_piece(text);
    piece->set_score(score);
  }
  return model;
}

TEST(TokenizerTest, Words_AreTheirPieces) {
  const auto tokenizer = Load(TokenizerModel());
  EXPECT_THAT(tokenizer->Encode("red tile"), ElementsAre(3, 11));
  EXPECT_THAT(tokenizer->Encode("  red   tile "), ElementsAre(3, 11));
  EXPECT_THAT(tokenizer->Encode(""), ElementsAre());
  EXPECT_EQ(tokenizer->end_token(), 1);
  EXPECT_EQ(tokenizer->size(), 41);
}

TEST(TokenizerTest, Decode_GivesTheTextBack) {
  const auto tokenizer = Load(TokenizerModel());
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("red tile under sky")), "red tile under sky");
  EXPECT_EQ(tokenizer->Decode({3, 1}), "red");
  EXPECT_EQ(tokenizer->Decode({-5, 3, 99999}), " \xE2\x81\x87 red \xE2\x81\x87 ");
}

TEST(TokenizerTest, RunOfUnknownCharacters_IsOneToken) {
  const auto tokenizer = Load(TokenizerModel());
  EXPECT_THAT(tokenizer->Encode("red \xC3\xA9\xC3\xA8!"), ElementsAre(3, 14, 0));
}

TEST(TokenizerTest, Unigram_TakesTheHighestSum) {
  const auto tokenizer = Load(
      ModelOf(tokenizer_model::Trainer::UNIGRAM,
              {{"\xE2\x96\x81", -1}, {"a", -2}, {"b", -2}, {"ab", -3.5}, {"abb", -6}, {"bb", -1}})
          .SerializeAsString());
  EXPECT_THAT(tokenizer->Encode("ab"), ElementsAre(2, 5));
  EXPECT_THAT(tokenizer->Encode("abb"), ElementsAre(2, 3, 7));
}

TEST(TokenizerTest, Bpe_JoinsTheBestPairFirst) {
  const auto tokenizer = Load(
      ModelOf(
          tokenizer_model::Trainer::BPE,
          {{"\xE2\x96\x81", 0}, {"a", 0}, {"b", 0}, {"c", 0}, {"bc", -1}, {"ab", -2}, {"abc", -3}})
          .SerializeAsString());
  EXPECT_THAT(tokenizer->Encode("abc"), ElementsAre(2, 8));
  EXPECT_THAT(tokenizer->Encode("abab"), ElementsAre(2, 7, 7));
}

TEST(TokenizerTest, ByteFallback_SpellsUnknownCharacters) {
  tokenizer_model::Model model = ModelOf(tokenizer_model::Trainer::BPE, {{"\xE2\x96\x81", 0}});
  model.mutable_trainer_spec()->set_byte_fallback(true);
  for (int byte = 0; byte < 256; ++byte) {
    static constexpr char kDigits[] = "0123456789ABCDEF";
    tokenizer_model::Piece* piece = model.add_pieces();
    piece->set_piece(absl::StrCat("<0x", std::string(1, kDigits[byte / 16]),
                                  std::string(1, kDigits[byte % 16]), ">"));
    piece->set_type(tokenizer_model::Piece::BYTE);
  }
  const auto tokenizer = Load(model.SerializeAsString());
  EXPECT_THAT(tokenizer->Encode("\xC3\xA9"), ElementsAre(2, 3 + 0xC3, 3 + 0xA9));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("h\xC3\xA9!")), "h\xC3\xA9!");
}

TEST(TokenizerTest, OtherFiles_AreNoModel) {
  EXPECT_THAT(LoadFault(""), HasSubstr("is not a sentencepiece model"));
  EXPECT_THAT(LoadFault("garbage that is no protobuf"), HasSubstr("is not a sentencepiece model"));
  EXPECT_THAT(LoadFault(std::string(5000, '\x7f')), HasSubstr("is not a sentencepiece model"));
  EXPECT_THAT(Tokenizer::Load("/nonexistent.model").status().message(), HasSubstr("No such file"));
  EXPECT_THAT(Tokenizer::Load(MakeFolder("tokenizer")).status().message(),
              HasSubstr("not a regular file"));
}

TEST(TokenizerTest, BrokenModels_AreNamed) {
  tokenizer_model::Model model = ModelOf(tokenizer_model::Trainer::UNIGRAM, {{"a", -1}, {"a", -2}});
  EXPECT_THAT(LoadFault(model.SerializeAsString()), HasSubstr("piece 3 appears twice"));
  model = ModelOf(tokenizer_model::Trainer::UNIGRAM, {{"", -1}});
  EXPECT_THAT(LoadFault(model.SerializeAsString()), HasSubstr("piece 2 is empty"));
  model = ModelOf(tokenizer_model::Trainer::WORD, {{"a", -1}});
  EXPECT_THAT(LoadFault(model.SerializeAsString()), HasSubstr("must be unigram or bpe"));
  model = ModelOf(tokenizer_model::Trainer::UNIGRAM, {{"a", -1}});
  model.mutable_normalizer_spec()->set_precompiled_charsmap(std::string("\xFF\xFF\x00\x00zz", 6));
  EXPECT_THAT(LoadFault(model.SerializeAsString()), HasSubstr("normalisation table is cut short"));
}

TEST(TokenizerTest, DamagedModels_NeverCrash) {
  const std::string model = TokenizerModel();
  const std::string path = MakeFolder("tokenizer") + "/t.model";
  Prng prng(11);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = model;
    for (int i = 0; i < 4; ++i)
      damaged[prng.Below(damaged.size())] = static_cast<char>(prng.Next());
    WriteFile(path, damaged);
    const auto tokenizer = Tokenizer::Load(path);
    if (tokenizer.ok()) (*tokenizer)->Encode("red tile \xFF\xFE under sky");
  }
}

// Lines that meet every rule of normalisation, from a seed.
std::string HardText() {
  std::string text =
      "  leading and   double  spaces  \n"
      "\xEF\xAC\x81ne \xC2\xBD \xE2\x91\xA0\xE2\x91\xA1 \xEF\xBE\x8A\xEF\xBE\x9D "
      "\xEF\xBC\xA1\ttab\n"
      "a\xE2\x96\x81"
      "b literal <unk> </s> <sep> skin tone <0x41>\n"
      "bad \xFF\xFE utf \xC3( \xE2\x82 end\xF0\x9F\n\n";
  Prng prng(3);
  for (int line = 0; line < 400; ++line) {
    for (uint64_t n = prng.Below(40); n > 0; --n) {
      const uint64_t kind = prng.Below(10);
      if (kind < 5) {
        static constexpr const char* kParts[] = {"skin ", "tone", "face", " with ", "red", "ing"};
        absl::StrAppend(&text, kParts[prng.Below(6)]);
      } else if (kind < 7) {
        text.push_back(static_cast<char>(0x20 + prng.Below(0x5F)));
      } else {
        const uint32_t code = static_cast<uint32_t>(kind < 9 ? 0xA0 + prng.Below(0x700)
                                                             : 0x2030 + prng.Below(0xD000));
        if (code >= 0xD800 && code < 0xE000) continue;
        if (code < 0x800) {
          text.push_back(static_cast<char>(0xC0 | code >> 6));
        } else {
          text.push_back(static_cast<char>(0xE0 | code >> 12));
          text.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
        }
        text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
      }
    }
    text.push_back('\n');
  }
  return text;
}

TEST(TokenizerTest, EveryKindOfModel_SplitsAsSpmEncodeDoes) {
  PHALANX_SKIP_WITHOUT_TOOL(
      std::system("command -v spm_train >/dev/null && command -v spm_encode >/dev/null") != 0
          ? "no spm_train: scripts/setup brings it"
          : "");
  const std::string folder = MakeFolder("tokenizer");
  std::string corpus;
  for (int i = 0; i < 20; ++i) {
    corpus +=
        "grinning face with big eyes\nwaving hand: light skin tone\nwoman: red hair, curly\n"
        "flag: C\xC3\xB4te d\xE2\x80\x99Ivoire\nbutton (blood type)\nsmiling cat with heart-eyes\n";
  }
  WriteFile(folder + "/corpus.txt", corpus);
  const std::string text = HardText();
  WriteFile(folder + "/text.txt", text);
  for (const std::string options :
       {"--model_type=unigram --vocab_size=90",
        "--model_type=bpe --vocab_size=350 --byte_fallback=true",
        "--model_type=unigram --vocab_size=350 --byte_fallback=true "
        "--normalization_rule_name=identity "
        "--remove_extra_whitespaces=false '--user_defined_symbols=<sep>,skin tone'",
        "--model_type=bpe --vocab_size=90 --add_dummy_prefix=false "
        "--normalization_rule_name=nfkc_cf "
        "'--user_defined_symbols=<sep>,skin tone'",
        "--model_type=unigram --vocab_size=90 --treat_whitespace_as_suffix=true"}) {
    const std::string command = absl::StrCat(
        "cd ", folder,
        " && spm_train --input=corpus.txt --model_prefix=m --hard_vocab_limit=false ", options,
        " >train.log 2>&1 && spm_encode --model=m.model --output_format=id <text.txt >ids.txt "
        "2>/dev/null");
    ASSERT_EQ(std::system(command.c_str()), 0) << options << "\n"
                                               << ReadFile(folder + "/train.log");
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        Tokenizer::Load(folder + "/m.model");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::istringstream lines(text), expected(ReadFile(folder + "/ids.txt"));
    std::string line, ids;
    int count = 0;
    while (std::getline(lines, line) && std::getline(expected, ids)) {
      ++count;
      EXPECT_EQ(absl::StrJoin((*tokenizer)->Encode(line), " "), ids) << options << ": " << line;
    }
    EXPECT_GT(count, 400);
  }
}

}  // namespace
}  // namespace phalanx::data
