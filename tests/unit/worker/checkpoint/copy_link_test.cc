#include "worker/checkpoint/copy_link.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

constexpr int64_t kStep = 4;
constexpr int64_t kCopyBytes = 5 << 20;  // more than a socket takes at once
constexpr Rank kRank{3};

HostCopyPair::Identity IdentityOf(Rank rank) {
  return {.store = 5, .job = 7, .epoch = Epoch{2}, .rank = rank};
}

// A whole copy of kStep in the second buffer; its bytes say where they are.
struct Copy {
  std::array<UniqueFd, 2> files;
  std::optional<HostCopyPair> pair;
};
Copy CopyOfRank(Rank rank) {
  Copy copy;
  std::array<UniqueFd, 2> given;
  for (size_t i = 0; i < 2; ++i) {
    copy.files[i] = UniqueFd(memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(copy.files[i].get(), kHostCopyPage + kCopyBytes), 0);
    given[i] = UniqueFd(dup(copy.files[i].get()));
  }
  std::string data(kCopyBytes, 0);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + i / 251);
  EXPECT_EQ(pwrite(copy.files[1].get(), data.data(), data.size(), kHostCopyPage), kCopyBytes);
  HostCopyHeader header{
      .store = 5, .job = 7, .epoch = 2, .plan = 9, .rank = rank.value, .bytes = kCopyBytes};
  SetStart({.decision = {.step = kStep, .verdict = train::Verdict::kCommitted}}, &header);
  std::memcpy(header.magic, kHostCopyMagic, sizeof header.magic);
  header.checksum = ChecksumOf(header);
  EXPECT_EQ(pwrite(copy.files[1].get(), &header, sizeof header, 0), sizeof header);
  copy.pair = *HostCopyPair::Map(IdentityOf(rank), kHostCopyPage + kCopyBytes, std::move(given));
  return copy;
}

// The two ends of a connection; what one does runs beside the other.
class CopyLinkTest : public testing::Test {
 protected:
  CopyLinkTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    giver_.reset(fds[0]);
    taker_.reset(fds[1]);
  }
  // Until the taker has closed its end.
  std::thread Give(std::function<const HostCopyPair*(Rank)> find) {
    return std::thread([this, find = std::move(find)] {
      given_ = GiveCopies(giver_.get(), kStep, find, options_);
      giver_.reset();
    });
  }
  absl::StatusOr<std::optional<HostCopyPair>> Take(Rank rank,
                                                   int64_t bytes_max = kHostCopyPage + kCopyBytes) {
    return TakeCopy(taker_.get(), IdentityOf(rank), bytes_max, options_);
  }

  UniqueFd giver_, taker_;
  CopyLinkOptions options_;
  absl::Status given_ = absl::InternalError("it has not come back");
};

TEST_F(CopyLinkTest, Copies_ComeOneAfterTheOtherAsTheyAre) {
  std::map<Rank, Copy> copies;
  for (const Rank rank : {Rank{1}, kRank}) copies.emplace(rank, CopyOfRank(rank));
  std::thread giver = Give([&](Rank rank) -> const HostCopyPair* {
    const auto found = copies.find(rank);
    return found == copies.end() ? nullptr : &*found->second.pair;
  });
  for (const Rank rank : {kRank, Rank{1}}) {
    const auto taken = Take(rank);
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_TRUE(taken->has_value());
    EXPECT_EQ((*taken)->rank(), rank);
    const HostCopyPair::Buffer is = *(*taken)->BufferOf(kStep);
    const HostCopyPair::Buffer was = *copies.at(rank).pair->BufferOf(kStep);
    EXPECT_EQ(std::memcmp(is.memory, was.memory, kHostCopyPage + kCopyBytes), 0);
  }
  const auto none = Take(Rank{2});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
  taker_.reset();
  giver.join();
  EXPECT_TRUE(given_.ok()) << given_;
}

TEST_F(CopyLinkTest, CopyOfAnotherStep_IsNone) {
  Copy copy = CopyOfRank(kRank);
  const std::string nothing(kHostCopyPage, 0);
  ASSERT_EQ(pwrite(copy.files[1].get(), nothing.data(), nothing.size(), 0), kHostCopyPage);
  std::thread giver = Give([&](Rank) { return &*copy.pair; });
  const auto none = Take(kRank);
  EXPECT_TRUE(none.ok() && !none->has_value()) << none.status();
  taker_.reset();
  giver.join();
}

// It is written to as soon as the taker has its page.
TEST_F(CopyLinkTest, CopyThatSomebodyWritesToMeanwhile_IsRefused) {
  Copy copy = CopyOfRank(kRank);
  const int small = 64 << 10;  // so that most of it is still to be sent then
  ASSERT_EQ(setsockopt(giver_.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  std::thread writer([&] {
    std::array<char, 8 + kHostCopyPage> begin;
    constexpr auto kAll = static_cast<ssize_t>(begin.size());
    while (recv(taker_.get(), begin.data(), begin.size(), MSG_PEEK) != kAll)
      std::this_thread::yield();
    EXPECT_EQ(pwrite(copy.files[1].get(), "torn", 4, 0), 4);
  });
  const std::array<char, 4> asked = {3, 0, 0, 0};
  ASSERT_EQ(send(taker_.get(), asked.data(), asked.size(), 0), 4);
  std::thread giver = Give([&](Rank) { return &*copy.pair; });
  writer.join();
  // The answer to the question above.
  const auto taken = Take(kRank);
  EXPECT_TRUE(absl::IsDataLoss(taken.status())) << taken.status();
  EXPECT_THAT(taken.status().message(), HasSubstr("somebody has written to the copy"));
  taker_.reset();
  giver.join();
}

TEST_F(CopyLinkTest, MoreThanItCanBe_IsRefused) {
  Copy copy = CopyOfRank(kRank);
  std::thread giver = Give([&](Rank) { return &*copy.pair; });
  const auto taken = Take(kRank, kCopyBytes);
  EXPECT_TRUE(absl::IsInvalidArgument(taken.status()));
  EXPECT_THAT(taken.status().message(), HasSubstr("it has at most 5242880"));
  taker_.reset();
  giver.join();
  EXPECT_TRUE(absl::IsUnavailable(given_)) << given_;
}

TEST_F(CopyLinkTest, MoreThanTheNodeHasRoomFor_IsRefused) {
  Copy copy = CopyOfRank(kRank);
  options_.available = [] { return kCopyBytes; };
  std::thread giver = Give([&](Rank) { return &*copy.pair; });
  const auto taken = Take(kRank);
  EXPECT_TRUE(absl::IsResourceExhausted(taken.status())) << taken.status();
  EXPECT_THAT(taken.status().message(), HasSubstr("this node has 5242880 available"));
  taker_.reset();
  giver.join();
}

TEST_F(CopyLinkTest, AnswerThatIsNoCopy_IsRefused) {
  std::array<char, 8 + kHostCopyPage> answer{};
  answer[1] = 32;  // 8,192 bytes
  ASSERT_EQ(send(giver_.get(), answer.data(), answer.size(), 0),
            static_cast<ssize_t>(answer.size()));
  EXPECT_TRUE(absl::IsDataLoss(Take(kRank).status()));
}

TEST_F(CopyLinkTest, LengthBelowAPage_IsRefused) {
  for (const char first : {'\x01', '\xff'}) {
    std::array<char, 8> answer{};
    answer[first == '\x01' ? 0 : 7] = first;  // 1, or a negative number
    ASSERT_EQ(send(giver_.get(), answer.data(), answer.size(), 0), 8);
    EXPECT_TRUE(absl::IsInvalidArgument(Take(kRank).status()));
  }
}

TEST_F(CopyLinkTest, EndThatGoes_IsNoticed) {
  giver_.reset();
  EXPECT_TRUE(absl::IsUnavailable(Take(kRank).status()));
}

TEST_F(CopyLinkTest, HalfAQuestion_IsNone) {
  ASSERT_EQ(send(taker_.get(), "ab", 2, 0), 2);
  taker_.reset();
  EXPECT_TRUE(absl::IsUnavailable(GiveCopies(
      giver_.get(), kStep, [](Rank) { return nullptr; }, options_)));
}

TEST_F(CopyLinkTest, EndThatIsSilent_IsNotWaitedForForEver) {
  options_.silence_max = options_.turn_max = absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Take(kRank).status()));
  ASSERT_TRUE(absl::IsDeadlineExceeded(GiveCopies(
      taker_.get(), kStep, [](Rank) { return nullptr; }, options_)));
}

TEST_F(CopyLinkTest, Stop_EndsBothEnds) {
  std::stop_source stop;
  stop.request_stop();
  options_.stop = stop.get_token();
  EXPECT_TRUE(absl::IsCancelled(Take(kRank).status()));
  EXPECT_TRUE(absl::IsCancelled(GiveCopies(
      giver_.get(), kStep, [](Rank) { return nullptr; }, options_)));
}

}  // namespace
}  // namespace phalanx::checkpoint
