// The NCCL communicator, a process per device as in a job. Where there are too few devices, a test
// says so and is skipped.
#include <cuda_runtime_api.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/accused.h"
#include "core/job/failure.h"
#include "gtest/gtest.h"
#include "tests/gpu/comm/whole_device.h"
#include "tests/gpu/ranks.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/nccl_signals.h"

namespace phalanx::comm {
namespace {

using Use = plan::CommunicatorSpec::Use;

constexpr int32_t kRankSecondsMax = 60;

plan::CommunicatorSpec Group(std::string name, Use use, int32_t world) {
  plan::CommunicatorSpec spec{.use = use, .name = std::move(name)};
  for (int32_t rank = 0; rank < world; ++rank) spec.ranks.push_back(Rank{rank});
  return spec;
}
std::vector<plan::CommunicatorSpec> SixGroups(int32_t world) {
  return {Group("control", Use::kControl, world),    Group("forward", Use::kForward, world),
          Group("backward", Use::kBackward, world),  Group("vision.tp", Use::kTensor, world),
          Group("language.tp", Use::kTensor, world), Group("language.dp", Use::kData, world)};
}

// Device memory of floats, filled and read with the stream that the communicator takes for current.
class Floats {
 public:
  Floats(int64_t count, float value) : count_(count) {
    cudaMalloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(count) * 4);
    Fill(value);
  }
  ~Floats() { cudaFree(data_); }
  void Fill(float value) {
    const std::vector<float> host(static_cast<size_t>(count_), value);
    cudaMemcpy(data_, host.data(), host.size() * 4, cudaMemcpyHostToDevice);
  }
  bool AllAre(float value) const {
    std::vector<float> host(static_cast<size_t>(count_));
    if (cudaMemcpy(host.data(), data_, host.size() * 4, cudaMemcpyDeviceToHost) != cudaSuccess)
      return false;
    return host == std::vector<float>(host.size(), value);
  }
  float* data() const { return data_; }

 private:
  const int64_t count_;
  float* data_ = nullptr;
};

struct Member {
  int32_t rank = 0, world = 0;
  std::string folder;
  Communicators communicators;
};
using Body = std::function<std::string(Member&)>;

// What each body said, or "killed".
std::vector<std::string> RunRanks(int32_t world, const Body& body) {
  return gpu::RunRanks(world, kRankSecondsMax, [&](const gpu::ForkedRank& me) {
    gpu::FolderRendezvous rendezvous(me.folder);
    auto connected = ConnectNccl(SixGroups(world), Rank{me.rank}, world, rendezvous, {});
    std::string report = std::string(connected.status().message());
    if (connected.ok()) {
      Member member{me.rank, world, me.folder, *std::move(connected)};
      report = body(member);
    }
    if (!WaitForNcclReleases(DeadlineIn(absl::Seconds(20)))) report += " (not released)";
    return report;
  });
}

class NcclTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const int32_t devices = gpu::DeviceCount();
    if (devices < GetParam())
      GTEST_SKIP() << "needs " << GetParam() << " GPUs; there are " << devices;
  }
  std::vector<std::string> All(const std::string& report) const {
    return std::vector<std::string>(static_cast<size_t>(GetParam()), report);
  }
};

std::string CollectivesOf(Member& me) {
  const float world = static_cast<float>(me.world);
  for (auto& group : me.communicators) {
    for (const int64_t count : {1, 1000, 1 << 20}) {
      Floats data(count, static_cast<float>(me.rank + 1));
      if (absl::Status s = group->AllReduceSum(data.data(), count, DType::kFp32); !s.ok())
        return s.ToString();
      if (absl::Status s = group->Join(); !s.ok()) return s.ToString();
      if (!data.AllAre(world * (world + 1) / 2)) return "wrong all-reduce";
      Floats in(count * me.world, 2.0f), out(count, 0.0f);
      if (absl::Status s = group->ReduceScatterSum(in.data(), out.data(), count, DType::kFp32);
          !s.ok())
        return s.ToString();
      if (absl::Status s = group->AllGather(out.data(), in.data(), count, DType::kFp32); !s.ok())
        return s.ToString();
      if (absl::Status s = group->Join(); !s.ok()) return s.ToString();
      if (!out.AllAre(2 * world) || !in.AllAre(2 * world))
        return "wrong reduce-scatter or all-gather";
    }
  }
  return "fine";
}

TEST_P(NcclTest, Collectives_OnEveryCommunicator) {
  EXPECT_EQ(RunRanks(GetParam(), CollectivesOf), All("fine"));
}

TEST_P(NcclTest, MarkAndLead_DoNotWaitForWhatCameAfterThem) {
  EXPECT_EQ(RunRanks(GetParam(),
                     [](Member& me) -> std::string {
                       Communicator& group = *me.communicators[0];
                       Floats first(1000, 1.0f), second(1000, 1.0f);
                       const auto sum = [&](Floats& data) {
                         return group.AllReduceSum(data.data(), 1000, DType::kFp32);
                       };
                       if (!sum(first).ok()) return "not enqueued";
                       const auto mark = group.Mark();
                       if (!mark.ok()) return mark.status().ToString();
                       // Nobody joins rank 0's second one before it has seen the first.
                       if (me.rank == 0 && !sum(second).ok()) return "not enqueued";
                       if (absl::Status s = group.Lead(); !s.ok()) return s.ToString();
                       if (absl::Status s = (*mark)(); !s.ok()) return s.ToString();
                       if (cudaStreamSynchronize(cudaStreamLegacy) != cudaSuccess) return "failed";
                       if (!first.AllAre(static_cast<float>(me.world))) return "wrong sum";
                       if (absl::Status s = group.Check(); !s.ok()) return s.ToString();
                       if (me.rank != 0 && !sum(second).ok()) return "not enqueued";
                       if (absl::Status s = group.Join(); !s.ok()) return s.ToString();
                       return second.AllAre(static_cast<float>(me.world)) ? "fine" : "wrong sum";
                     }),
            All("fine"));
}

TEST_P(NcclTest, Exchange_WithEveryPeerAtOnce) {
  EXPECT_EQ(
      RunRanks(GetParam(),
               [](Member& me) -> std::string {
                 constexpr int64_t kCount = 4096;
                 std::vector<std::unique_ptr<Floats>> buffers;
                 std::vector<Outgoing> sends;
                 std::vector<Incoming> receives;
                 for (int32_t peer = 0; peer < me.world; ++peer) {
                   if (peer == me.rank) continue;
                   buffers.push_back(std::make_unique<Floats>(kCount, static_cast<float>(me.rank)));
                   sends.push_back({peer, buffers.back()->data(), kCount * 4});
                   buffers.push_back(std::make_unique<Floats>(kCount, -1.0f));
                   receives.push_back({peer, buffers.back()->data(), kCount * 4});
                 }
                 sends.push_back({(me.rank + 1) % me.world, nullptr, 0});
                 if (me.world == 1) sends.clear();
                 Communicator& edges = *me.communicators[1];
                 if (absl::Status s = edges.Exchange(sends, receives); !s.ok()) return s.ToString();
                 if (absl::Status s = edges.Flush(); !s.ok()) return s.ToString();
                 size_t i = 1;
                 for (int32_t peer = 0; peer < me.world; ++peer) {
                   if (peer == me.rank) continue;
                   if (!buffers[i]->AllAre(static_cast<float>(peer))) return "wrong message";
                   i += 2;
                 }
                 return "fine";
               }),
      All("fine"));
}

// Each rank receives of the one before it; rank 0 sends last, when all others have had their whole
// device in spite of that.
TEST_P(NcclTest, Receive_BeforeItsSend_TakesNoRoomOnTheDevice) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has nobody to talk to";
  EXPECT_EQ(RunRanks(GetParam(),
                     [](Member& me) -> std::string {
                       constexpr int64_t kCount = 1 << 22;
                       Floats data(kCount, me.rank == 0 ? 5.0f : -1.0f);
                       gpu::FolderRendezvous rendezvous(me.folder, "room/");
                       Communicator& messages = *me.communicators[1];
                       if (me.rank == 0) {
                         const Deadline late = DeadlineIn(absl::Seconds(20));
                         for (int32_t rank = 1; rank < me.world; ++rank) {
                           const auto had = rendezvous.Get(absl::StrCat(rank), late);
                           if (!had.ok()) return had.status().ToString();
                         }
                       } else {
                         const Incoming receive{me.rank - 1, data.data(), kCount * 4};
                         if (absl::Status s = messages.Exchange({}, {receive}); !s.ok())
                           return s.ToString();
                         cudaStream_t beside = nullptr;
                         cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking);
                         if (LaunchOnTheWholeDevice(beside) != cudaSuccess) return "no kernel";
                         const Deadline late = DeadlineIn(absl::Seconds(10));
                         while (cudaStreamQuery(beside) == cudaErrorNotReady) {
                           if (std::chrono::steady_clock::now() > late)
                             return "a receive that waits holds a part of the device";
                         }
                         if (absl::Status s = rendezvous.Put(absl::StrCat(me.rank), ""); !s.ok())
                           return s.ToString();
                       }
                       if (me.rank + 1 < me.world) {
                         const Outgoing send{me.rank + 1, data.data(), kCount * 4};
                         if (absl::Status s = messages.Exchange({send}, {}); !s.ok())
                           return s.ToString();
                       }
                       if (absl::Status s = messages.Flush(); !s.ok()) return s.ToString();
                       return data.AllAre(5.0f) ? "fine" : "wrong message";
                     }),
            All("fine"));
}

TEST_P(NcclTest, SenderThatIsNeverMet_IsAPeerThatIsLost) {
  EXPECT_EQ(gpu::RunRanks(1, kRankSecondsMax,
                          [](const gpu::ForkedRank& me) -> std::string {
                            gpu::FolderRendezvous rendezvous(me.folder);
                            const absl::Status status =
                                NcclSignalMemory::Meet(Rank{0}, 2, 1, {Rank{1}}, rendezvous,
                                                       DeadlineIn(absl::Milliseconds(1)))
                                    .status();
                            if (AccusedIn(status) != Rank{1}) return "nobody: " + status.ToString();
                            return std::string(job::ToString(job::KindOf(status)));
                          }),
            std::vector<std::string>{"PeerLost"});
}

// Both directions on both communicators, sometimes in one exchange and sometimes in two.
TEST_P(NcclTest, Exchange_ManyTimesInARing) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has nobody to talk to";
  EXPECT_EQ(RunRanks(GetParam(),
                     [](Member& me) -> std::string {
                       constexpr int64_t kCount = 1 << 16;
                       const int32_t next = (me.rank + 1) % me.world;
                       const int32_t before = (me.rank + me.world - 1) % me.world;
                       Floats out(kCount, 0.0f), in(kCount, -1.0f);
                       for (int round = 0; round < 200; ++round) {
                         Communicator& messages = *me.communicators[1 + round % 2];
                         out.Fill(static_cast<float>(round * 10 + me.rank));
                         const Outgoing send{next, out.data(), kCount * 4};
                         const Incoming receive{before, in.data(), kCount * 4};
                         absl::Status status;
                         if (round % 3 == 0) {
                           status = messages.Exchange({send}, {receive});
                         } else if (me.rank % 2 == 0) {
                           status = messages.Exchange({send}, {});
                           if (status.ok()) status = messages.Exchange({}, {receive});
                         } else {
                           status = messages.Exchange({}, {receive});
                           if (status.ok()) status = messages.Exchange({send}, {});
                         }
                         if (status.ok()) status = messages.Join();
                         if (!status.ok()) return status.ToString();
                         if (!in.AllAre(static_cast<float>(round * 10 + before)))
                           return "wrong message";
                       }
                       return "fine";
                     }),
            All("fine"));
}

TEST_P(NcclTest, Abort_OfReceivesThatNobodySends_EndsThemAtOnce) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has nobody to talk to";
  EXPECT_EQ(RunRanks(GetParam(),
                     [](Member& me) -> std::string {
                       Floats data(1 << 20, 1.0f);
                       if (me.rank == 0) {
                         const Incoming receive{1, data.data(), 4 << 20};
                         for (int i = 0; i < 3; ++i) {
                           absl::Status s = me.communicators[1]->Exchange({}, {receive});
                           if (s.ok()) s = me.communicators[2]->Exchange({}, {receive});
                           if (!s.ok()) return s.ToString();
                         }
                         if (!me.communicators[1]->Join().ok()) return "not joined";
                       }
                       const Deadline late = DeadlineIn(absl::Seconds(10));
                       for (auto& one : me.communicators) one->Abort(absl::AbortedError("epoch 2"));
                       if (!WaitForNcclReleases(late)) return "too late";
                       if (cudaDeviceSynchronize() != cudaSuccess) return "the device is broken";
                       return "ended";
                     }),
            All("ended"));
}

TEST_P(NcclTest, Abort_OfACollectiveThatNobodyJoins_EndsItAtOnce) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank waits for nobody";
  EXPECT_EQ(RunRanks(GetParam(),
                     [](Member& me) -> std::string {
                       Floats data(1 << 20, 1.0f);
                       Communicator& group = *me.communicators[0];
                       if (me.rank == 0) {
                         if (!group.AllReduceSum(data.data(), 1 << 20, DType::kFp32).ok())
                           return "not enqueued";
                       }
                       const Deadline late = DeadlineIn(absl::Seconds(10));
                       for (auto& one : me.communicators) one->Abort(absl::AbortedError("epoch 2"));
                       const absl::Status after = group.AllReduceSum(data.data(), 1, DType::kFp32);
                       if (after.code() != absl::StatusCode::kAborted) return after.ToString();
                       if (!WaitForNcclReleases(late)) return "too late";
                       if (cudaDeviceSynchronize() != cudaSuccess) return "the device is broken";
                       return "ended";
                     }),
            All("ended"));
}

TEST_P(NcclTest, NewCommunicators_WhileOldOnesAreAborted) {
  EXPECT_EQ(RunRanks(GetParam(),
                     [](Member& me) -> std::string {
                       for (auto& one : me.communicators) one->Abort(absl::AbortedError("epoch 2"));
                       gpu::FolderRendezvous second(me.folder, "second/");
                       auto connected =
                           ConnectNccl(SixGroups(me.world), Rank{me.rank}, me.world, second, {});
                       if (!connected.ok()) return connected.status().ToString();
                       me.communicators = *std::move(connected);
                       return CollectivesOf(me);
                     }),
            All("fine"));
}

// The peer of all communicators never comes: NCCL waits for it in a thread of each.
TEST_P(NcclTest, Stop_WhileCommunicatorsAreCreated_EndsThemAll) {
  constexpr int kRounds = 40;
  const auto body = [](const gpu::ForkedRank& me) -> std::string {
    const int32_t missing = me.world;
    std::vector<plan::CommunicatorSpec> specs;
    for (int i = 0; i < 8; ++i) {
      specs.push_back({.use = Use::kData, .name = absl::StrCat("group ", i)});
      specs.back().ranks = {Rank{me.rank}, Rank{missing}};
    }
    for (int round = 0; round < kRounds; ++round) {
      gpu::FolderRendezvous rendezvous(me.folder, absl::StrCat(me.rank, "/", round, "/"));
      std::stop_source stop;
      std::thread stopper([&stop, round] {
        // At another moment of the creation each time.
        const Deadline moment = DeadlineIn(absl::Milliseconds(round));
        while (std::chrono::steady_clock::now() < moment) std::this_thread::yield();
        stop.request_stop();
      });
      const auto connected =
          ConnectNccl(specs, Rank{me.rank}, missing + 1, rendezvous, {.stop = stop.get_token()});
      stopper.join();
      if (connected.status().code() != absl::StatusCode::kCancelled)
        return absl::StrCat("round ", round, ": ", connected.status().ToString());
      if (!WaitForNcclReleases(DeadlineIn(absl::Seconds(20)))) return "not released";
    }
    return cudaDeviceSynchronize() == cudaSuccess ? "ended" : "the device is broken";
  };
  EXPECT_EQ(gpu::RunRanks(GetParam(), kRankSecondsMax, body), All("ended"));
}

TEST_P(NcclTest, AKilledPeer_AfterAbort_LeavesTheOthersUsable) {
  if (GetParam() < 2) GTEST_SKIP() << "needs a survivor";
  std::vector<std::string> expected = All("survived");
  expected.back() = "killed";
  EXPECT_EQ(RunRanks(GetParam(),
                     [](Member& me) -> std::string {
                       if (me.rank == me.world - 1) raise(SIGKILL);
                       Floats data(1 << 20, 1.0f);
                       // Runs on the device for ever: the peer is dead, and NCCL does not say so.
                       (void)me.communicators[3]->AllReduceSum(data.data(), 1 << 20, DType::kFp32);
                       for (auto& one : me.communicators)
                         one->Abort(absl::UnavailableError("rank is gone"));
                       if (!WaitForNcclReleases(DeadlineIn(absl::Seconds(20)))) return "too late";
                       if (cudaDeviceSynchronize() != cudaSuccess) return "the device is broken";
                       return "survived";
                     }),
            expected);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclTest, testing::Values(1, 2, 4),
                         testing::PrintToStringParamName());

// Needs no GPU.
TEST(NcclErrorsTest, WhatNcclSays_IsOfThePeerOfTheDeviceOrOurs) {
  EXPECT_EQ(NcclStatus(ncclSuccess, "all-reduce"), absl::OkStatus());
  for (const ncclResult_t of_a_peer : {ncclRemoteError, ncclSystemError}) {
    const absl::Status status = NcclStatus(of_a_peer, "all-reduce");
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(job::KindIn(status), std::nullopt) << "others say who is gone";
    EXPECT_EQ(status.message().find("all-reduce: NCCL: "), 0u) << status;
  }
  const absl::Status of_the_device = NcclStatus(ncclUnhandledCudaError, "all-reduce");
  EXPECT_TRUE(absl::IsInternal(of_the_device)) << of_the_device;
  EXPECT_EQ(job::KindIn(of_the_device), job::FailureKind::kDeviceFailed);
  for (const ncclResult_t ours : {ncclInternalError, ncclInvalidArgument, ncclInvalidUsage})
    EXPECT_TRUE(absl::IsInternal(NcclStatus(ours, "all-reduce")));
}

}  // namespace
}  // namespace phalanx::comm
