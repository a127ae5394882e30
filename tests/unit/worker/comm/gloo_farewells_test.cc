#include "worker/comm/gloo_farewells.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/accused.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"
#include "worker/comm/farewell.h"

namespace phalanx::comm {
namespace {

using GlooContext = ::gloo::transport::Context;

struct Leaver {
  std::shared_ptr<GlooContext> mesh;
  std::unique_ptr<GlooFarewells> farewells;
  void Leave() {
    farewells = nullptr;
    mesh = nullptr;
  }
};

// A world of three, whose members are connected.
std::array<Leaver, 3> ConnectThree() {
  std::array<Leaver, 3> world;
  MemoryRendezvous rendezvous;
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int32_t> peers;
      for (int32_t peer = 0; peer < 3; ++peer) {
        if (peer != rank) peers.push_back(peer);
      }
      auto mesh = ConnectGlooMesh(rank, 3, peers, rendezvous, {.setup_timeout = absl::Seconds(20)});
      ASSERT_TRUE(mesh.ok()) << mesh.status();
      Leaver& member = world[static_cast<size_t>(rank)];
      member.mesh = *std::move(mesh);
      member.farewells = std::make_unique<GlooFarewells>(member.mesh, std::move(peers));
    });
  }
  threads.clear();
  return world;
}

// Until Gloo has read the end of the connection to the peer.
void AwaitEnd(GlooContext& mesh, int32_t peer) {
  const auto probe = mesh.createUnboundBuffer(nullptr, 0);
  for (const absl::Time begin = absl::Now(); absl::Now() - begin < absl::Seconds(20);) {
    try {
      probe->recv(peer, 7, 0, 0);
    } catch (const std::exception&) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ADD_FAILURE() << "the connection to rank " << peer << " is still open";
}

void SayTo(Leaver& from, Leaving how) {
  from.farewells->Say(FarewellOf(how, "", Rank{0}), [](int32_t) { return true; });
}

TEST(GlooFarewellsTest, APeerThatLeftInOrder_IsNotTakenForTheOneThatDied) {
  std::array<Leaver, 3> world = ConnectThree();
  Leaver& self = world[0];
  ASSERT_TRUE(self.farewells != nullptr && world[1].farewells != nullptr &&
              world[2].farewells != nullptr);
  SayTo(world[1], Leaving::kHealthy);
  world[1].Leave();
  ASSERT_TRUE(self.farewells->AwaitOne());
  EXPECT_TRUE(self.farewells->Read(1).ok());
  AwaitEnd(*self.mesh, 1);
  world[2].Leave();  // without a word
  EXPECT_ANY_THROW(self.farewells->AwaitOne());
  AwaitEnd(*self.mesh, 2);
  const absl::Status status = self.farewells->FindBroken();
  EXPECT_EQ(AccusedIn(status), Rank{2}) << status;
}

TEST(GlooFarewellsTest, TheFirstThatDied_IsNamedWhereNobodyLeftInOrder) {
  std::array<Leaver, 3> world = ConnectThree();
  Leaver& self = world[0];
  ASSERT_TRUE(self.farewells != nullptr && world[1].farewells != nullptr);
  world[1].Leave();
  EXPECT_ANY_THROW(self.farewells->AwaitOne());
  AwaitEnd(*self.mesh, 1);
  const absl::Status status = self.farewells->FindBroken();
  EXPECT_EQ(AccusedIn(status), Rank{1}) << status;
}

// A connection that is gone as soon as a farewell has left: Gloo throws at what comes next, and
// tells those that had been begun before, but not what never began.
class GoneBehindFarewell final : public GlooContext {
 public:
  GoneBehindFarewell() : GlooContext(/*rank=*/0, /*size=*/2) {}
  std::unique_ptr<::gloo::transport::Pair>& createPair(int) override { return no_pair_; }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                        size_t size) override {
    return std::make_unique<Buffer>(*this, data, size);
  }
  int waits() const { return waits_; }

 private:
  class Buffer final : public ::gloo::transport::UnboundBuffer {
   public:
    Buffer(GoneBehindFarewell& context, void* data, size_t size)
        : UnboundBuffer(data, size), context_(context) {}
    void send(int, uint64_t slot, size_t, size_t) override {
      context_.gone_ = slot == kFarewellTag;
    }
    void recv(int, uint64_t, size_t, size_t) override {
      if (context_.gone_) throw std::runtime_error("gone");
    }
    void recv(std::vector<int>, uint64_t, size_t, size_t) override {}
    bool waitRecv(int*, std::chrono::milliseconds) override {
      ++context_.waits_;
      return false;
    }
    bool waitSend(int*, std::chrono::milliseconds) override { return true; }
    void abortWaitRecv() override {}
    void abortWaitSend() override {}

   private:
    GoneBehindFarewell& context_;
  };

  std::unique_ptr<::gloo::transport::Pair> no_pair_;
  bool gone_ = false;
  int waits_ = 0;
};

TEST(GlooFarewellsTest, APeerThatGoesRightBehindAFarewell_IsNotWaitedFor) {
  const auto context = std::make_shared<GoneBehindFarewell>();
  GlooFarewells farewells(context, {1});
  farewells.Say(FarewellOf(Leaving::kStopped, "", Rank{0}), [](int32_t) { return true; });
  EXPECT_EQ(context->waits(), 0);
}

}  // namespace
}  // namespace phalanx::comm
