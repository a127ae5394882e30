// What publishing takes away: checkpoints beyond those that are kept, and what was given up.
#include <cerrno>
#include <filesystem>
#include <string>

#include "core/checkpoint_io/checkpoints.h"
#include "core/checkpoint_io/lock.h"
#include "gmock/gmock.h"
#include "tests/unit/core/checkpoint_io/writing.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using KeepTest = WritingTest;

TEST_F(KeepTest, Keep_TakesAwayTheOlderOnesOfTheJobAlone) {
  PublishSteps({10, 20});
  const Drafts others(plan_, folder_, 8);
  ASSERT_TRUE(others.WriteAndPublish({.step = 5, .epoch = 1}).ok());
  PublishSteps({30});
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000005.epoch-1", "step-00000020.epoch-3",
                                            "step-00000030.epoch-3"));
}

TEST_F(KeepTest, CheckpointMovedElsewhereWithALinkToIt_Stays) {
  PublishSteps({10});
  const std::string elsewhere = support::MakeFolder("archive") + "/moved";
  const std::string link = folder_ + "/step-00000010.epoch-3";
  std::filesystem::rename(link, elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, link);
  PublishSteps({20, 30, 40});
  EXPECT_TRUE(Verify(elsewhere).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST_F(KeepTest, CheckpointInUse_StaysBesideThoseThatAreKept) {
  PublishSteps({10, 20});
  const auto files = drafts_.WriteAll({.step = 30, .epoch = 3});
  Publication publication = drafts_.PublicationOf({.step = 30, .epoch = 3}, *files);
  publication.in_use = folder_ + "/../" + std::filesystem::path(folder_).filename().string() +
                       "/step-00000010.epoch-3";
  ASSERT_TRUE(Publish(publication).ok());
  EXPECT_THAT(NamesIn(folder_), SizeIs(3));
}

TEST_F(KeepTest, CheckpointThatAnotherReads_StaysUntilThePublicationAfterIt) {
  PublishSteps({10, 20});
  {
    const auto reading = CheckpointLock::ToRead(folder_ + "/step-00000010.epoch-3");
    ASSERT_TRUE(reading.ok()) << reading.status();
    const auto published = drafts_.WriteAndPublish({.step = 30, .epoch = 3});
    ASSERT_TRUE(published.ok()) << published.status();
    EXPECT_THAT(published->left, IsEmpty());
    EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000010.epoch-3", "step-00000020.epoch-3",
                                              "step-00000030.epoch-3"));
  }
  PublishSteps({40});
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000030.epoch-3", "step-00000040.epoch-3"));
}

// Of another process, as a job's first node is.
TEST_F(KeepTest, CheckpointThatAnotherProcessChooses_StaysWhileItIsVerified) {
  PublishSteps({10});
  const std::string said = SaidByChild([&]() -> std::string {
    bool published = false;
    const auto choice = ChooseCheckpoint(folder_, spec_, {.on_bytes = [&](int64_t) {
                                           if (!published) {
                                             published = true;
                                             PublishSteps({20, 30});
                                           }
                                           return absl::OkStatus();
                                         }});
    if (!choice.ok()) return choice.status().ToString();
    return choice->checkpoint.has_value() ? choice->checkpoint->path : "none";
  });
  EXPECT_EQ(said, folder_ + "/step-00000010.epoch-3");
  PublishSteps({40});
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000030.epoch-3", "step-00000040.epoch-3"));
}

TEST_F(KeepTest, FileSystemWithoutLocks_TakesCheckpointsAllTheSame) {
  for (const uint32_t error : {EOPNOTSUPP, ENOLCK, EBADF}) {
    const std::string said = SaidByChild([&]() -> std::string {
      if (!Refuse(__NR_flock, error)) return "skip";
      PublishSteps({10, 20, 30});
      const auto choice = ChooseCheckpoint(folder_, spec_, {});
      return choice.ok() && choice->checkpoint.has_value() ? choice->checkpoint->path
                                                           : choice.status().ToString();
    });
    if (said == "skip") GTEST_SKIP() << "this process may not filter its system calls";
    EXPECT_EQ(said, folder_ + "/step-00000030.epoch-3");
    EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000020.epoch-3", "step-00000030.epoch-3"));
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeepTest, StrangersFile_StaysAndIsTold) {
  PublishSteps({10, 20});
  support::WriteFile(folder_ + "/step-00000010.epoch-3/notes.txt", "mine");
  const auto published = drafts_.WriteAndPublish({.step = 30, .epoch = 3});
  ASSERT_TRUE(published.ok()) << published.status();
  ASSERT_THAT(published->left, SizeIs(1));
  EXPECT_THAT(published->left[0], HasSubstr("Directory not empty"));
  const std::string doomed = folder_ + "/.deleted-step-00000010.epoch-3.00c0ffee00c0ffee-job-7";
  EXPECT_THAT(NamesIn(doomed), ElementsAre("notes.txt"));
  const auto next = drafts_.WriteAndPublish({.step = 40, .epoch = 3});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->left, IsEmpty()) << "told once";
  EXPECT_THAT(NamesIn(doomed), ElementsAre("notes.txt"));
}

// Of a process that was killed while it wrote the manifest, or while it deleted a checkpoint.
TEST_F(KeepTest, LeftOversOfAKilledProcess_GoWithTheNextPublication) {
  ASSERT_TRUE(drafts_.WriteAll({.step = 10, .epoch = 3}).ok());
  support::WriteFile(drafts_.DraftOf({.step = 10, .epoch = 3}) + "/manifest.json.4711.new", "{");
  const std::string doomed = folder_ + "/.deleted-step-00000005.epoch-3.00c0ffee00c0ffee-job-7";
  const std::string others = folder_ + "/.deleted-step-00000005.epoch-3.00c0ffee00c0ffee-job-8";
  for (const std::string& folder : {doomed, others}) {
    std::filesystem::create_directories(folder);
    support::WriteFile(PartPath(folder, 2), "half of them");
    support::WriteFile(folder + "/manifest.json", "{");
  }
  const auto published = drafts_.WriteAndPublish({.step = 20, .epoch = 3});
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_THAT(published->left, IsEmpty());
  EXPECT_THAT(NamesIn(folder_),
              ElementsAre(std::filesystem::path(others).filename(), "step-00000020.epoch-3"));
}

TEST_F(KeepTest, NamesThatNoWriterGives_StayInADraft) {
  ASSERT_TRUE(drafts_.WriteAll({.step = 10, .epoch = 3}).ok());
  const std::string draft = drafts_.DraftOf({.step = 10, .epoch = 3});
  const std::vector<std::string> names = {"manifest.json..new", "manifest.json.1",
                                          "manifest.json.12x.new", "manifest.jsonx1.new",
                                          "other.json.12.new"};
  for (const std::string& name : names) support::WriteFile(draft + "/" + name, "mine");
  PublishSteps({20});
  EXPECT_THAT(NamesIn(draft), testing::UnorderedElementsAreArray(names));
}

TEST_F(KeepTest, DraftsThatTheJobGaveUp_GoWithTheNextPublication) {
  ASSERT_TRUE(drafts_.WriteAll({.step = 20, .epoch = 3}).ok());
  support::WriteFile(PartPath(drafts_.DraftOf({.step = 20, .epoch = 3}), 9) + ".tmp", "half");
  ASSERT_TRUE(drafts_.WriteAll({.step = 40, .epoch = 3}).ok());  // is being written
  std::filesystem::create_directories(folder_ + "/.step-00000020.epoch-3.00c0ffee00c0ffee-job-8");
  PublishSteps({30});
  EXPECT_THAT(NamesIn(folder_), ElementsAre(".step-00000020.epoch-3.00c0ffee00c0ffee-job-8",
                                            ".step-00000040.epoch-3.00c0ffee00c0ffee-job-7",
                                            "step-00000030.epoch-3"));
}

}  // namespace
}  // namespace phalanx::checkpoint
