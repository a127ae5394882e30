#include "core/checkpoint_io/part_reader.h"

#include <filesystem>

#include "core/base/digest.h"
#include "core/checkpoint_io/checkpoints.h"
#include "gmock/gmock.h"
#include "tests/unit/core/checkpoint_io/written.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::HasSubstr;

class PartReaderTest : public testing::Test {
 protected:
  std::string Refusal(const Manifest& manifest, size_t part = 1) const {
    const auto reader = PartReader::Open(path_, manifest, manifest.parts[part]);
    EXPECT_TRUE(reader.ok() || absl::IsDataLoss(reader.status())) << reader.status();
    return std::string(reader.status().message());
  }

  const plan::Plan plan_ = PlanOf(TwoModules());
  const std::string path_ = support::WriteCheckpoint(plan_, support::MakeFolder("part-reader"));
  Manifest manifest_ = *ReadManifestOf(path_);
};

TEST_F(PartReaderTest, Entries_HaveTheBytesThatWereWritten) {
  const auto reader = PartReader::Open(path_, manifest_, manifest_.parts[1]);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const support::MadePart made = support::MakeParts(plan_)[1];
  EXPECT_EQ(reader->header().entries, made.header.entries);
  std::string all, bytes;
  for (size_t i = 0; i < made.header.entries.size(); ++i) {
    ASSERT_TRUE(reader->Read(i, bytes).ok());
    all += bytes;
  }
  EXPECT_EQ(all, made.data);
}

TEST_F(PartReaderTest, FileThatIsNotTheManifests_IsNamed) {
  Manifest other = manifest_;
  other.epoch = 4;
  EXPECT_EQ(Refusal(other),
            "rank-00001.safetensors: is of job 7, epoch 3, step 50, rank 1 of store "
            "00c0ffee00c0ffee; must be of job 7, epoch 4, step 50, rank 1 of store "
            "00c0ffee00c0ffee");
  other = manifest_;
  other.model.compute = job::Precision::kFp64;
  EXPECT_THAT(Refusal(other), HasSubstr("#master: has type F32, must have F64"));
  other = manifest_;
  other.parts[1].entries += 1;
  EXPECT_THAT(Refusal(other), HasSubstr("rank-00001.safetensors: its header has"));
  other = manifest_;
  other.parts[1].digest = Digest("");
  EXPECT_EQ(Refusal(other),
            absl::StrCat("rank-00001.safetensors: its header has digest ",
                         manifest_.parts[1].digest, ", the manifest says ", Digest("")));
}

TEST_F(PartReaderTest, FileThatGoesWhileItIsRead_IsNamed) {
  const auto reader = PartReader::Open(path_, manifest_, manifest_.parts[1]);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::filesystem::resize_file(PartPath(path_, 1), 1000);
  std::string bytes;
  const size_t last = reader->header().entries.size() - 1;
  EXPECT_THAT(std::string(reader->Read(last, bytes).message()),
              HasSubstr("ends at byte 1000, before"));
}

TEST_F(PartReaderTest, WhatIsNoFile_IsNamed) {
  std::filesystem::remove(PartPath(path_, 1));
  std::filesystem::create_directory(PartPath(path_, 1));
  EXPECT_EQ(Refusal(manifest_), "rank-00001.safetensors: is not a regular file");
}

}  // namespace
}  // namespace phalanx::checkpoint
