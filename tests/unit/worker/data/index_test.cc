// Building, saving and loading an index; violations; corrupt samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/violation.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"
#include "worker/data/data_set.h"
#include "worker/data/read_progress.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodePng;
using ::phalanx::support::ImageEncoder;
using ::phalanx::support::MakeFolder;
using ::phalanx::support::ReadFile;
using ::phalanx::support::ShardFiles;
using ::phalanx::support::TarBuilder;
using ::phalanx::support::TokenizerModel;
using ::phalanx::support::WriteFile;
using ::phalanx::support::WriteShards;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class IndexTest : public ::testing::Test {
 protected:
  DataSetSpec SpecOf(const ShardFiles& files) {
    return {.shards = files.shards,
            .tokenizer = files.tokenizer,
            .encoders = {ImageEncoder(4)},
            .context = 32,
            .vocabulary = files.vocabulary};
  }

  // A spec of one shard with these bytes.
  DataSetSpec OneShard(absl::string_view bytes, const std::string& name = "one.tar") {
    const DataSetSpec spec{.shards = {absl::StrCat(folder_, "/", name)},
                           .tokenizer = folder_ + "/t.model",
                           .encoders = {ImageEncoder(4)},
                           .context = 32,
                           .vocabulary = 64};
    WriteFile(spec.shards[0], bytes);
    WriteFile(spec.tokenizer, TokenizerModel());
    return spec;
  }

  Index BuildOrDie(const DataSetSpec& spec) {
    absl::StatusOr<Index> index = Index::Build(spec);
    if (!index.ok()) {
      ADD_FAILURE() << index.status();
      std::abort();
    }
    return *std::move(index);
  }

  std::vector<std::string> ViolationsIn(const DataSetSpec& spec) {
    std::vector<std::string> texts;
    for (const Violation& violation : ViolationsOf(Index::Build(spec).status()))
      texts.push_back(ToString(violation));
    return texts;
  }

  // The only sample of a shard with these bytes is corrupt for this reason.
  void ExpectCorrupt(absl::string_view bytes, absl::string_view reason) {
    const Index index = BuildOrDie(OneShard(bytes));
    ASSERT_THAT(index.corrupt_samples(), SizeIs(1));
    EXPECT_THAT(index.corrupt_samples()[0].reason, HasSubstr(std::string(reason)));
    EXPECT_TRUE(index.shape(0).corrupt);
    EXPECT_EQ(index.shape(0).images, 0);
    EXPECT_EQ(index.shape(0).counted, 0);
    EXPECT_GE(index.shape(0).positions, 1);
  }

  const std::string folder_ = MakeFolder("index");
  const std::string png_ = EncodePng({}, {1, 2, 3});
};

TEST_F(IndexTest, Build_KnowsEveryShape) {
  const Index index = BuildOrDie(SpecOf(WriteShards(
      folder_, {.samples = 30, .shards = 3, .images_min = 0, .images_max = 2, .words = 3})));
  ASSERT_EQ(index.size(), 30);
  EXPECT_THAT(index.corrupt_samples(), SizeIs(0));
  bool seen[3] = {};
  for (int64_t sample = 0; sample < index.size(); ++sample) {
    const SampleShape& shape = index.shape(sample);
    ASSERT_LE(shape.images, 2);
    seen[shape.images] = true;
    EXPECT_EQ(shape.positions, 4 * shape.images + 3);  // rows and three words
    EXPECT_EQ(shape.counted, shape.images == 0 ? 3 : 4);
  }
  EXPECT_TRUE(seen[0] && seen[1] && seen[2]);
  EXPECT_EQ(index.NameOf(0), "set-000.tar: 000000");
  EXPECT_EQ(index.NameOf(29), "set-002.tar: 000029");
}

TEST_F(IndexTest, FileThatIsGoneOrDamaged_IsMadeUpForByTheShards) {
  const DataSetSpec spec = OneShard(TarBuilder().File("a.txt", "red").File("a.png", png_).Finish());
  const std::string path = folder_ + "/indexes/one.index", digest = BuildOrDie(spec).digest();
  ReadProgress progress;
  const auto open = [&] { return Index::LoadOrBuild(path, spec, &progress); };
  for (const bool damaged : {false, true}) {
    if (damaged) WriteFile(path, "no index");
    progress.bytes = 0;
    const absl::StatusOr<Index> index = open();
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(index->digest(), digest);
    EXPECT_GT(progress.bytes, 0);
    // Who comes next reads nothing.
    progress.bytes = 0;
    EXPECT_EQ(open()->digest(), digest);
    EXPECT_EQ(progress.bytes, 0);
  }
  // It is of other shards, which nobody has agreed on.
  WriteFile(spec.shards[0], TarBuilder().File("b.txt", "blue sky").Finish());
  EXPECT_EQ(open().status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(path);
  progress.called_off = true;
  EXPECT_TRUE(absl::IsCancelled(open().status()));
}

TEST_F(IndexTest, Members_AreGroupedByKeyWhereverTheyStand) {
  const Index index = BuildOrDie(OneShard(TarBuilder()
                                              .File("d/b.1.JPG", png_)
                                              .Directory("d/")
                                              .File("a.txt", "red")
                                              .File("d/b.json", "{}")
                                              .File("README", "none")
                                              .File("d/b.txt", "blue sky")
                                              .File("a.png", png_)
                                              .File("d/b.0.png", png_)
                                              .File("c.txt", "tile")
                                              .Finish()));
  ASSERT_EQ(index.size(), 3);
  EXPECT_EQ(index.NameOf(0), "one.tar: d/b");
  EXPECT_EQ(index.shape(0).images, 2);
  EXPECT_EQ(index.NameOf(1), "one.tar: a");
  EXPECT_EQ(index.shape(1).images, 1);
  EXPECT_EQ(index.shape(2).images, 0);
  EXPECT_THAT(index.corrupt_samples(), SizeIs(0));
}

TEST_F(IndexTest, BytesRead_GrowWithEveryHeaderAndText) {
  const std::string tar =
      TarBuilder().File("a.txt", "red").File("a.0.png", "no image").File("b.txt", "blue").Finish();
  ReadProgress progress;
  ASSERT_TRUE(Index::Build(OneShard(tar), &progress).ok());
  EXPECT_EQ(progress.bytes, 3 * 512 + 3 + 4);
  // Without its end no text of it is read; its headers were.
  progress.bytes = 0;
  ASSERT_FALSE(Index::Build(OneShard(tar.substr(0, 3 * 1024)), &progress).ok());
  EXPECT_EQ(progress.bytes, 3 * 512);
}

TEST_F(IndexTest, FaultySamples_AreCorruptAndNamed) {
  ExpectCorrupt(TarBuilder().File("a.png", png_).Finish(), "lacks its text member");
  ExpectCorrupt(TarBuilder().File("a.txt", "<image> red").Finish(),
                "has 1 <image> mark and 0 images");
  ExpectCorrupt(TarBuilder().File("a.txt", "red").File("a.1.png", png_).Finish(),
                "lacks its item 0");
  ExpectCorrupt(
      TarBuilder().File("a.txt", "red").File("a.0.png", png_).File("a.2.png", png_).Finish(),
      "lacks its item 1");
  ExpectCorrupt(
      TarBuilder().File("a.txt", "red").File("a.png", png_).File("a.0.jpg", png_).Finish(),
      "has a member twice");
  ExpectCorrupt(TarBuilder().File("a.txt", "red").File("a.txt", "blue").Finish(),
                "has a member twice");
  ExpectCorrupt(TarBuilder().File("a.txt", std::string(kTextBytesMax + 1, 'a')).Finish(),
                "must have at most 1048576");
  TarBuilder many;
  many.File("a.txt", "red");
  for (int i = 0; i < 9; ++i) many.File(absl::StrCat("a.", i, ".png"), png_);
  ExpectCorrupt(many.Finish(), "items_max (8)");
}

TEST_F(IndexTest, CorruptSample_NamesShardAndKeyAmongOthers) {
  const Index index = BuildOrDie(OneShard(TarBuilder()
                                              .File("good.txt", "red")
                                              .File("bad.png", png_)
                                              .File("fine.txt", "blue")
                                              .Finish()));
  ASSERT_THAT(index.corrupt_samples(), SizeIs(1));
  EXPECT_EQ(index.corrupt_samples()[0].shard, "one.tar");
  EXPECT_EQ(index.corrupt_samples()[0].key, "bad");
  EXPECT_EQ(index.corrupt_samples()[0].sample, 1);
}

TEST_F(IndexTest, KeysThatAreNoText_ArePrintable) {
  const Index index =
      BuildOrDie(OneShard(TarBuilder().File("bad\n\xFFkey\xC3\xA9.png", png_).Finish()));
  EXPECT_EQ(index.NameOf(0), "one.tar: bad\\x0a\\xffkey\xC3\xA9");
  EXPECT_EQ(index.corrupt_samples()[0].key, "bad\\x0a\\xffkey\xC3\xA9");
}

TEST_F(IndexTest, ManyFaultyShards_AreCounted) {
  DataSetSpec spec = OneShard(TarBuilder().File("a.txt", "red").Finish());
  for (int i = 0; i < 50; ++i) spec.shards.push_back("/nonexistent.tar");
  const std::vector<std::string> violations = ViolationsIn(spec);
  ASSERT_THAT(violations, SizeIs(21));
  EXPECT_EQ(violations.back(), "spec.data.shards: 30 more shards cannot be used");
}

TEST_F(IndexTest, EveryViolation_IsReportedAtOnce) {
  ShardFiles files = WriteShards(folder_, {.shards = 3});
  WriteFile(files.shards[0], "");
  const std::string whole = ReadFile(files.shards[1]);
  WriteFile(files.shards[1], whole.substr(0, whole.size() / 2));
  files.shards.push_back(folder_ + "/missing.tar");
  WriteFile(files.tokenizer, TokenizerModel(559));
  DataSetSpec spec = SpecOf(files);
  spec.vocabulary = 512;
  spec.vocabulary_field = "spec.modules[1].architecture.vocabulary";
  EXPECT_THAT(
      ViolationsIn(spec),
      ElementsAre(
          absl::StrCat("spec.data.tokenizer: ", files.tokenizer,
                       ": has 600 pieces; must fit spec.modules[1].architecture.vocabulary (512)"),
          absl::StrCat("spec.data.shards[0]: ", files.shards[0], ": is empty"),
          HasSubstr(
              absl::StrCat("spec.data.shards[1]: ", files.shards[1], ": is truncated: member")),
          absl::StrCat("spec.data.shards[3]: ", files.shards[3],
                       ": cannot be opened: No such file or directory")));
}

TEST_F(IndexTest, Tokenizer_ThatIsNoneOrHasNoEndIsAViolation) {
  DataSetSpec spec = OneShard(TarBuilder().File("a.txt", "red").Finish());
  WriteFile(spec.tokenizer, ReadFile(spec.shards[0]));
  EXPECT_THAT(ViolationsIn(spec), ElementsAre(HasSubstr("is not a sentencepiece model")));
  std::string model = TokenizerModel();
  model.replace(model.find("</s>"), 4, "</S>");
  WriteFile(spec.tokenizer, model);
  EXPECT_THAT(ViolationsIn(spec), ElementsAre(HasSubstr("has no end token")));
}

TEST_F(IndexTest, NoSamples_IsAViolation) {
  EXPECT_THAT(ViolationsIn(OneShard(TarBuilder().File("notes.md", "x").Finish())),
              ElementsAre(HasSubstr("spec.data.shards: must hold samples")));
  EXPECT_THAT(ViolationsIn(OneShard(TarBuilder().Finish())), SizeIs(1));
}

TEST_F(IndexTest, FieldNames_AreTheCallers) {
  DataSetSpec spec = OneShard("");
  spec.shards_field = "spec.data.validation";
  EXPECT_THAT(ViolationsIn(spec), ElementsAre(HasSubstr("spec.data.validation[0]: ")));
}

TEST_F(IndexTest, Digest_DependsOnContentAndNotOnPlace) {
  const ShardFiles here = WriteShards(folder_, {});
  const ShardFiles there = WriteShards(MakeFolder("index"), {});
  EXPECT_EQ(BuildOrDie(SpecOf(here)).digest(), BuildOrDie(SpecOf(there)).digest());
  EXPECT_THAT(BuildOrDie(SpecOf(here)).digest(), SizeIs(32));
}

TEST_F(IndexTest, Digest_TellsTextsModelsAndShapesApart) {
  const ShardFiles files = WriteShards(folder_, {});
  const std::string digest = BuildOrDie(SpecOf(files)).digest();
  DataSetSpec spec = SpecOf(files);
  spec.encoders = {ImageEncoder(5)};
  EXPECT_NE(BuildOrDie(spec).digest(), digest);
  spec = SpecOf(files);
  std::reverse(spec.shards.begin(), spec.shards.end());
  EXPECT_NE(BuildOrDie(spec).digest(), digest);
  // One word for another of the same length: every size and shape stays.
  std::string bytes = ReadFile(files.shards[0]);
  const size_t word = bytes.find(" sky");
  ASSERT_NE(word, std::string::npos);
  bytes.replace(word, 4, " red");
  WriteFile(files.shards[0], bytes);
  EXPECT_NE(BuildOrDie(SpecOf(files)).digest(), digest);
}

TEST_F(IndexTest, SaveAndLoad_GiveTheSameIndex) {
  const DataSetSpec spec = SpecOf(WriteShards(folder_, {.images_max = 3}));
  const Index built = BuildOrDie(spec);
  const std::string path = folder_ + "/index";
  ASSERT_TRUE(built.Save(path).ok());
  std::filesystem::last_write_time(path, {});
  const absl::StatusOr<Index> loaded = Index::Load(path, spec);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_NE(std::filesystem::last_write_time(path), std::filesystem::file_time_type())
      << "it says that it was used";
  EXPECT_EQ(loaded->digest(), built.digest());
  ASSERT_EQ(loaded->size(), built.size());
  for (int64_t i = 0; i < built.size(); ++i) {
    EXPECT_EQ(loaded->shape(i), built.shape(i));
    EXPECT_EQ(loaded->NameOf(i), built.NameOf(i));
  }
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(path, ".", getpid(), ".tmp")));
}

TEST_F(IndexTest, Load_KeepsCorruptSamples) {
  const DataSetSpec spec = OneShard(TarBuilder().File("a.png", png_).File("b.txt", "red").Finish());
  ASSERT_TRUE(BuildOrDie(spec).Save(folder_ + "/index").ok());
  const absl::StatusOr<Index> loaded = Index::Load(folder_ + "/index", spec);
  ASSERT_TRUE(loaded.ok());
  ASSERT_THAT(loaded->corrupt_samples(), SizeIs(1));
  EXPECT_EQ(loaded->corrupt_samples()[0].reason, "lacks its text member");
}

TEST_F(IndexTest, Load_OfAnotherSpecOrChangedFilesIsRefused) {
  const DataSetSpec spec = SpecOf(WriteShards(folder_, {}));
  const std::string path = folder_ + "/index";
  ASSERT_TRUE(BuildOrDie(spec).Save(path).ok());
  DataSetSpec other = spec;
  other.context = 16;
  EXPECT_EQ(Index::Load(path, other).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Index::Load(path, spec).ok());
  std::filesystem::last_write_time(
      spec.shards[1], std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(Index::Load(path, spec).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Index::Load(folder_ + "/none", spec).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(IndexTest, Load_OfADamagedFileIsRefused) {
  const DataSetSpec spec = SpecOf(WriteShards(folder_, {.samples = 3, .shards = 1}));
  const std::string path = folder_ + "/index";
  ASSERT_TRUE(BuildOrDie(spec).Save(path).ok());
  const std::string whole = ReadFile(path);
  for (size_t i = 0; i < whole.size(); i += 7) {
    WriteFile(path, whole.substr(0, i));
    EXPECT_EQ(Index::Load(path, spec).status().code(), absl::StatusCode::kDataLoss) << i;
    std::string flipped = whole;
    flipped[i] ^= 1;
    WriteFile(path, flipped);
    EXPECT_EQ(Index::Load(path, spec).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST_F(IndexTest, Save_WhereThereIsNoFolderFails) {
  EXPECT_EQ(BuildOrDie(SpecOf(WriteShards(folder_, {}))).Save("/nonexistent/index").code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace phalanx::data
