// Who gets a connection to a rank that connects, and who does not.
#include "worker/comm/links.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/host_port.h"
#include "core/posix/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"
#include "worker/comm/link_proof.h"

namespace phalanx::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::UnorderedElementsAre;
using Links = std::map<int32_t, UniqueFd>;

// Blocking, for those who do by hand what a rank does or a stranger might.
class Socket {
 public:
  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}
  // To "HOST:PORT" on this machine.
  explicit Socket(absl::string_view address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(ParseHostPort(address, 1)->port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  // False: nobody listens there.
  bool connected() const { return connected_; }
  void Say(absl::string_view text) const {
    EXPECT_EQ(send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Fewer bytes where the other end is closed or reset before.
  std::string Hear(size_t bytes) const {
    std::string text(bytes, '\0');
    const ssize_t count = recv(fd_.get(), text.data(), bytes, MSG_WAITALL);
    text.resize(count < 0 ? 0 : static_cast<size_t>(count));
    return text;
  }

 private:
  UniqueFd fd_;
  bool connected_ = true;
};

struct Listener {
  std::string secret, address;
};

// Rank 0 of a world, in a thread, as others find it.
class RankZero {
 public:
  explicit RankZero(std::vector<int32_t> peers, absl::Duration timeout = absl::Seconds(60)) {
    // Those above have nothing to say, for nobody calls them in these tests.
    for (const int32_t peer : peers) table_.Put(absl::StrCat("links/", peer), "").IgnoreError();
    WorldOptions options{.setup_timeout = timeout};
    options.strangers = [this](int64_t refused, const std::string& last) {
      refused_ = refused;
      last_refused_ = last;
    };
    thread_ =
        std::thread([this, peers, options] { links_ = ConnectLinks(0, peers, table_, options); });
    const std::string said = *table_.Get("links/0", DeadlineIn(absl::Seconds(60)));
    announced_ = {said.substr(0, kLinkWordBytes), said.substr(kLinkWordBytes)};
  }
  ~RankZero() {
    if (thread_.joinable()) thread_.join();
  }
  MemoryRendezvous& table() { return table_; }
  const Listener& announced() const { return announced_; }
  // Once it has ended.
  const absl::StatusOr<Links>& links() {
    if (thread_.joinable()) thread_.join();
    return links_;
  }
  int64_t refused() const { return refused_; }
  const std::string& last_refused() const { return last_refused_; }

 private:
  MemoryRendezvous table_;
  Listener announced_;
  absl::StatusOr<Links> links_ = absl::UnknownError("");
  int64_t refused_ = 0;
  std::string last_refused_;
  std::thread thread_;
};

// As rank `self` does; what it said, and whether it was let in.
struct Conversation {
  std::string hello, challenge, proof;
  bool welcome = false;
};
Conversation Converse(const Socket& with, int32_t self, const std::string& secret,
                      int32_t listener = 0) {
  Conversation said;
  said.hello = ToText({.caller = self, .listener = listener, .drawn = DrawLinkWord()});
  with.Say(said.hello);
  said.challenge = with.Hear(2 * kLinkWordBytes);
  if (said.challenge.size() < 2 * kLinkWordBytes) return said;
  said.proof =
      LinkProof(secret, LinkEnd::kCaller, said.hello, said.challenge.substr(0, kLinkWordBytes));
  with.Say(said.proof);
  said.welcome = with.Hear(1) == "W";
  return said;
}

TEST(LinksTest, ThreeRanks_HaveAConnectionOfEachTwo) {
  MemoryRendezvous table;
  std::array<absl::StatusOr<Links>, 3> links;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int32_t> peers;
      for (int32_t peer = 0; peer < 3; ++peer) {
        if (peer != rank) peers.push_back(peer);
      }
      links[static_cast<size_t>(rank)] = ConnectLinks(rank, peers, table, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(links[rank].ok()) << links[rank].status();
    for (const auto& [peer, link] : *links[rank])
      ASSERT_EQ(send(link.get(), absl::StrCat(rank).data(), 1, MSG_NOSIGNAL), 1);
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(links[rank]->size(), 2);
    for (const auto& [peer, link] : *links[rank]) {
      pollfd readable{link.get(), POLLIN, 0};
      ASSERT_EQ(poll(&readable, 1, 60'000), 1);
      char from = 0;
      ASSERT_EQ(recv(link.get(), &from, 1, 0), 1);
      EXPECT_EQ(from, '0' + peer);
    }
  }
}

TEST(LinksTest, StrangersWithoutTheSecret_AreRefusedAndCounted) {
  RankZero zero({1});
  const Listener& at = zero.announced();
  const auto refused = [&](auto talk) {
    const Socket stranger(at.address);
    talk(stranger);
    EXPECT_EQ(stranger.Hear(1), "");
  };
  refused(
      [](const Socket& s) { s.Say(std::string(kLinkHelloBytes, 'x')); });  // of another protocol
  refused([](const Socket& s) { EXPECT_FALSE(Converse(s, 1, DrawLinkWord()).welcome); });
  refused([](const Socket& s) { EXPECT_FALSE(Converse(s, 1, "").welcome); });
  // With the secret, as who is not awaited.
  for (const int32_t rank : {-1, 0, 2}) {
    refused([&](const Socket& s) { EXPECT_EQ(Converse(s, rank, at.secret).challenge, ""); });
  }
  refused([&](const Socket& s) { EXPECT_EQ(Converse(s, 1, at.secret, 1).challenge, ""); });
  // The listener's own proof is none of a caller.
  refused([](const Socket& s) {
    s.Say(ToText({.caller = 1, .listener = 0, .drawn = DrawLinkWord()}));
    s.Say(s.Hear(2 * kLinkWordBytes).substr(kLinkWordBytes));
  });

  const auto one = ConnectLinks(1, {0}, zero.table(), {});
  EXPECT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(zero.links().ok()) << zero.links().status();
  EXPECT_THAT(*zero.links(), ElementsAre(Key(1)));
  EXPECT_EQ(zero.refused(), 8);
  EXPECT_THAT(zero.last_refused(), HasSubstr("ipv4:127.0.0.1:"));
}

// As ranks do whose epoch ends while they connect.
TEST(LinksTest, PeerThatGreetsAndGoes_IsNoStranger) {
  RankZero zero({1});
  {
    const Socket first(zero.announced().address);
    first.Say(ToText({.caller = 1, .listener = 0, .drawn = DrawLinkWord()}));
    EXPECT_EQ(first.Hear(2 * kLinkWordBytes).size(), 2 * kLinkWordBytes);
  }
  EXPECT_TRUE(ConnectLinks(1, {0}, zero.table(), {}).ok());
  EXPECT_TRUE(zero.links().ok()) << zero.links().status();
  EXPECT_EQ(zero.refused(), 0);
}

TEST(LinksTest, WhoWaitsWhenConnectingFails_IsNoStranger) {
  RankZero zero({1, 2}, absl::Milliseconds(200));
  const Socket one(zero.announced().address);
  one.Say(ToText({.caller = 1, .listener = 0, .drawn = DrawLinkWord()}));
  EXPECT_EQ(zero.links().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(zero.refused(), 0);
}

TEST(LinksTest, WhatWasSaidInAnotherConnection_ProvesNothing) {
  RankZero zero({1, 2});
  const Listener& at = zero.announced();
  const Socket one(at.address);
  const Conversation said = Converse(one, 1, at.secret);
  ASSERT_TRUE(said.welcome);

  const Socket replay(at.address);
  replay.Say(said.hello);
  const std::string challenge = replay.Hear(2 * kLinkWordBytes);
  EXPECT_EQ(challenge.size(), 2 * kLinkWordBytes);
  EXPECT_NE(challenge, said.challenge);
  replay.Say(said.proof);
  EXPECT_EQ(replay.Hear(1), "");

  const Socket two(at.address);
  ASSERT_TRUE(Converse(two, 2, at.secret).welcome);
  ASSERT_TRUE(zero.links().ok()) << zero.links().status();
  EXPECT_THAT(*zero.links(), UnorderedElementsAre(Key(1), Key(2)));
  EXPECT_EQ(zero.refused(), 1);
  // The connections are those that were let in.
  ASSERT_EQ(send(zero.links()->at(1).get(), "1", 1, MSG_NOSIGNAL), 1);
  ASSERT_EQ(send(zero.links()->at(2).get(), "2", 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(one.Hear(1), "1");
  EXPECT_EQ(two.Hear(1), "2");
}

// They say nothing and stay, more than have room, and more come while the peer calls.
TEST(LinksTest, FloodOfStrangers_DoesNotKeepAPeerOut) {
  RankZero zero({1});
  std::atomic<int> called = 0;
  std::thread flood([&] {
    std::vector<Socket> silent;
    while (true) {
      if (silent.size() == 2 * kCallersMax) silent.erase(silent.begin(), silent.begin() + 32);
      silent.emplace_back(zero.announced().address);
      // A rank that is connected listens no more.
      if (!silent.back().connected()) return;
      ++called;
    }
  });
  while (called < static_cast<int>(3 * kCallersMax)) std::this_thread::yield();
  const auto one = ConnectLinks(1, {0}, zero.table(), {});
  const bool connected = zero.links().ok();
  flood.join();
  EXPECT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(connected) << zero.links().status();
  EXPECT_GE(zero.refused(), static_cast<int64_t>(kCallersMax));
}

// Rank 1 calls somebody whom this test plays.
class CallTest : public ::testing::Test {
 protected:
  CallTest() : listening_(*Listen("127.0.0.1", 0)) {
    table_.Put("links/0", absl::StrCat(secret_, "127.0.0.1:", PortOf(listening_.get())))
        .IgnoreError();
    thread_ = std::thread([this] { links_ = ConnectLinks(1, {0}, table_, {}); });
  }
  ~CallTest() override {
    if (thread_.joinable()) thread_.join();
  }
  Socket Accept() const {
    pollfd readable{listening_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&readable, 1, 60'000), 1);
    return Socket(UniqueFd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  // What rank 0 answers to a hello.
  void Answer(const Socket& caller, const std::string& secret) const {
    const std::string hello = caller.Hear(kLinkHelloBytes), drawn = DrawLinkWord();
    caller.Say(drawn + LinkProof(secret, LinkEnd::kListener, hello, drawn));
  }
  const absl::StatusOr<Links>& links() {
    if (thread_.joinable()) thread_.join();
    return links_;
  }

  const std::string secret_ = DrawLinkWord();
  UniqueFd listening_;
  MemoryRendezvous table_;
  absl::StatusOr<Links> links_ = absl::UnknownError("");
  std::thread thread_;
};

TEST_F(CallTest, WhoeverListensWithoutTheSecret_IsNoPeer) {
  Answer(Accept(), DrawLinkWord());
  EXPECT_EQ(links().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(links().status().message()),
              HasSubstr("does not know the secret of that rank"));
}

TEST_F(CallTest, CallerThatLosesItsPlace_CallsAgain) {
  Accept();  // and closes: it has too many
  {
    const Socket second = Accept();
    Answer(second, secret_);
    EXPECT_EQ(second.Hear(kLinkWordBytes).size(), kLinkWordBytes);
  }
  const Socket third = Accept();
  Answer(third, secret_);
  EXPECT_EQ(third.Hear(kLinkWordBytes).size(), kLinkWordBytes);
  third.Say("W");
  EXPECT_TRUE(links().ok()) << links().status();
}

TEST_F(CallTest, PeerThatHasGone_IsUnavailable) {
  {
    const Socket first = Accept();
    listening_.reset();
    EXPECT_EQ(first.Hear(kLinkHelloBytes).size(), kLinkHelloBytes);
  }
  EXPECT_EQ(links().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(links().status().message()), HasSubstr("Connection refused"));
}

TEST(LinksTest, PeerThatDoesNotCall_IsNamed) {
  RankZero zero({1, 2}, absl::Milliseconds(20));
  EXPECT_EQ(zero.links().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(zero.links().status().message()), HasSubstr("with rank 1, 2"));
}

TEST(LinksTest, AnnouncementOfNoAddress_IsInternal) {
  for (const std::string& said : {std::string(), std::string("127.0.0.1:4444"),
                                  std::string(kLinkWordBytes, 's') + "no address"}) {
    MemoryRendezvous table;
    ASSERT_TRUE(table.Put("links/0", said).ok());
    const auto links = ConnectLinks(1, {0}, table, {});
    EXPECT_EQ(links.status().code(), absl::StatusCode::kInternal) << links.status();
    EXPECT_THAT(std::string(links.status().message()), HasSubstr("rank 0 announces"));
  }
}

TEST(LinksTest, StopWhileNobodyCalls_IsCancelled) {
  std::stop_source stop;
  MemoryRendezvous table;
  ASSERT_TRUE(table.Put("links/1", "").ok());
  stop.request_stop();
  WorldOptions options{.stop = stop.get_token()};
  EXPECT_EQ(ConnectLinks(0, {1}, table, options).status().code(), absl::StatusCode::kCancelled);
}

TEST(LinkProofTest, EveryPartOfWhatWasSaid_CountsInIt) {
  const std::string secret = DrawLinkWord(), drawn = DrawLinkWord();
  const std::string hello = ToText({.caller = 3, .listener = 1, .drawn = DrawLinkWord()});
  const auto other = [](std::string text, size_t at) {
    text[at] = static_cast<char>(text[at] ^ 1);
    return text;
  };
  std::set<std::string> proofs = {LinkProof(secret, LinkEnd::kCaller, hello, drawn),
                                  LinkProof(secret, LinkEnd::kListener, hello, drawn)};
  for (size_t at = 0; at < kLinkWordBytes; ++at) {
    proofs.insert(LinkProof(other(secret, at), LinkEnd::kCaller, hello, drawn));
    proofs.insert(LinkProof(secret, LinkEnd::kCaller, hello, other(drawn, at)));
  }
  for (size_t at = 0; at < kLinkHelloBytes; ++at)
    proofs.insert(LinkProof(secret, LinkEnd::kCaller, other(hello, at), drawn));
  EXPECT_EQ(proofs.size(), 2 + 2 * kLinkWordBytes + kLinkHelloBytes);
}

TEST(LinkProofTest, Hello_ReadsAsItWasWritten) {
  const LinkHello hello{.caller = 70'000, .listener = 258, .drawn = DrawLinkWord()};
  const auto read = ParseLinkHello(ToText(hello));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->caller, 70'000);
  EXPECT_EQ(read->listener, 258);
  EXPECT_EQ(read->drawn, hello.drawn);
  EXPECT_FALSE(ParseLinkHello(ToText(hello).substr(1)).has_value());
  EXPECT_FALSE(ParseLinkHello("").has_value());
}

// As where one gives something to two others, which have nothing to say to each other.
TEST(LinksTest, RanksThatDoNotMeet_MeetAThird) {
  MemoryRendezvous table;
  const std::vector<std::vector<int32_t>> peers = {{1}, {0, 2}, {1}};
  std::vector<absl::StatusOr<Links>> links(peers.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    threads.emplace_back([&, rank] {
      links[rank] = ConnectLinks(static_cast<int32_t>(rank), peers[rank], table, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : links) ASSERT_TRUE(each.ok()) << each.status();
  EXPECT_THAT(*links[0], ElementsAre(Key(1)));
  EXPECT_THAT(*links[1], ElementsAre(Key(0), Key(2)));
  EXPECT_THAT(*links[2], ElementsAre(Key(1)));
}

}  // namespace
}  // namespace phalanx::comm
