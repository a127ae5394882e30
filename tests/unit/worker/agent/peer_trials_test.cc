// Two nodes that try whether they reach each other, both on loopback.
#include "worker/agent/peer_trials.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "core/posix/socket.h"
#include "core/posix/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;

constexpr char kWord[] = "0123456789abcdef0123456789abcdef";
constexpr char kOther[] = "ffffffffffffffff0123456789abcdef";

class Side {
 public:
  explicit Side(PeerTrialsOptions options) : trials_(std::move(options), inbox_) {}

  PeerTried Try(const std::string& peer, const std::string& word = kWord) {
    trials_.Start({.command_number = 7, .of = Incarnation{9}, .word = word, .peer = peer});
    return Next();
  }
  PeerTried Next() {
    while (true) {
      const std::vector<Event> events = inbox_.TakeAll();
      if (!events.empty()) return std::get<PeerTried>(events.front());
      pollfd ready{inbox_.fd(), POLLIN, 0};
      poll(&ready, 1, -1);
    }
  }
  void AwaitEnd() const {
    while (trials_.busy()) std::this_thread::yield();
  }

 private:
  Inbox inbox_;
  PeerTrials trials_;
};

PeerTrialsOptions OnLoopback() { return {.address = "127.0.0.1"}; }

TEST(PeerTrialsTest, NodesThatReachEachOther_ProveIt_AndNothingListensAfterwards) {
  Side listener(OnLoopback()), caller(OnLoopback());
  const PeerTried listens = listener.Try("");
  ASSERT_TRUE(listens.status.ok()) << listens.status;
  EXPECT_EQ(listens.command_number, 7u);
  EXPECT_EQ(listens.of, Incarnation{9});
  EXPECT_TRUE(absl::StartsWith(listens.listens_at, "127.0.0.1:")) << listens.listens_at;
  const PeerTried connects = caller.Try(listens.listens_at);
  EXPECT_TRUE(connects.status.ok()) << connects.status;
  EXPECT_EQ(connects.listens_at, "");
  listener.AwaitEnd();
  EXPECT_TRUE(absl::IsUnavailable(caller.Try(listens.listens_at).status));
}

TEST(PeerTrialsTest, WhoeverDoesNotKnowTheWord_IsLeft_AndTheOtherOneIsAwaited) {
  Side listener(OnLoopback()), stranger(OnLoopback()), caller(OnLoopback());
  const std::string place = listener.Try("").listens_at;
  EXPECT_EQ(stranger.Try(place, kOther).status,
            absl::UnavailableError("something else than the node's worker answers there"));
  EXPECT_TRUE(caller.Try(place).status.ok());
}

TEST(PeerTrialsTest, StrangersWhoSayNothing_KeepNobodyWaiting) {
  Side listener(OnLoopback());
  const std::string place = listener.Try("").listens_at;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(place.substr(place.find(':') + 1), &port));
  address.sin_port = htons(static_cast<uint16_t>(port));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(strangers.back().get(), reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
              0);
  }
  Side caller(OnLoopback());
  EXPECT_TRUE(caller.Try(place).status.ok());
}

TEST(PeerTrialsTest, NobodyListens_IsSaidAsItIs) {
  // A port that was free a moment ago.
  std::string place;
  {
    const absl::StatusOr<UniqueFd> listening = Listen("127.0.0.1", 0);
    ASSERT_TRUE(listening.ok());
    place = *AddressOf(listening->get());
  }
  Side caller(OnLoopback());
  EXPECT_EQ(caller.Try(place).status, absl::UnavailableError("Connection refused"));
}

TEST(PeerTrialsTest, WhoListensAndSaysNothing_IsNotAwaitedForLong) {
  const absl::StatusOr<UniqueFd> listening = Listen("127.0.0.1", 0);
  ASSERT_TRUE(listening.ok());
  Side caller({.address = "127.0.0.1", .connect_time = absl::Milliseconds(50)});
  EXPECT_EQ(caller.Try(*AddressOf(listening->get())).status,
            absl::UnavailableError("no answer within 50ms"));
}

TEST(PeerTrialsTest, NobodyComes_ItListensForItsTimeAlone) {
  Side listener({.address = "127.0.0.1", .listen_time = absl::Milliseconds(50)});
  const std::string place = listener.Try("").listens_at;
  listener.AwaitEnd();
  Side caller(OnLoopback());
  EXPECT_EQ(caller.Try(place).status, absl::UnavailableError("Connection refused"));
}

TEST(PeerTrialsTest, AddressOfAnotherMachine_CannotBeListenedOn) {
  Side listener({.address = "192.0.2.1"});  // of no machine: for documentation
  const absl::Status status = listener.Try("").status;
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("cannot listen on 192.0.2.1:0: "));
}

TEST(PeerTrialsTest, WhatIsNoWordOrNoPlaceInNumbers_IsInvalid) {
  Side side(OnLoopback());
  for (const char* word : {"", "short", "0123456789abcdef0123456789abcdeg"})
    EXPECT_TRUE(absl::IsInvalidArgument(side.Try("", word).status)) << word;
  for (const char* place : {"127.0.0.1", "127.0.0.1:0", "localhost:80", "[127.0.0.1:80"})
    EXPECT_TRUE(absl::IsInvalidArgument(side.Try(place).status)) << place;
}

TEST(PeerTrialsTest, MoreThanItsMost_AreRefused_AndItsEndWaitsForNone) {
  std::optional<Side> listener;
  listener.emplace(PeerTrialsOptions{.address = "127.0.0.1", .listen_time = absl::Hours(1)});
  for (size_t i = 0; i < PeerTrials::kTrialsMax; ++i) EXPECT_TRUE(listener->Try("").status.ok());
  EXPECT_EQ(listener->Try("").status,
            absl::ResourceExhaustedError("8 trials are under way on this node; try again"));
  listener.reset();
}

}  // namespace
}  // namespace phalanx::agent
