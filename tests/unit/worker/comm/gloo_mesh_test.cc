#include "worker/comm/gloo_mesh.h"

#include <arpa/inet.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>
#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "core/job/failure.h"
#include "core/posix/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"
#include "worker/comm/links.h"

namespace phalanx::comm {
namespace {

namespace tcp = ::gloo::transport::tcp;
using ::testing::HasSubstr;

// Rank 1 of a world of two, as what it announces once rank 0 has announced itself.
class ScriptedPeer final : public Rendezvous {
 public:
  using Answer = std::function<std::string(const std::string& announced)>;
  explicit ScriptedPeer(Answer answer) : answer_(std::move(answer)) {}
  absl::Status Put(const std::string&, const std::string& value) override {
    announced_ = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string&, Deadline) override {
    return answer_(announced_);
  }

 private:
  const Answer answer_;
  std::string announced_;
};

// As ranks of layouts before plan::kDerivationOfProvenLinks.
absl::Status Connect(ScriptedPeer::Answer answer, WorldOptions options = {}) {
  options.proven_links = false;
  ScriptedPeer peer(std::move(answer));
  return ConnectGlooMesh(0, 2, {1}, peer, options).status();
}

// The address that rank 0 listens on for rank 1.
sockaddr_in AddressOf(const std::string& announced) {
  sockaddr_in address = {};
  std::memcpy(&address, announced.data(), sizeof(address));
  return address;
}

TEST(GlooMeshTest, AnnouncementOfAnotherLength_IsInternal) {
  for (const char* announced : {"", "an address"}) {
    const absl::Status status = Connect([&](const auto&) { return announced; });
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 announces"));
  }
  const absl::Status two = Connect([](const auto& announced) { return announced + announced; });
  EXPECT_EQ(two.code(), absl::StatusCode::kInternal) << two;
}

TEST(GlooMeshTest, OurOwnAddress_IsUnavailable) {
  const absl::Status status = Connect([](const auto& announced) { return announced; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(GlooMeshTest, AddressOfAnotherFamily_IsUnavailable) {
  const absl::Status status =
      Connect([](const auto& announced) { return std::string(announced.size(), '\x7f'); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(GlooMeshTest, InterfaceThatDoesNotResolve_IsUnavailable) {
  const absl::Status status = Connect([](const auto& announced) { return announced; },
                                      {.interface_address = "no such host"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no such host"));
}

TEST(GlooMeshTest, PeerThatDoesNotConnect_IsUnavailable) {
  const absl::Status status = Connect(
      [](std::string announced) {
        announced[offsetof(sockaddr_in, sin_addr) + 3] = 2;  // 127.0.0.2: the higher one connects
        return announced;
      },
      {.setup_timeout = absl::Milliseconds(20)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

// Gloo's thread accepts the connection and asks for the name of a peer that is gone. What it throws
// then ended the process.
TEST(GlooMeshTest, PeerThatResetsItsConnection_FailsTheMeshAndNotTheProcess) {
  for (int round = 0; round < 100; ++round) {
    const auto answer = [](std::string announced) {
      const sockaddr_in address = AddressOf(announced);
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const linger reset{.l_onoff = 1, .l_linger = 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
      close(fd);
      announced[offsetof(sockaddr_in, sin_addr) + 3] = 2;  // 127.0.0.2: rank 0 waits for it
      return announced;
    };
    // A reset that comes after the pair was made is found by the first message.
    const absl::Status status = Connect(answer, {.setup_timeout = absl::Seconds(20)});
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  }
}

// The same of a connection that was proved before Gloo's pair takes it: a rank whose epoch is
// stopped while it connects.
TEST(GlooMeshTest, PeerThatResetsALinkThatIsProved_FailsTheMeshAndNotTheProcess) {
  for (int round = 0; round < 20; ++round) {
    MemoryRendezvous rendezvous;
    std::thread peer([&] {
      auto links = ConnectLinks(1, {0}, rendezvous, {.setup_timeout = absl::Seconds(20)});
      ASSERT_TRUE(links.ok()) << links.status();
      const linger reset{.l_onoff = 1, .l_linger = 0};
      setsockopt(links->at(0).get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    });
    const absl::Status status =
        ConnectGlooMesh(0, 2, {1}, rendezvous, {.setup_timeout = absl::Seconds(20)}).status();
    peer.join();
    // A reset that comes after the pair was made is found by the first message.
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  }
}

// All of that many bytes, or what came before the end of the connection or of patience.
std::string ReadAll(int fd, size_t bytes) {
  std::string all(bytes, '\0');
  size_t got = 0;
  for (pollfd entry{fd, POLLIN, 0}; got < bytes && poll(&entry, 1, 20'000) > 0;) {
    const ssize_t more = recv(fd, &all[got], bytes - got, 0);
    if (more <= 0) break;
    got += static_cast<size_t>(more);
  }
  all.resize(got);
  return all;
}

decltype(tcp::Op::preamble) ReadPreamble(int fd) {
  tcp::Op op;
  const std::string bytes = ReadAll(fd, sizeof(op.preamble));
  EXPECT_EQ(bytes.size(), sizeof(op.preamble));
  std::memcpy(&op.preamble, bytes.data(), bytes.size());
  return op.preamble;
}

// A rank that was stopped lets go of what it was sending: whatever waits behind that, a farewell
// too, would wait until the peer ran out of patience.
TEST(GlooMeshTest, MessageWhoseBufferGoesHalfWay_LeavesWholeAndStopsNothingBehindIt) {
  constexpr size_t kBytes = 64 << 20;  // more than sockets hold
  constexpr uint64_t kTag = 5, kNextTag = 6;
  MemoryRendezvous rendezvous;
  const WorldOptions options{.setup_timeout = absl::Seconds(20)};
  std::map<int32_t, UniqueFd> links;
  std::thread connecting([&] {
    auto connected = ConnectLinks(1, {0}, rendezvous, options);
    ASSERT_TRUE(connected.ok()) << connected.status();
    links = *std::move(connected);
  });
  const auto mesh = ConnectGlooMesh(0, 2, {1}, rendezvous, options);
  connecting.join();
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  ASSERT_EQ(links.size(), 1u);
  const int peer = links.at(0).get();

  std::string data(kBytes, 'x');
  data.back() = 'y';
  const std::string sent = data;
  auto message = (*mesh)->createUnboundBuffer(data.data(), data.size());
  message->send(1, kTag);
  EXPECT_EQ(ReadPreamble(peer).opcode, tcp::Op::NOTIFY_SEND_READY);
  tcp::Op ready;
  ready.preamble.nbytes = sizeof(ready.preamble);
  ready.preamble.opcode = tcp::Op::NOTIFY_RECV_READY;
  ready.preamble.slot = kTag;
  ready.preamble.length = kBytes;
  ASSERT_EQ(write(peer, &ready.preamble, sizeof(ready.preamble)),
            static_cast<ssize_t>(sizeof(ready.preamble)));
  const auto begun = ReadPreamble(peer);
  EXPECT_EQ(begun.opcode, tcp::Op::SEND_UNBOUND_BUFFER);
  EXPECT_EQ(begun.length, kBytes);
  EXPECT_FALSE(IsSent(*message));
  message = nullptr;
  std::fill(data.begin(), data.end(), 'z');
  auto next = (*mesh)->createUnboundBuffer(nullptr, 0);
  next->send(1, kNextTag);

  EXPECT_TRUE(ReadAll(peer, kBytes) == sent) << "as it was when its buffer went";
  const auto behind = ReadPreamble(peer);
  EXPECT_EQ(behind.opcode, tcp::Op::NOTIFY_SEND_READY);
  EXPECT_EQ(behind.slot, kNextTag);
}

// Ours derive from Gloo's, and one header that their layout depends on is ours.
template <typename T>
void ExpectAsLargeAs(void* made) {
  const std::unique_ptr<void, decltype(&std::free)> ours(std::malloc(sizeof(T)), &std::free);
  EXPECT_EQ(malloc_usable_size(made), malloc_usable_size(ours.get()));
}
TEST(GlooMeshTest, PairAndBufferOfTheLibrary_AreAsLargeAsTheirHeadersSay) {
  auto device = std::make_shared<tcp::Device>(tcp::CreateDeviceAttr(tcp::attr("127.0.0.1")));
  const auto context = std::make_shared<tcp::Context>(device, 0, 2);
  context->setTimeout(std::chrono::seconds(1));
  ExpectAsLargeAs<tcp::Pair>(dynamic_cast<void*>(context->createPair(1).get()));
  const auto buffer = context->createUnboundBuffer(nullptr, 0);
  ExpectAsLargeAs<tcp::UnboundBuffer>(dynamic_cast<void*>(buffer.get()));
}

// Nothing is wrong with the network, nor with any peer.
TEST(ConnectingFailedTest, LackOfMemoryOrThreads_IsOfThisRank) {
  for (const std::errc code :
       {std::errc::resource_unavailable_try_again, std::errc::not_enough_memory}) {
    EXPECT_EQ(job::KindOf(ConnectingFailed(std::system_error(std::make_error_code(code)))),
              job::FailureKind::kOutOfMemory);
  }
  EXPECT_EQ(job::KindOf(ConnectingFailed(std::bad_alloc())), job::FailureKind::kOutOfMemory);
  EXPECT_EQ(job::KindOf(ConnectingFailed(std::runtime_error("connection reset"))),
            job::FailureKind::kPeerLost);
}

}  // namespace
}  // namespace phalanx::comm
