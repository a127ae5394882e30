// Parts that are written, and checkpoints that are made of them.
#include "tests/unit/core/checkpoint_io/writing.h"

#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <latch>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/checkpoint_io/lock.h"
#include "core/checkpoint_io/part_reader.h"
#include "core/posix/held_folder.h"
#include "core/posix/signals.h"
#include "core/posix/unique_fd.h"
#include "gmock/gmock.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// What the draft is called while it is published.
std::string TakenOf(const std::string& draft) {
  const size_t name = draft.rfind("/.") + 1;
  return absl::StrCat(draft.substr(0, name), ".publishing-", draft.substr(name + 1));
}

TEST_F(WritingTest, WrittenAndPublished_IsSoundAndAlone) {
  const auto published = drafts_.WriteAndPublish(name_);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(published->path, folder_ + "/step-00000050.epoch-3");
  EXPECT_THAT(published->left, IsEmpty());
  EXPECT_TRUE(Verify(published->path).ok()) << Verify(published->path);
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000050.epoch-3"));
}

TEST_F(WritingTest, LinesApart_AreWrittenOneBehindTheOther) {
  const float memory[] = {1, 2, 9, 3, 4, 9};
  PartWrite write = drafts_.WriteOf(1, name_);
  Entry entry = write.entries[0];  // of fp32
  entry.where = {.rows = 2, .cols = 2};
  entry.transposed = false;
  write.entries = {entry};
  write.sources = {{.first = memory, .stride = 3}};
  const auto file = WritePartFile(write);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string bytes = support::ReadFile(drafts_.DraftOf(name_) + "/" + file->file);
  ASSERT_EQ(static_cast<int64_t>(bytes.size()), file->bytes);
  const float expected[] = {1, 2, 3, 4};
  EXPECT_EQ(bytes.substr(static_cast<size_t>(file->header_bytes)),
            std::string(reinterpret_cast<const char*>(expected), sizeof expected));
}

TEST_F(WritingTest, ErrorAtAnyBlock_LeavesNothingOfTheFile) {
  for (int64_t good = 0;; good += 7) {
    PartWrite write = drafts_.WriteOf(1, name_);
    int64_t blocks = 0;
    write.before_block = [&]() -> absl::Status {
      return blocks++ < good ? absl::OkStatus() : absl::UnavailableError("the disk is gone");
    };
    const auto file = WritePartFile(std::move(write));
    if (file.ok()) break;
    EXPECT_EQ(file.status().message(), "the disk is gone");
    EXPECT_THAT(NamesIn(drafts_.DraftOf(name_)), IsEmpty());
  }
  EXPECT_THAT(NamesIn(drafts_.DraftOf(name_)), ElementsAre("rank-00001.safetensors"));
}

TEST_F(WritingTest, FullDisk_IsToldByPathAndReason) {
  LetWritesFail();
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto file = WritePartFile(drafts_.WriteOf(1, name_));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(absl::IsUnavailable(file.status())) << file.status();
  EXPECT_THAT(file.status().message(),
              AllOf(HasSubstr(drafts_.DraftOf(name_)), HasSubstr("File too large")));
  EXPECT_THAT(NamesIn(drafts_.DraftOf(name_)), IsEmpty());
}

TEST_F(WritingTest, FolderWithoutTheRight_IsToldByPathAndReason) {
  std::filesystem::permissions(folder_, std::filesystem::perms(0555));
  const std::string said = SaidByChild([&]() -> std::string {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && seteuid(kNobody) != 0) return "cannot be somebody else";
    return WritePartFile(drafts_.WriteOf(1, name_)).status().ToString();
  });
  std::filesystem::permissions(folder_, std::filesystem::perms(0755));
  EXPECT_EQ(said, absl::StrCat("UNAVAILABLE: ", drafts_.DraftOf(name_), ": Permission denied"));
}

// Whether this process now has a file system of its own there, which nobody else sees.
bool MountTemporary(const std::string& folder, unsigned long flags, const char* options) {
  const unsigned mine = CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
  return unshare(static_cast<int>(mine)) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", flags, options) == 0;
}

TEST_F(WritingTest, ReadOnlyFolder_IsToldByPathAndReason) {
  const std::string said = SaidByChild([&]() -> std::string {
    if (!MountTemporary(folder_, MS_RDONLY, nullptr)) return "skip";
    return WritePartFile(drafts_.WriteOf(1, name_)).status().ToString();
  });
  if (said == "skip") GTEST_SKIP() << "this process may not mount anything";
  EXPECT_EQ(said, absl::StrCat("UNAVAILABLE: ", drafts_.DraftOf(name_), ": Read-only file system"));
}

TEST_F(WritingTest, DiskThatFillsUpUnderAPart_IsToldByPathAndReason_AndNothingIsLeft) {
  const std::string said = SaidByChild([&]() -> std::string {
    if (!MountTemporary(folder_, 0, "size=16k")) return "skip";
    const auto file = WritePartFile(drafts_.WriteOf(1, name_));
    return absl::StrCat(file.status().ToString(),
                        "; left: ", absl::StrJoin(NamesIn(drafts_.DraftOf(name_)), " "));
  });
  if (said == "skip") GTEST_SKIP() << "this process may not mount anything";
  EXPECT_EQ(said, absl::StrCat("UNAVAILABLE: ", PartPath(drafts_.DraftOf(name_), 1),
                               ".tmp: No space left on device; left: "));
}

// The parts are written, and there is no room for the manifest; then there is.
TEST_F(WritingTest, DiskThatFillsUpUnderTheManifest_CostsNothingButThePublication) {
  const std::string said = SaidByChild([&]() -> std::string {
    if (!MountTemporary(folder_, 0, "size=4m")) return "skip";
    const auto files = drafts_.WriteAll(name_);
    if (!files.ok()) return files.status().ToString();
    const std::string ballast = folder_ + "/ballast";
    {
      const UniqueFd file(open(ballast.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
      const std::string page(4096, 'x');
      while (write(file.get(), page.data(), page.size()) > 0) {
      }
      if (errno != ENOSPC) return std::strerror(errno);
    }
    const absl::Status full = Publish(drafts_.PublicationOf(name_, *files)).status();
    const std::set<std::string> left = NamesIn(drafts_.DraftOf(name_));
    std::filesystem::remove(ballast);
    const auto published = Publish(drafts_.PublicationOf(name_, *files));
    if (!published.ok()) return published.status().ToString();
    return absl::StrCat(full.ToString(), "; ", left.count("manifest.json"), " of ", left.size(),
                        "; then ", Verify(published->path).ToString());
  });
  if (said == "skip") GTEST_SKIP() << "this process may not mount anything";
  EXPECT_EQ(said, absl::StrCat("UNAVAILABLE: cannot write ", TakenOf(drafts_.DraftOf(name_)),
                               "/manifest.json: No space left on device; 0 of ", drafts_.parts(),
                               "; then OK"));
}

TEST_F(WritingTest, NoFolderWhereTheDirectoryShouldBe_IsToldByPathAndReason) {
  const std::string path = folder_ + "/file";
  support::WriteFile(path, "");
  const Drafts drafts(plan_, path);
  const auto file = WritePartFile(drafts.WriteOf(0, name_));
  ASSERT_TRUE(absl::IsUnavailable(file.status())) << file.status();
  EXPECT_THAT(file.status().message(), HasSubstr(path + ": Not a directory"));
}

TEST_F(WritingTest, DeadLinkWhereTheDirectoryShouldBe_IsToldWithWhatItLeadsTo) {
  const std::string link = folder_ + "/link", elsewhere = folder_ + "/elsewhere";
  std::filesystem::create_directory_symlink(elsewhere, link);
  for (const std::string& directory : {link, link + "/checkpoints"}) {
    const Drafts drafts(plan_, directory);
    EXPECT_EQ(WritePartFile(drafts.WriteOf(0, name_)).status(),
              absl::UnavailableError(
                  absl::StrCat(link, ": is a link to ", elsewhere, ", which is not there")));
  }
  std::filesystem::create_directory(elsewhere);
  EXPECT_TRUE(Drafts(plan_, link).WriteAndPublish(name_).ok());
}

TEST_F(WritingTest, DirectoryThatLeadsOutOfTheFoldersByNow_IsNotWrittenIn) {
  namespace fs = std::filesystem;
  const std::string mine = fs::canonical(folder_);
  const std::string other = fs::canonical(support::MakeFolder("elsewhere"));
  const std::string directory = mine + "/directory";
  const Drafts drafts(plan_, directory);
  const auto write_part = [&](size_t part) {
    PartWrite write = drafts.WriteOf(part, name_);
    write.folders = {mine};
    return WritePartFile(std::move(write));
  };
  std::vector<PartFile> files;
  for (size_t part = 0; part < drafts.parts(); ++part) {
    const auto file = write_part(part);
    ASSERT_TRUE(file.ok()) << file.status();
    files.push_back(*file);
  }
  Publication publication = drafts.PublicationOf(name_, files);
  publication.folders = {mine};
  // Elsewhere all looks as it did here.
  fs::rename(directory, mine + "/moved");
  fs::copy(mine + "/moved", other, fs::copy_options::recursive);
  fs::create_directory_symlink(other, directory);
  const std::string draft = other + "/" + fs::path(drafts.DraftOf(name_)).filename().string();
  const std::set<std::string> parts = NamesIn(draft);
  ASSERT_EQ(parts.size(), drafts.parts());
  const absl::Status refused = absl::InvalidArgumentError(absl::StrCat(
      "spec.checkpoint.directory: ", directory, ": leads to ", other, "; must lead below ", mine));
  EXPECT_EQ(write_part(1).status(), refused);
  EXPECT_EQ(Publish(publication).status(), refused);
  RemovePartFile(drafts.DraftOf(name_), 1, {mine});
  EXPECT_THAT(NamesIn(other), SizeIs(1));
  EXPECT_EQ(NamesIn(draft), parts);
  // A link of one's own is followed.
  fs::remove(directory);
  fs::create_directory_symlink("moved", directory);
  const auto published = Publish(publication);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_TRUE(Verify(mine + "/moved/step-00000050.epoch-3").ok());
}

TEST_F(WritingTest, DraftThatIsExchangedWhileAPartIsWritten_GetsNothingElsewhere) {
  namespace fs = std::filesystem;
  const std::string mine = fs::canonical(folder_);
  const std::string other = fs::canonical(support::MakeFolder("elsewhere"));
  const std::string draft = drafts_.DraftOf(name_);
  const std::string names[] = {PartFileName(1), PartFileName(1) + ".tmp"};
  PartWrite write = drafts_.WriteOf(1, name_);
  write.folders = {mine};
  bool exchanged = false;
  write.before_block = [&] {
    if (!std::exchange(exchanged, true)) {
      fs::rename(draft, draft + ".moved");
      fs::create_directory_symlink(other, draft);
      for (const std::string& name : names) support::WriteFile(other + "/" + name, "theirs");
    }
    return absl::OkStatus();
  };
  const absl::Status refused = WritePartFile(std::move(write)).status();
  EXPECT_EQ(refused, absl::InvalidArgumentError(absl::StrCat("spec.checkpoint.directory: ", draft,
                                                             ": leads to ", other,
                                                             "; must lead below ", mine)));
  EXPECT_THAT(NamesIn(other), ElementsAre(names[0], names[1]));
  for (const std::string& name : names) EXPECT_EQ(support::ReadFile(other + "/" + name), "theirs");
}

TEST_F(WritingTest, DraftThatIsTaken_IsGivenUpByNobody_AndAwaitsWhoDoesAlready) {
  ASSERT_TRUE(drafts_.WriteAll(name_).ok());
  const std::string path = drafts_.DraftOf(name_);
  const auto draft = HeldFolder::Open(path);
  ASSERT_TRUE(draft.ok()) << draft.status();
  std::optional<UniqueFd> giving_up = LockToGiveUp(*draft);
  ASSERT_TRUE(giving_up.has_value());
  std::filesystem::rename(path, TakenOf(path));
  EXPECT_FALSE(LockToGiveUp(*draft).has_value());
  EXPECT_EQ(AwaitGivenUp(*draft, {}, absl::ZeroDuration()),
            absl::UnavailableError(path + ": is locked by somebody"));
  std::atomic<bool> given_up = false;
  std::thread publisher([&] {
    EXPECT_TRUE(AwaitGivenUp(*draft).ok());
    EXPECT_TRUE(given_up);
  });
  given_up = true;
  giving_up.reset();
  publisher.join();
}

// Whoever may read the draft may lock it, and keep the lock.
TEST_F(WritingTest, DraftThatAStrangerLocks_CostsThePublication_AndKeepsItsName) {
  const auto files = drafts_.WriteAll(name_);
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string draft = drafts_.DraftOf(name_);
  const UniqueFd stranger(open(draft.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(stranger.get(), LOCK_SH | LOCK_NB), 0);
  std::stop_source stopping;
  stopping.request_stop();
  const Publication publication = drafts_.PublicationOf(name_, *files);
  EXPECT_EQ(Publish(publication, stopping.get_token()).status(),
            absl::UnavailableError(TakenOf(draft) + ": is locked by somebody"));
  EXPECT_TRUE(std::filesystem::exists(draft));
  ASSERT_EQ(flock(stranger.get(), LOCK_UN), 0);
  EXPECT_TRUE(Publish(publication).ok());
}

TEST_F(WritingTest, LeftOverOfTheSameRank_IsReplaced) {
  std::filesystem::create_directories(drafts_.DraftOf(name_));
  support::WriteFile(PartPath(drafts_.DraftOf(name_), 1) + ".tmp", "half of it");
  const auto published = drafts_.WriteAndPublish(name_);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_TRUE(Verify(published->path).ok());
}

TEST_F(WritingTest, DraftThatIsGivenUp_GoesWithItsLastPart) {
  ASSERT_TRUE(WritePartFile(drafts_.WriteOf(1, name_)).ok());
  ASSERT_TRUE(WritePartFile(drafts_.WriteOf(2, name_)).ok());
  support::WriteFile(PartPath(drafts_.DraftOf(name_), 2) + ".tmp", "half of it");
  RemovePartFile(drafts_.DraftOf(name_), 2);
  EXPECT_THAT(NamesIn(drafts_.DraftOf(name_)), ElementsAre("rank-00001.safetensors"));
  RemovePartFile(drafts_.DraftOf(name_), 1);
  EXPECT_THAT(NamesIn(folder_), IsEmpty());
}

// Other ranks give their parts up, and the empty folder with them, just when rank 1 begins with its
// own.
TEST_F(WritingTest, FolderThatOtherRanksTakeAway_IsMadeAgain) {
  constexpr int kOthers = 3;
  const std::string draft = drafts_.DraftOf(name_);
  std::atomic<int> left = 0;
  std::atomic<bool> written = false;
  std::thread others([&] {
    while (!written) {
      if (left > 0 && rmdir(draft.c_str()) == 0) --left;
    }
  });
  for (int i = 0; i < 20; ++i) {
    left = kOthers;
    const auto file = WritePartFile(drafts_.WriteOf(1, name_));
    EXPECT_TRUE(file.ok()) << file.status();
    RemovePartFile(draft, 1);
  }
  written = true;
  others.join();
}

TEST_F(WritingTest, PublishedTwice_IsLeftAsItIs) {
  const auto files = drafts_.WriteAll(name_);
  ASSERT_TRUE(files.ok()) << files.status();
  const Publication publication = drafts_.PublicationOf(name_, *files);
  ASSERT_TRUE(Publish(publication).ok());
  const std::string manifest = support::ReadFile(folder_ + "/step-00000050.epoch-3/manifest.json");
  const auto again = Publish(publication);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->path, folder_ + "/step-00000050.epoch-3");
  EXPECT_EQ(support::ReadFile(again->path + "/manifest.json"), manifest);
}

TEST_F(WritingTest, PartMissingOrOfOtherBytes_IsNotPublished) {
  const auto files = drafts_.WriteAll(name_);
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string part = PartPath(drafts_.DraftOf(name_), 2);
  const std::string bytes = support::ReadFile(part);
  std::filesystem::remove(part);
  const Publication publication = drafts_.PublicationOf(name_, *files);
  const auto missing = Publish(publication);
  ASSERT_TRUE(absl::IsFailedPrecondition(missing.status())) << missing.status();
  EXPECT_THAT(missing.status().message(),
              AllOf(HasSubstr(drafts_.DraftOf(name_)), HasSubstr("has 4 part files"),
                    HasSubstr("one folder that all nodes reach")));
  support::WriteFile(part, bytes.substr(0, bytes.size() - 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(Publish(publication).status()));
  support::WriteFile(part, bytes);
  EXPECT_TRUE(Publish(publication).ok());
}

// Ranks that write later steps give up their parts, while another one publishes: at any moment, or
// once the draft is taken.
TEST_F(WritingTest, PartThatIsGivenUpMeanwhile_MakesItWholeOrNone) {
  int whole = 0;
  for (int64_t step = 1; step <= 200; ++step) {
    const CheckpointName name{.step = step, .epoch = 3};
    const auto files = drafts_.WriteAll(name);
    ASSERT_TRUE(files.ok()) << files.status();
    std::latch ready(2);
    std::atomic<bool> done = false;
    std::thread rank([&] {
      ready.arrive_and_wait();
      if (step % 2 == 0) {
        while (!done && !std::filesystem::exists(TakenOf(drafts_.DraftOf(name)))) sched_yield();
      } else {
        for (int64_t wait = 0; wait < step % 20; ++wait) sched_yield();
      }
      RemovePartFile(drafts_.DraftOf(name), 1);
    });
    ready.arrive_and_wait();
    const auto published = Publish(drafts_.PublicationOf(name, *files));
    done = true;
    rank.join();
    if (published.ok()) {
      ++whole;
      ASSERT_TRUE(Verify(published->path).ok()) << step << ": " << Verify(published->path);
    } else {
      ASSERT_EQ(step % 2, 1) << published.status();
    }
  }
  EXPECT_GE(whole, 100);
}

TEST_F(WritingTest, PublisherThatWasKilled_LeavesADraftThatTheNextOnePublishes) {
  const auto files = drafts_.WriteAll(name_);
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string draft = drafts_.DraftOf(name_), taken = TakenOf(draft);
  std::filesystem::rename(draft, taken);
  const auto published = Publish(drafts_.PublicationOf(name_, *files));
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_TRUE(Verify(published->path).ok());
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000050.epoch-3"));
  // One of an earlier step goes with the next publication.
  std::filesystem::create_directory(TakenOf(drafts_.DraftOf({.step = 40, .epoch = 3})));
  ASSERT_TRUE(drafts_.WriteAndPublish({.step = 60, .epoch = 3}).ok());
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000050.epoch-3", "step-00000060.epoch-3"));
}

TEST_F(WritingTest, NameThatAnotherJobHas_GetsANumber_AndTheOtherStays) {
  const std::string first = drafts_.WriteAndPublish(name_)->path;
  for (const int64_t job : {8, 9}) {
    const Drafts drafts(plan_, folder_, job);
    const auto files = drafts.WriteAll(name_);
    const Publication publication = drafts.PublicationOf(name_, *files);
    for (int told = 0; told < 2; ++told) {
      const auto published = Publish(publication);
      ASSERT_TRUE(published.ok()) << published.status();
      EXPECT_EQ(published->path, absl::StrCat(folder_, "/step-00000050.epoch-3.", job - 6));
    }
  }
  const auto listed = ListCheckpoints(folder_);
  ASSERT_THAT(*listed, testing::SizeIs(3));
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ((*listed)[i].manifest->number, static_cast<int64_t>(9 - i)) << "newest first";
  EXPECT_EQ(listed->back().path, first);
}

TEST_F(WritingTest, NameThatADeadLinkHas_GetsANumber_AndTheLinkStays) {
  const std::string link = folder_ + "/step-00000050.epoch-3";
  std::filesystem::create_directory_symlink("nowhere", link);
  const auto published = drafts_.WriteAndPublish(name_);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(published->path, link + ".2");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST_F(WritingTest, FileSystemWithoutFlagsOfRename_TakesCheckpointsAllTheSame) {
  const std::string said = SaidByChild([&]() -> std::string {
    if (!Refuse(__NR_renameat2, EINVAL)) return "skip";
    const Drafts others(plan_, folder_, 8);
    for (const Drafts* drafts : {&drafts_, &others}) {
      const auto published = drafts->WriteAndPublish(name_);
      if (!published.ok()) return published.status().ToString();
    }
    return "published";
  });
  if (said == "skip") GTEST_SKIP() << "this process may not filter its system calls";
  EXPECT_EQ(said, "published");
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000050.epoch-3", "step-00000050.epoch-3.2"));
}

// What a disk did not take may be gone after a power failure, though it could be read before.
TEST_F(WritingTest, PartThatTheDiskDoesNotTake_IsNotWritten) {
  const std::string said = SaidByChild([&]() -> std::string {
    if (!Refuse(__NR_fdatasync, EIO)) return "skip";
    return drafts_.WriteAll(name_).status().ToString();
  });
  if (said == "skip") GTEST_SKIP() << "this process may not filter its system calls";
  EXPECT_THAT(said, AllOf(HasSubstr("/rank-00000.safetensors"), HasSubstr("Input/output error")));
}

TEST_F(WritingTest, ManifestThatTheDiskDoesNotTake_IsNotPublished) {
  const auto files = drafts_.WriteAll(name_);
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string said = SaidByChild([&]() -> std::string {
    if (!Refuse(__NR_fsync, EIO)) return "skip";
    return Publish(drafts_.PublicationOf(name_, *files)).status().ToString();
  });
  if (said == "skip") GTEST_SKIP() << "this process may not filter its system calls";
  EXPECT_THAT(said, HasSubstr("Input/output error"));
  EXPECT_THAT(*ListCheckpoints(folder_), testing::IsEmpty());
  EXPECT_TRUE(Publish(drafts_.PublicationOf(name_, *files)).ok()) << "the draft is whole";
}

TEST_F(WritingTest, OlderEpochOfTheJob_PublishesNothingAndDeletesNothing) {
  const CheckpointName late{.step = 20, .epoch = 2};
  const auto files = drafts_.WriteAll(late);
  Publication publication = drafts_.PublicationOf(late, *files);
  publication.keep = 1;
  PublishSteps({30});  // of epoch 3
  const auto published = Publish(publication);
  ASSERT_TRUE(absl::IsFailedPrecondition(published.status())) << published.status();
  EXPECT_EQ(published.status().message(),
            "epoch 2 of the job is over: step-00000030.epoch-3 is there");
  EXPECT_THAT(NamesIn(folder_), Contains("step-00000030.epoch-3"));
}

}  // namespace
}  // namespace phalanx::checkpoint
