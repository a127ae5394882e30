#include "tests/bench/profile/links.h"

#ifdef PHALANX_WITH_CUDA
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "tests/bench/board/board.h"
#include "tests/bench/profile/meter.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/model/torch_boundary.h"
#endif

namespace phalanx::bench {

#ifndef PHALANX_WITH_CUDA

absl::StatusOr<Links> MeasureLinks(double) {
  return absl::UnimplementedError("a build without CUDA");
}

#else
namespace {

constexpr int64_t kBytes = int64_t{256} << 20, kFewBytes = 1024;
constexpr int kLargeCalls = 40, kSmallCalls = 400;
constexpr double kPowerSeconds = 2.5;  // in which power is measured
constexpr absl::Duration kTimeout = absl::Seconds(30);

// A table in memory.
class Meeting final : public comm::Rendezvous {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    const MutexLock lock(&mutex_);
    table_[key] = value;
    changed_.SignalAll();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, comm::Deadline deadline) override {
    const MutexLock lock(&mutex_);
    while (table_.count(key) == 0) {
      if (changed_.WaitUntil(&mutex_, deadline) && table_.count(key) == 0)
        return absl::DeadlineExceededError(key + " is not there");
    }
    return table_[key];
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> table_;
};

// Seconds of one call.
absl::StatusOr<double> Time(int calls, const std::function<absl::Status()>& call) {
  for (int i = 0; i < calls / 10; ++i) RETURN_IF_ERROR(call());
  RETURN_IF_ERROR(device::AwaitDevice(kTimeout));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(call());
  RETURN_IF_ERROR(device::AwaitDevice(kTimeout));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
}

// Communicators of both ranks that stay until all are measured: memory that one gives back would
// serve the next.
class Taken {
 public:
  explicit Taken(int32_t rank) : rank_(rank) {}

  // Bytes of the device that making one takes. `with_peer`: messages are exchanged on it, too.
  absl::StatusOr<int64_t> By(plan::CommunicatorSpec::Use use, bool with_peer, Meeting& meeting) {
    const plan::CommunicatorSpec spec = {.use = use, .name = "bytes", .ranks = {Rank{0}, Rank{1}}};
    comm::WorldOptions options;
    options.current_stream = [] { return device::CurrentStream(); };
    options.peers = {{}};
    if (with_peer) options.peers = {{1 - rank_}};
    const int64_t before = device::MemoryInUse();
    ASSIGN_OR_RETURN(comm::Communicators made,
                     comm::ConnectNccl({spec}, Rank{rank_}, 2, meeting, options));
    RETURN_IF_ERROR(device::AwaitDevice(kTimeout));
    kept_.push_back(std::move(made));
    return std::max<int64_t>(0, device::MemoryInUse() - before);
  }

 private:
  const int32_t rank_;
  std::vector<comm::Communicators> kept_;
};

constexpr size_t kMeetings = 7;  // of MeasureBytes

absl::StatusOr<schedule::CommunicatorsBytes> MeasureBytes(int32_t rank,
                                                          std::vector<Meeting>& meetings) {
  using Use = plan::CommunicatorSpec::Use;
  Taken taken(rank);
  size_t next = 0;
  const auto measure = [&](Use use) -> absl::StatusOr<schedule::CommunicatorBytes> {
    ASSIGN_OR_RETURN(const int64_t made, taken.By(use, false, meetings[next++]));
    ASSIGN_OR_RETURN(const int64_t with_peer, taken.By(use, true, meetings[next++]));
    return schedule::CommunicatorBytes{.made = made,
                                       .each_peer = std::max<int64_t>(0, with_peer - made)};
  };
  schedule::CommunicatorsBytes bytes;
  // The first one loads the library.
  ASSIGN_OR_RETURN(const int64_t first, taken.By(Use::kControl, false, meetings[next++]));
  ASSIGN_OR_RETURN(bytes.control, measure(Use::kControl));
  ASSIGN_OR_RETURN(bytes.messages, measure(Use::kForward));
  ASSIGN_OR_RETURN(bytes.wide, measure(Use::kData));
  bytes.library = std::max<int64_t>(0, first - bytes.control.made);
  return bytes;
}

schedule::CommunicatorBytes MoreOf(const schedule::CommunicatorBytes& a,
                                   const schedule::CommunicatorBytes& b) {
  return {.made = std::max(a.made, b.made), .each_peer = std::max(a.each_peer, b.each_peer)};
}
schedule::CommunicatorsBytes MoreOf(const schedule::CommunicatorsBytes& a,
                                    const schedule::CommunicatorsBytes& b) {
  return {.library = std::max(a.library, b.library),
          .messages = MoreOf(a.messages, b.messages),
          .control = MoreOf(a.control, b.control),
          .wide = MoreOf(a.wide, b.wide)};
}

// Power of the device while it runs the call without a pause, which takes so many seconds of `rank`
// 0; both ranks call it equally often. 0: the board's counter did not tell.
absl::StatusOr<double> WattsOf(int32_t rank, double seconds, Meeting& meeting,
                               const std::function<absl::Status()>& call) {
  constexpr char kCalls[] = "calls of which power is measured";
  const auto calls = static_cast<int64_t>(kPowerSeconds / seconds);
  if (rank == 0) RETURN_IF_ERROR(meeting.Put(kCalls, absl::StrCat(calls)));
  ASSIGN_OR_RETURN(const std::string told, meeting.Get(kCalls, comm::DeadlineIn(kTimeout)));
  int64_t left = 0;
  if (!absl::SimpleAtoi(told, &left)) return absl::InternalError(told);
  ASSIGN_OR_RETURN(const std::unique_ptr<Board> board, Board::Open(rank));
  for (int i = 0; i < kLargeCalls; ++i) RETURN_IF_ERROR(call());  // the board follows its power
  PowerBetweenMoves power(*board);
  const int64_t between = std::clamp<int64_t>(left / 25, 1, kLargeCalls);  // two looks
  for (; left > 0; --left) {
    RETURN_IF_ERROR(call());
    if (left % between != 0) continue;
    RETURN_IF_ERROR(device::AwaitDevice(kTimeout));
    power.Look();
  }
  RETURN_IF_ERROR(device::AwaitDevice(kTimeout));
  power.Look();
  return power.is_known() ? power.watts() : 0;
}

absl::StatusOr<Links> MeasureRank(int32_t rank, double idle_watts, Meeting& meeting,
                                  std::vector<Meeting>& meetings) {
  RETURN_IF_ERROR(device::UseCudaDevice(rank));
  Links links;
  ASSIGN_OR_RETURN(links.bytes, MeasureBytes(rank, meetings));
  const at::Tensor out = at::zeros({kBytes / 4}, at::TensorOptions(at::kCUDA));
  const at::Tensor in = at::zeros_like(out);
  // As wide as those of training: of messages, and of what tensor ranks exchange.
  using Use = plan::CommunicatorSpec::Use;
  const plan::RankList both = {Rank{0}, Rank{1}};
  const std::vector<plan::CommunicatorSpec> specs = {
      {.use = Use::kControl, .name = "messages", .ranks = both},
      {.use = Use::kTensor, .name = "collectives", .ranks = both}};
  ASSIGN_OR_RETURN(const comm::Communicators connected,
                   comm::ConnectNccl(specs, Rank{rank}, 2, meeting,
                                     {.current_stream = [] { return device::CurrentStream(); }}));
  comm::Communicator& messages = *connected[0];
  comm::Communicator& collectives = *connected[1];
  const auto exchange = [&](int64_t bytes) {
    return [&messages, &out, &in, rank, bytes]() -> absl::Status {
      RETURN_IF_ERROR(messages.Exchange({{1 - rank, out.data_ptr(), bytes}},
                                        {{1 - rank, in.data_ptr(), bytes}}));
      return messages.Join();
    };
  };
  const auto reduce = [&](int64_t bytes) {
    return [&collectives, &out, bytes]() -> absl::Status {
      RETURN_IF_ERROR(collectives.AllReduceSum(out.data_ptr(), bytes / 4, comm::DType::kFp32));
      return collectives.Join();
    };
  };
  ASSIGN_OR_RETURN(links.message.latency, Time(kSmallCalls, exchange(kFewBytes)));
  ASSIGN_OR_RETURN(const double message, Time(kLargeCalls, exchange(kBytes)));
  ASSIGN_OR_RETURN(links.collective.latency, Time(kSmallCalls, reduce(kFewBytes)));
  ASSIGN_OR_RETURN(const double collective, Time(kLargeCalls, reduce(kBytes)));
  // Of two ranks each sends half in the reduction and half in the gather behind it.
  links.message.bytes_per_second = kBytes / (message - links.message.latency);
  links.collective.bytes_per_second = kBytes / (collective - links.collective.latency);
  // Sums as those of gradients, of bits as random as theirs. Half of them pass each of two ranks.
  const at::Tensor gradients = at::randn({kBytes / 4}, at::TensorOptions(at::kCUDA));
  const auto scatter = [&collectives, &gradients, &in]() -> absl::Status {
    RETURN_IF_ERROR(collectives.ReduceScatterSum(gradients.data_ptr(), in.data_ptr(), kBytes / 8,
                                                 comm::DType::kFp32));
    return collectives.Join();
  };
  ASSIGN_OR_RETURN(const double scattered, Time(kLargeCalls, scatter));
  ASSIGN_OR_RETURN(const double watts, WattsOf(rank, scattered, meeting, scatter));
  links.collective.joules_per_byte = std::max(0.0, watts - idle_watts) * scattered * 2 / kBytes;
  return links;
}

}  // namespace

absl::StatusOr<Links> MeasureLinks(double idle_watts) {
  Meeting meeting;
  std::vector<Meeting> meetings(kMeetings);
  absl::StatusOr<Links> results[2] = {absl::UnknownError("not run"), absl::UnknownError("not run")};
  {
    std::vector<std::jthread> ranks;
    for (int32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const absl::Status run = model::CallTorch("measuring links", [&] {
          results[rank] = MeasureRank(rank, idle_watts, meeting, meetings);
        });
        if (!run.ok()) results[rank] = run;
      });
    }
  }
  comm::WaitForNcclReleases(comm::DeadlineIn(kTimeout));
  for (const absl::StatusOr<Links>& result : results) RETURN_IF_ERROR(result.status());
  results[0]->bytes = MoreOf(results[0]->bytes, results[1]->bytes);
  return results[0];
}
#endif

}  // namespace phalanx::bench
