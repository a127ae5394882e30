#include "core/checkpoint/entry.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::HasSubstr;

PartHeader AHeader() {
  PartHeader header{
      .info = {.store = "00c0ffee00c0ffee", .job = 7, .epoch = 3, .step = 50, .rank = 4},
      .entries = {{.module = "language",
                   .tensor = "model.layers.0.mlp.down_proj.weight",
                   .kind = Kind::kMaster,
                   .where = {.row = 0, .col = 8, .rows = 5, .cols = 3},
                   .transposed = true,
                   .dtype = DType::kF32,
                   .digest = 0xF},
                  {.module = "vision",
                   .tensor = "vision_model.pre_layrnorm.bias",
                   .kind = Kind::kWeight,
                   .where = {.row = 3, .col = 0, .rows = 7, .cols = 1},
                   .dtype = DType::kBf16,
                   .digest = 0xFEDCBA9876543210}}};
  PlaceEntries(absl::MakeSpan(header.entries));
  return header;
}

// The header with its text changed and its length right again.
std::string Changed(absl::string_view from, absl::string_view to) {
  const std::string bytes = WriteHeader(AHeader());
  std::string text = absl::StrReplaceAll(bytes.substr(8), {{from, to}});
  EXPECT_NE(text, bytes.substr(8)) << from;
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  return length + text;
}

TEST(EntryTest, Name_ReadsBack) {
  for (Entry entry : AHeader().entries) {
    const auto read = ParseName(NameOf(entry));
    ASSERT_TRUE(read.has_value()) << NameOf(entry);
    EXPECT_EQ(NameOf(*read), NameOf(entry));
    EXPECT_EQ(read->kind, entry.kind);
    EXPECT_EQ(read->transposed, entry.transposed);
  }
  EXPECT_EQ(NameOf(AHeader().entries[0]),
            "language/model.layers.0.mlp.down_proj.weight@0,8^T#master");
}

TEST(EntryTest, WhatIsNoName_IsNone) {
  for (const char* name : {"", "a/b", "a/b@0,0", "a/b@0,0#w", "a/b@0#m", "a@0,0#m", "/b@0,0#m",
                           "a/@0,0#m", "a/b@-1,0#m", "a/b@00,0#m", "a/b@0,0^T^T#m", "a/b@0, 0#m",
                           "a/b@9999999999999999999,0#m", "a/b@0,2147483649#m"}) {
    const auto read = ParseName(name);
    EXPECT_FALSE(read.has_value() && NameOf(*read) == name && read->tensor == "b") << name;
  }
}

TEST(HeaderTest, ReadsBack) {
  const PartHeader header = AHeader();
  const std::string bytes = WriteHeader(header);
  EXPECT_EQ(bytes.size() % kDataAlignment, 0u);
  EXPECT_EQ(HeaderBytes(bytes.substr(0, 8)).value(), static_cast<int64_t>(bytes.size()));
  const auto read = ReadHeader(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->info, header.info);
  EXPECT_EQ(read->entries, header.entries);
}

TEST(HeaderTest, Length_DoesNotDependOnDigests) {
  PartHeader header = AHeader();
  const std::string before = WriteHeader(header);
  header.entries[1].digest = 0;
  EXPECT_EQ(WriteHeader(header).size(), before.size());
}

TEST(HeaderTest, IsASafetensorsHeader) {
  const auto json = nlohmann::json::parse(WriteHeader(AHeader()).substr(8));
  const auto& entry = json["language/model.layers.0.mlp.down_proj.weight@0,8^T#master"];
  EXPECT_EQ(entry["dtype"], "F32");
  EXPECT_EQ(entry["shape"], nlohmann::json({3, 5}));
  EXPECT_EQ(entry["data_offsets"], nlohmann::json({0, 60}));
  EXPECT_EQ(json["__metadata__"]["digests"], "000000000000000ffedcba9876543210");
}

struct HeaderLie {
  const char *from, *to, *said;
};

TEST(HeaderTest, Lies_AreNamed) {
  for (
      const HeaderLie& lie : {
          HeaderLie{"phalanx-1", "phalanx-9",
                    "__metadata__.format: \"phalanx-9\": this release reads phalanx-1"},
          {"\"step\":\"50\"", "\"step\":\"-50\"", "__metadata__.step: \"-50\": must be an integer"},
          {"\"rank\":\"4\"", "\"rank\":4", "__metadata__.rank: 4: must be a string"},
          {"\"job\":\"7\"", "\"jop\":\"7\"", "__metadata__.job: is missing"},
          {"\"job\":\"7\"", "\"job\":\"7\",\"x\":\"\"", "__metadata__.x: \"\": unknown field"},
          {"000000000000000f", "00000000000000f",
           "__metadata__.digests: has 31 characters; must have 16 for each of 2 entries"},
          {"000000000000000f", "00000000000000+f",
           "__metadata__.digests: of entry 0: \"00000000000000+f\": must be 16 hexadecimal digits"},
          {"000000000000000f", "000000000000000x", "__metadata__.digests: of entry 0: "},
          {"__metadata__", "metadata", "its header: {metadata: {format: \"phalanx-1\", "},
          {"#weight", "#wait", "bias@3,0#wait\": must be named MODULE/"},
          {"\"BF16\"", "\"I64\"", "bias@3,0#weight\".dtype: \"I64\": must be BF16, F32 or F64"},
          {"[7,1]", "[8,1]", "data_offsets: [60, 74]: must be 60 and 76, as its shape"},
          {"[60,74]", "[61,75]", "data_offsets: [61, 75]: must be 60 and 74"},
          {"[7,1]", "[7]", "shape: [7]: must be two integers"},
          {"[60,74]", "[60,\"74\"]", "data_offsets: [60, \"74\"]: must be two integers"},
          {"[7,1]", "[-7,-1]", "shape: [-7, -1]: must be two integers"},
          {"[7,1]", "[0,1]", "shape: [0, 1]: must hold from 1 to 4194304 elements"},
          {"[7,1]", "[4611686018427387904,4]", "shape: [4611686018427387904, 4]: must hold from 1"},
      }) {
    EXPECT_THAT(std::string(ReadHeader(Changed(lie.from, lie.to)).status().message()),
                HasSubstr(lie.said))
        << lie.to;
  }
}

TEST(HeaderTest, EntryThatStandsTwice_IsRefused) {
  PartHeader header = AHeader();
  header.entries[1] = header.entries[0];
  PlaceEntries(absl::MakeSpan(header.entries));
  EXPECT_THAT(std::string(ReadHeader(WriteHeader(header)).status().message()),
              HasSubstr("@0,8^T#master\": stands twice"));
}

TEST(HeaderTest, CutOrForeignFile_IsRefused) {
  const std::string bytes = WriteHeader(AHeader());
  EXPECT_EQ(ReadHeader("").status().message(), "ends within its header");
  EXPECT_EQ(ReadHeader(bytes.substr(0, 100)).status().message(), "ends within its header");
  EXPECT_THAT(std::string(ReadHeader("PK\x03\x04 and so on").status().message()),
              HasSubstr("bytes; must have at most 67108864"));
}

}  // namespace
}  // namespace phalanx::checkpoint
