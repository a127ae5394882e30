// Sounds and targets, from shard to sample.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"
#include "tests/support/sounds.h"
#include "worker/data/data_set.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodeNpy;
using ::phalanx::support::EncodePng;
using ::phalanx::support::EncodeSound;
using ::phalanx::support::ImageEncoder;
using ::phalanx::support::MakeFolder;
using ::phalanx::support::ShardFiles;
using ::phalanx::support::SoundEncoder;
using ::phalanx::support::SoundFormat;
using ::phalanx::support::TarBuilder;
using ::phalanx::support::TokenizerModel;
using ::phalanx::support::Tone;
using ::phalanx::support::WriteFile;
using ::phalanx::support::WriteShards;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const LoaderOptions kEverything{.modules = {0, 1}, .targets = true};

class ItemsTest : public ::testing::Test {
 protected:
  void UseShard(absl::string_view bytes) {
    WriteFile(spec_.shards[0], bytes);
    WriteFile(spec_.tokenizer, TokenizerModel());
  }
  Index BuildOrDie() {
    absl::StatusOr<Index> index = Index::Build(spec_);
    if (!index.ok()) {
      ADD_FAILURE() << index.status();
      std::abort();
    }
    return *std::move(index);
  }
  std::shared_ptr<const Sample> Take(int64_t sample, LoaderOptions options = kEverything) {
    options.threads = 0;
    const auto loader = Loader::Create(BuildOrDie(), spec_, options);
    EXPECT_TRUE(loader.ok()) << loader.status();
    const auto taken = (*loader)->Take(sample);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *taken : nullptr;
  }
  // The only sample of a shard with these bytes is corrupt for this reason.
  void ExpectCorrupt(absl::string_view bytes, absl::string_view reason) {
    UseShard(bytes);
    const Index index = BuildOrDie();
    ASSERT_THAT(index.corrupt_samples(), SizeIs(1)) << reason;
    EXPECT_THAT(index.corrupt_samples()[0].reason, HasSubstr(std::string(reason)));
    EXPECT_EQ(index.shape(0).sounds, 0);
    EXPECT_EQ(index.shape(0).target_rows, 0);
  }

  const std::string folder_ = MakeFolder("items");
  const std::string png_ = EncodePng({}, {255, 255, 255});
  const std::string wav_ = EncodeSound({}, Tone(500, 800));
  const std::string flac_ = EncodeSound({.format = SoundFormat::kFlac}, Tone(500, 800));
  DataSetSpec spec_{.shards = {folder_ + "/one.tar"},
                    .tokenizer = folder_ + "/t.model",
                    .encoders = {ImageEncoder(4), SoundEncoder(3)},
                    .context = 32};
};

TEST_F(ItemsTest, SampleOfBothKinds_HasBoth) {
  UseShard(TarBuilder()
               .File("a.2.flac", flac_)
               .File("a.0.wav", wav_)
               .File("a.1.png", png_)
               .File("a.txt", "<audio>red<image>sky<audio>tile")
               .Finish());
  EXPECT_EQ(BuildOrDie().shape(0),
            (SampleShape{.images = 1, .sounds = 2, .positions = 13, .counted = 2}));
  const auto sample = Take(0);
  EXPECT_FALSE(sample->corrupt) << sample->corrupt_reason;
  EXPECT_THAT(sample->encoders.at(1).positions, ElementsAre(0, 1, 2, 9, 10, 11));
  EXPECT_THAT(sample->encoders.at(0).positions, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(sample->encoders.at(0).values, SizeIs(1));
  ASSERT_THAT(sample->encoders.at(1).values, SizeIs(2));
  EXPECT_THAT(sample->encoders.at(1).values[0], SizeIs(8 * 6));
  // The same tone in either format.
  for (size_t i = 0; i < 48; ++i) {
    EXPECT_NEAR(sample->encoders.at(1).values[0][i], sample->encoders.at(1).values[1][i], 1e-3)
        << i;
  }
}

TEST_F(ItemsTest, EncodersOfOneKind_EachReadEveryItemTheirWay) {
  spec_.encoders = {ImageEncoder(4), ImageEncoder(9, 12, 1)};
  UseShard(TarBuilder()
               .File("a.0.png", png_)
               .File("a.1.png", png_)
               .File("a.txt", "<image>red<image>sky")
               .Finish());
  EXPECT_EQ(BuildOrDie().shape(0), (SampleShape{.images = 2, .positions = 28, .counted = 2}));
  EXPECT_THAT(BuildOrDie().rows(0),
              ElementsAre(ItemRows{0, 4}, ItemRows{1, 9}, ItemRows{0, 4}, ItemRows{1, 9}));
  const auto both = Take(0), second = Take(0, {.modules = {1}});
  EXPECT_THAT(both->encoders.at(0).positions, ElementsAre(0, 1, 2, 3, 14, 15, 16, 17));
  EXPECT_THAT(both->encoders.at(1).positions, SizeIs(18));
  EXPECT_THAT(both->encoders.at(0).values, ElementsAre(SizeIs(3 * 8 * 8), SizeIs(3 * 8 * 8)));
  EXPECT_THAT(both->encoders.at(1).values, ElementsAre(SizeIs(3 * 12 * 12), SizeIs(3 * 12 * 12)));
  // What one encoder reads does not depend on whether another one is on the rank.
  EXPECT_EQ(second->encoders.at(1).values, both->encoders.at(1).values);
  EXPECT_THAT(second->encoders.at(0).values, IsEmpty());
}

TEST_F(ItemsTest, WithoutNumbers_TheMemberIsItemZero) {
  UseShard(TarBuilder().File("a.flac", flac_).File("a.txt", "red").Finish());
  EXPECT_EQ(BuildOrDie().shape(0).sounds, 1);
  ExpectCorrupt(TarBuilder().File("a.wav", wav_).File("a.png", png_).File("a.txt", "red").Finish(),
                "has a member twice: item 0");
  ExpectCorrupt(
      TarBuilder().File("a.0.wav", wav_).File("a.2.png", png_).File("a.txt", "red").Finish(),
      "lacks its item 1");
}

TEST_F(ItemsTest, RankWithoutAnEncoder_OpensNoneOfItsItems) {
  UseShard(
      TarBuilder().File("a.0.wav", "no sound").File("a.1.png", png_).File("a.txt", "red").Finish());
  LoaderOptions options = kEverything;
  options.modules = {0};
  const auto images = Take(0, options);
  EXPECT_FALSE(images->corrupt);
  EXPECT_THAT(images->encoders.at(1).values, IsEmpty());
  EXPECT_THAT(images->encoders.at(1).positions, SizeIs(3));
  EXPECT_THAT(images->encoders.at(0).values, SizeIs(1));
}

TEST_F(ItemsTest, SoundThatDoesNotDecode_KeepsItsShapeWithZeros) {
  UseShard(TarBuilder()
               .File("a.0.png", png_)
               .File("a.1.wav", wav_.substr(0, 1000))
               .File("a.txt", "red")
               .Finish());
  const auto sample = Take(0);
  EXPECT_TRUE(sample->corrupt);
  EXPECT_EQ(sample->corrupt_reason,
            "one.tar: a: item 1 is a truncated WAV: has 956 of 1600 bytes of samples");
  ASSERT_THAT(sample->encoders.at(1).values, SizeIs(1));
  EXPECT_THAT(sample->encoders.at(1).values[0], SizeIs(48));
  EXPECT_THAT(sample->encoders.at(1).values[0], Each(0.0f));
  EXPECT_NE(sample->encoders.at(0).values[0][0], 0.0f);
}

TEST_F(ItemsTest, JobWithoutAnAudioModule_LeavesSoundsOut) {
  spec_.encoders = {ImageEncoder(4)};
  UseShard(TarBuilder()
               .File("a.0.wav", wav_)
               .File("a.1.png", png_)
               .File("a.txt", "<image>red<audio>")
               .Finish());
  EXPECT_EQ(BuildOrDie().shape(0), (SampleShape{.images = 1, .positions = 5, .counted = 2}));
  EXPECT_THAT(Take(0, {.modules = {0}})->encoders, SizeIs(1));
}

TEST_F(ItemsTest, Target_IsReadInEitherPrecision) {
  spec_.targets = true;
  spec_.target_hidden = 2;
  const double numbers[2] = {0.5, -3};
  UseShard(TarBuilder()
               .File("a.target.npy", EncodeNpy(2, 2, {1, 2, 3, 4}))
               .File("a.txt", "red sky tile")
               .File("b.txt", "red")
               .File("b.target.npy",
                     EncodeNpy("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }",
                               std::string(reinterpret_cast<const char*>(numbers), 16)))
               .Finish());
  EXPECT_THAT(BuildOrDie().corrupt_samples(), IsEmpty());
  EXPECT_EQ(BuildOrDie().shape(0).target_rows, 2);
  EXPECT_THAT(Take(0)->target, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Take(1)->target, ElementsAre(0.5f, -3.0f));
  LoaderOptions options = kEverything;
  options.targets = false;
  EXPECT_THAT(Take(0, options)->target, IsEmpty());
}

TEST_F(ItemsTest, TargetThatIsMissingOrWrong_IsCorrupt) {
  spec_.targets = true;
  spec_.target_hidden = 2;
  const auto with = [](const std::string& target) {
    return TarBuilder().File("a.txt", "red sky").File("a.target.npy", target).Finish();
  };
  const std::vector<float> zeros(6);
  ExpectCorrupt(TarBuilder().File("a.txt", "red").Finish(), "lacks its target member (target.npy)");
  ExpectCorrupt(with("nothing"), "target.npy is no NPY file");
  ExpectCorrupt(with(EncodeNpy(2, 3, zeros)), "target.npy has the shape (2, 3); must be (rows, 2)");
  ExpectCorrupt(with(EncodeNpy(3, 2, zeros)),
                "has a target of 3 rows; must have at most as many as input positions (2)");
  ExpectCorrupt(with(EncodeNpy("{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }",
                               std::string(24, '\0'))),
                "target.npy has values of type '<i4'; must be '<f4' or '<f8'");
  ExpectCorrupt(
      TarBuilder().File("a.txt", "red").File("a.target.npy", "").File("a.target.npy", "").Finish(),
      "has a member twice: its target");
}

TEST_F(ItemsTest, TargetThatIsNotFinite_IsZerosAndFoundWhenRead) {
  spec_.targets = true;
  spec_.target_hidden = 2;
  UseShard(
      TarBuilder().File("a.txt", "red").File("a.target.npy", EncodeNpy(1, 2, {1, NAN})).Finish());
  EXPECT_THAT(BuildOrDie().corrupt_samples(), IsEmpty());
  const auto sample = Take(0);
  EXPECT_FALSE(sample->target_finite);
  EXPECT_EQ(sample->target_reason, "one.tar: a: target.npy has values that are not finite");
  EXPECT_FALSE(sample->corrupt) << "its items and its text are as good as ever";
  EXPECT_THAT(sample->target, ElementsAre(0.0f, 0.0f));
}

TEST_F(ItemsTest, SavedIndex_KnowsSoundsAndTargets) {
  const ShardFiles files = WriteShards(folder_, {.samples = 20,
                                                 .images_min = 0,
                                                 .images_max = 2,
                                                 .sounds_max = 2,
                                                 .target_rows = 2,
                                                 .words = 5});
  spec_.shards = files.shards;
  spec_.tokenizer = files.tokenizer;
  spec_.targets = true;
  spec_.target_hidden = 8;
  const Index built = BuildOrDie();
  EXPECT_THAT(built.corrupt_samples(), IsEmpty());
  ASSERT_TRUE(built.Save(folder_ + "/index").ok());
  const absl::StatusOr<Index> loaded = Index::Load(folder_ + "/index", spec_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto loader = Loader::Create(*loaded, spec_, kEverything);
  int32_t sounds = 0;
  for (int64_t i = 0; i < built.size(); ++i) {
    const SampleShape& shape = loaded->shape(i);
    EXPECT_EQ(shape, built.shape(i));
    EXPECT_EQ(loaded->rows(i), built.rows(i));
    sounds += shape.sounds;
    const auto sample = (*loader)->Take(i);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_FALSE((*sample)->corrupt) << (*sample)->corrupt_reason;
    EXPECT_THAT((*sample)->encoders.at(0).values, SizeIs(shape.images));
    EXPECT_THAT((*sample)->encoders.at(1).values, SizeIs(shape.sounds));
    EXPECT_THAT((*sample)->target, SizeIs(16));
  }
  EXPECT_GT(sounds, 5);
}

}  // namespace
}  // namespace phalanx::data
