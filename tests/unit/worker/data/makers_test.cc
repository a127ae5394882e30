// The data set makers of examples/, run as a user runs them, and what they wrote read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/wire/job_yaml.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/shards.h"
#include "tests/support/tools.h"
#include "worker/data/data_set.h"
#include "worker/data/job_data.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::ImageEncoder;
using ::phalanx::support::MakeFolder;
using ::phalanx::support::ReadFile;
using ::phalanx::support::SoundEncoder;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Why a test of it is skipped; empty: the file that scripts/setup brings is there.
std::string MissingFile(const char* path) {
  return access(path, R_OK) == 0 ? "" : absl::StrCat("no ", path, ": scripts/setup brings it");
}

// What the maker says; its exit status must be 0.
std::string RunMaker(const std::string& maker, const std::string& folder,
                     const std::string& arguments = "") {
  const std::string log = folder + ".log";
  const std::string command = absl::StrCat("/usr/bin/python3 ", tests::SourceDir(), "/examples/",
                                           maker, " ", folder, " ", arguments, " >", log, " 2>&1");
  const int status = std::system(command.c_str());
  const std::string said = ReadFile(log);
  EXPECT_EQ(status, 0) << said;
  return said;
}

// The files that a maker wrote into both folders are the same; their manifests too.
void ExpectSameFiles(const std::string& one, const std::string& two) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(one)) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(ReadFile(entry.path()), ReadFile(absl::StrCat(two, "/", name))) << name;
    ++files;
  }
  EXPECT_GT(files, 1);
}

TEST(MakersTest, Emoji_MakesATrainingAndAValidationSet) {
  for (const char* needed :
       {"/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf",
        "/usr/share/unicode/cldr/common/annotations/en.xml", "/usr/bin/spm_train"}) {
    PHALANX_SKIP_WITHOUT_TOOL(MissingFile(needed));
  }
  const std::string folder = MakeFolder("emoji") + "/set";
  EXPECT_THAT(RunMaker("make_emoji.py", folder), HasSubstr("training and"));
  EXPECT_THAT(RunMaker("make_emoji.py", folder), HasSubstr("up to date"));

  DataSetSpec training{.tokenizer = folder + "/emoji.model",
                       .encoders = {ImageEncoder(16, 16)},
                       .context = 64,
                       .vocabulary = 512};
  for (int i = 0; i < 4; ++i)
    training.shards.push_back(absl::StrCat(folder, "/emoji-00", i, ".tar"));
  DataSetSpec validation = training;
  validation.shards = {folder + "/emoji-validation.tar"};

  std::set<std::string> keys;
  int64_t samples = 0;
  for (const DataSetSpec& spec : {training, validation}) {
    const absl::StatusOr<Index> index = Index::Build(spec);
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_THAT(index->corrupt_samples(), SizeIs(0));
    EXPECT_GT(index->size(), 100);
    samples += index->size();
    const auto loader = Loader::Create(*index, spec, {.threads = 0, .modules = {0}});
    ASSERT_TRUE(loader.ok()) << loader.status();
    for (int64_t i = 0; i < index->size(); i += 7) {
      const auto sample = (*loader)->Take(i);
      ASSERT_TRUE(sample.ok());
      EXPECT_FALSE((*sample)->corrupt) << (*sample)->corrupt_reason;
      EXPECT_THAT((*sample)->encoders.at(0).values, SizeIs(1));
    }
    for (int64_t i = 0; i < index->size(); ++i) {
      const std::string name = index->NameOf(i);
      EXPECT_TRUE(keys.insert(name.substr(name.find(": "))).second)
          << name << " is in both sets or twice";
    }
  }
  EXPECT_GT(samples, 1500);
}

TEST(MakersTest, Emoji_GivesTheSameBytesEveryTime) {
  PHALANX_SKIP_WITHOUT_TOOL(MissingFile("/usr/bin/spm_train"));
  const std::string one = MakeFolder("emoji") + "/set", two = MakeFolder("emoji") + "/set";
  RunMaker("make_emoji.py", one);
  RunMaker("make_emoji.py", two);
  ExpectSameFiles(one, two);
}

TEST(MakersTest, EmojiSpeech_FitsItsExample) {
  for (const char* needed : {"/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf",
                             "/usr/bin/spm_train", "/usr/bin/espeak-ng", "/usr/bin/sox"}) {
    PHALANX_SKIP_WITHOUT_TOOL(MissingFile(needed));
  }
  const std::string folder = MakeFolder("speech") + "/set", again = MakeFolder("speech") + "/set";
  RunMaker("make_emoji.py", folder, "--speech --count 80");
  RunMaker("make_emoji.py", again, "--speech --count 80");
  ExpectSameFiles(folder, again);

  const auto job = wire::ReadJobFile(ReadFile(tests::SourceDir() + "/examples/emoji-speech.yaml"),
                                     job::Purpose::kPlan);
  ASSERT_TRUE(job.ok()) << job.status();
  const LoaderOptions options{.threads = 0, .modules = {0, 1}};
  int64_t samples = 0;
  for (const bool validation : {false, true}) {
    const DataSetSpec spec = DataSetSpecOf(job->spec, folder, validation);
    const absl::StatusOr<Index> index = Index::Build(spec);
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_THAT(index->corrupt_samples(), SizeIs(0));
    const auto loader = Loader::Create(*index, spec, options);
    ASSERT_TRUE(loader.ok()) << loader.status();
    for (int64_t i = 0; i < index->size(); ++i, ++samples) {
      EXPECT_EQ(index->shape(i).images, 1);
      EXPECT_EQ(index->shape(i).sounds, 1);
      EXPECT_GT(index->shape(i).counted, 1);
      const auto sample = (*loader)->Take(i);
      ASSERT_TRUE(sample.ok()) << sample.status();
      EXPECT_FALSE((*sample)->corrupt) << (*sample)->corrupt_reason;
      const std::vector<float>& sound = (*sample)->encoders.at(1).values.at(0);
      EXPECT_GT(*std::max_element(sound.begin(), sound.end()), 0.5f) << "silent";
    }
  }
  EXPECT_EQ(samples, 80);
}

TEST(MakersTest, Synthetic_WritesItemsOfBothKindsAndTargets) {
  const std::string arguments =
      "--samples 20 --shards 2 --images 3 --images-min 0 --image-size 56 --sounds 2 --sounds-min 0 "
      "--frames 40 --target-rows 5 --target-hidden 8 --positions 130";
  const std::string folder = MakeFolder("synthetic") + "/set",
                    again = MakeFolder("synthetic") + "/set";
  RunMaker("make_synthetic.py", folder, arguments);
  RunMaker("make_synthetic.py", again, arguments);
  ExpectSameFiles(folder, again);
  const DataSetSpec spec{.shards = {folder + "/synthetic-000.tar", folder + "/synthetic-001.tar"},
                         .tokenizer = folder + "/synthetic.model",
                         .encoders = {ImageEncoder(16, 56), SoundEncoder(20, 8, 40)},
                         .targets = true,
                         .target_hidden = 8,
                         .context = 130};
  const absl::StatusOr<Index> index = Index::Build(spec);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(index->corrupt_samples(), SizeIs(0));
  const auto loader =
      Loader::Create(*index, spec, {.threads = 0, .modules = {0, 1}, .targets = true});
  std::set<int32_t> images, sounds;
  for (int64_t i = 0; i < index->size(); ++i) {
    const SampleShape& shape = index->shape(i);
    images.insert(shape.images);
    sounds.insert(shape.sounds);
    EXPECT_EQ(shape.positions, 130);
    EXPECT_EQ(shape.target_rows, 5);
    const auto sample = (*loader)->Take(i);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_FALSE((*sample)->corrupt) << (*sample)->corrupt_reason;
  }
  EXPECT_THAT(images, ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sounds, ::testing::ElementsAre(0, 1, 2));
}

// Of what these arguments make, with two 56-pixel images in each of three samples of 100 positions.
void ExpectFullPositions(const std::string& arguments) {
  const std::string folder = MakeFolder("synthetic") + "/set";
  RunMaker("make_synthetic.py", folder, arguments);
  const DataSetSpec spec{.shards = {folder + "/synthetic-000.tar", folder + "/synthetic-001.tar"},
                         .tokenizer = folder + "/synthetic.model",
                         .encoders = {ImageEncoder(16, 56)},
                         .context = 100};
  const absl::StatusOr<Index> index = Index::Build(spec);
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->size(), 3);
  const auto loader = Loader::Create(*index, spec, {.threads = 0, .modules = {0}});
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(index->shape(i), (SampleShape{.images = 2, .positions = 100, .counted = 69}));
    EXPECT_FALSE((*(*loader)->Take(i))->corrupt);
  }
  EXPECT_THAT(RunMaker("make_synthetic.py", folder, arguments), HasSubstr("up to date"));
}

constexpr char kThreeSamples[] =
    "--samples 3 --shards 2 --images 2 --image-size 56 --positions 100";

TEST(MakersTest, Synthetic_FillsExactlyThePositions) { ExpectFullPositions(kThreeSamples); }

TEST(MakersTest, SyntheticOfNoiseAndManyWords_FillsExactlyThePositions) {
  ExpectFullPositions(std::string(kThreeSamples) + " --noise --words 20000");
}

TEST(MakersTest, SyntheticOfLengthsThatDiffer_StaysWithinThem) {
  const std::string folder = MakeFolder("synthetic") + "/set";
  RunMaker("make_synthetic.py", folder,
           "--samples 30 --shards 2 --images 1 --image-size 56 --positions 24 --positions-min 20");
  const DataSetSpec spec{.shards = {folder + "/synthetic-000.tar", folder + "/synthetic-001.tar"},
                         .tokenizer = folder + "/synthetic.model",
                         .encoders = {ImageEncoder(16, 56)},
                         .context = 24};
  const absl::StatusOr<Index> index = Index::Build(spec);
  ASSERT_TRUE(index.ok()) << index.status();
  std::set<int64_t> lengths;
  for (int64_t i = 0; i < index->size(); ++i) lengths.insert(index->shape(i).positions);
  EXPECT_THAT(lengths, ::testing::ElementsAre(20, 21, 22, 23, 24));
}

}  // namespace
}  // namespace phalanx::data
