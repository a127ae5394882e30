// What goes wrong with checkpoints: said by name, and training is as it would be without them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/checkpoint_io/part_reader.h"
#include "tests/oracle/checkpoint/written_run.h"
#include "tests/support/files.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class DamageTest : public testing::Test {
 protected:
  WrittenRun Write(const std::vector<int64_t>& steps) {
    return TrainAndWrite(plan_, job_.data, {.directory = folder_, .write_at = steps});
  }
  WrittenRun Load(const std::string& path) {
    return TrainAndWrite(plan_, job_.data, {.load = path});
  }
  static void FlipBit(const std::string& path, int64_t byte) {
    std::string bytes = support::ReadFile(path);
    bytes[static_cast<size_t>(byte)] ^= 0x10;
    support::WriteFile(path, bytes);
  }
  void ExpectUnharmed(const WrittenRun& run) const {
    const std::vector<TrainedStep> alone = TrainInProcess(plan_, job_.data);
    ASSERT_EQ(run.steps.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(run.steps[i].decision.loss, alone[i].decision.loss);
      for (const auto& [name, tensor] : alone[i].parameters) {
        EXPECT_TRUE(at::equal(run.steps[i].parameters.at(name), tensor)) << name;
      }
    }
  }

  const NamedJob job_ = Named("", AJob()
                                      .Module("vision", TinyVision(), {.frozen = true})
                                      .Module("language", TinyLanguage({.layers = 2}), {.dp = 2})
                                      .Edge("vision", "language", {.projector = 20})
                                      .Batch(4, 1)
                                      .Steps(4));
  const plan::Plan plan_ = PlanFor(job_.spec);
  const std::string folder_ = support::MakeFolder("checkpoints");
};

TEST_F(DamageTest, FlippedBitInEachKindOfState_IsNamedAndTheOlderOneIsTaken) {
  const WrittenRun run = Write({2, 3});
  ASSERT_THAT(run.published, SizeIs(2));
  const std::string newer = run.published[1];
  const auto manifest = checkpoint::ReadManifestOf(newer);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  std::set<checkpoint::Kind> seen;
  for (const checkpoint::PartFile& part : manifest->parts) {
    const auto reader = checkpoint::PartReader::Open(newer, *manifest, part);
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const checkpoint::Entry& entry : reader->header().entries) {
      if (!seen.insert(entry.kind).second) continue;
      const std::string path = absl::StrCat(newer, "/", part.file);
      const int64_t byte = part.header_bytes + entry.offset + entry.bytes() / 2;
      FlipBit(path, byte);
      const WrittenRun loaded = Load(newer);
      EXPECT_THAT(loaded.steps, IsEmpty());
      std::vector<std::string> messages;
      for (const absl::Status& status : loaded.loaded) {
        if (!status.ok()) messages.emplace_back(status.message());
      }
      EXPECT_THAT(messages,
                  Contains(AllOf(HasSubstr(part.file), HasSubstr(checkpoint::NameOf(entry)),
                                 HasSubstr("is damaged"))));
      const auto choice = checkpoint::ChooseCheckpoint(folder_, job_.spec, {});
      ASSERT_TRUE(choice.ok()) << choice.status();
      ASSERT_TRUE(choice->checkpoint.has_value());
      EXPECT_EQ(choice->checkpoint->manifest.step, 2);
      EXPECT_THAT(choice->passed_over, Contains(HasSubstr(checkpoint::NameOf(entry))));
      FlipBit(path, byte);
    }
  }
  EXPECT_THAT(seen, SizeIs(checkpoint::kKinds));
}

TEST_F(DamageTest, DamagedHeader_IsNamed) {
  const WrittenRun run = Write({2});
  ASSERT_THAT(run.published, SizeIs(1));
  FlipBit(absl::StrCat(run.published[0], "/rank-00001.safetensors"), 100);
  const WrittenRun loaded = Load(run.published[0]);
  ASSERT_FALSE(loaded.loaded.empty());
  for (const absl::Status& status : loaded.loaded) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank-00001.safetensors: its header"));
  }
}

// It describes another model than the files are of, and the job is of that one.
TEST_F(DamageTest, ManifestOfAnotherModel_IsRefusedByEveryRank) {
  const WrittenRun run = Write({2});
  ASSERT_THAT(run.published, SizeIs(1));
  const auto manifest = checkpoint::ReadManifestOf(run.published[0]);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const std::pair<int32_t, std::string> cases[] = {{1, "the model has no such tensor"},
                                                   {3, "the files have none of it"}};
  for (const auto& [layers, fault] : cases) {
    job::JobSpec spec = job_.spec;
    spec.modules[1].architecture.layers = layers;
    checkpoint::Manifest lying = *manifest;
    lying.model = checkpoint::ModelOf(spec);
    support::WriteFile(run.published[0] + "/manifest.json", checkpoint::WriteManifest(lying));
    const WrittenRun loaded = TrainAndWrite(PlanFor(spec), job_.data, {.load = run.published[0]});
    EXPECT_THAT(loaded.steps, IsEmpty());
    ASSERT_FALSE(loaded.loaded.empty());
    for (const absl::Status& status : loaded.loaded) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(status.message(), AllOf(HasSubstr("language/model.layers."), HasSubstr(fault)));
    }
  }
}

TEST_F(DamageTest, MissingFile_IsNamed) {
  const WrittenRun run = Write({2});
  ASSERT_THAT(run.published, SizeIs(1));
  std::filesystem::remove(absl::StrCat(run.published[0], "/rank-00002.safetensors"));
  const WrittenRun loaded = Load(run.published[0]);
  for (const absl::Status& status : loaded.loaded) {
    EXPECT_THAT(status.message(), HasSubstr("rank-00002.safetensors: cannot be opened"));
  }
}

TEST_F(DamageTest, AnotherModel_IsRefusedByName) {
  const WrittenRun run = Write({2});
  ASSERT_THAT(run.published, SizeIs(1));
  const NamedJob other = Named("", AJob()
                                       .Module("vision", TinyVision(), {.frozen = true})
                                       .Module("language", TinyLanguage({.layers = 3}), {.dp = 2})
                                       .Edge("vision", "language", {.projector = 20})
                                       .Batch(4, 1)
                                       .Steps(4));
  const WrittenRun loaded =
      TrainAndWrite(PlanFor(other.spec), other.data, {.load = run.published[0]});
  ASSERT_FALSE(loaded.loaded.empty());
  EXPECT_THAT(loaded.loaded[0].message(),
              HasSubstr("module language has layers 2, the job's has 3"));
}

TEST_F(DamageTest, DiskThatFails_IsToldAndTrainingIsUnharmed) {
  const WrittenRun run = TrainAndWrite(
      plan_, job_.data, {.directory = folder_, .write_at = {1, 3}, .before_block = [] {
                           return absl::UnavailableError("/checkpoints: No space left on device");
                         }});
  EXPECT_THAT(run.published, IsEmpty());
  ASSERT_FALSE(run.failed.empty());
  EXPECT_THAT(run.failed[0].message(), HasSubstr("No space left on device"));
  ExpectUnharmed(run);
}

TEST_F(DamageTest, DirectoryThatCannotBe_IsToldAndTrainingIsUnharmed) {
  const std::string path = absl::StrCat(folder_, "/file");
  support::WriteFile(path, "");
  const WrittenRun run = TrainAndWrite(plan_, job_.data, {.directory = path, .write_at = {1, 3}});
  EXPECT_THAT(run.published, IsEmpty());
  ASSERT_THAT(run.failed, SizeIs(6));  // both times all three ranks
  for (const absl::Status& failed : run.failed) {
    EXPECT_THAT(failed.message(), HasSubstr(absl::StrCat(path, ": Not a directory")));
  }
  ExpectUnharmed(run);
}

TEST_F(DamageTest, SlowDisk_LeavesTheNextOutAndTrainingIsUnharmed) {
  // The first one gets on only when all that should follow have come.
  Mutex mu;
  CondVar changed;
  bool open = false;
  const WrittenRun run = TrainAndWrite(plan_, job_.data,
                                       {.directory = folder_,
                                        .write_at = {1, 2, 3},
                                        .before_block =
                                            [&] {
                                              const MutexLock lock(&mu);
                                              while (!open) changed.Wait(&mu);
                                              return absl::OkStatus();
                                            },
                                        .on_step =
                                            [&](int64_t step) {
                                              const MutexLock lock(&mu);
                                              open |= step == 3;
                                              changed.SignalAll();
                                            }});
  EXPECT_EQ(run.left_out, 6);  // by all three ranks
  EXPECT_THAT(run.published, SizeIs(1));
  ExpectUnharmed(run);
}

}  // namespace
}  // namespace phalanx::oracle
