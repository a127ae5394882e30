#include "tests/bench/board/board_log.h"

#include <chrono>
#include <utility>

namespace phalanx::bench {
namespace {

constexpr std::chrono::milliseconds kInterval{250};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<BoardMeans> MeansOf(const std::vector<BoardSample>& samples, int64_t begin,
                                  int64_t end) {
  BoardMeans means;
  const BoardSample *first = nullptr, *last = nullptr;
  double count = 0;
  for (const BoardSample& sample : samples) {
    if (sample.step < begin || sample.step >= end) continue;
    if (first == nullptr) first = &sample;
    last = &sample;
    means.mhz += sample.mhz;
    means.degrees += sample.degrees;
    ++count;
  }
  if (first == last || last->seconds <= first->seconds) return std::nullopt;
  means.mhz /= count;
  means.degrees /= count;
  means.watts = (last->joules - first->joules) / (last->seconds - first->seconds);
  return means;
}

BoardLog::BoardLog(std::vector<Board> boards, std::function<int64_t()> step)
    : boards_(std::move(boards)), step_(std::move(step)), thread_([this] { Ask(); }) {}

BoardLog::~BoardLog() {
  if (thread_.joinable()) Stop();
}

std::vector<BoardSample> BoardLog::Stop() {
  {
    const MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  thread_.join();
  return std::move(samples_);
}

void BoardLog::Ask() {
  while (true) {
    BoardSample sample{.step = step_(), .seconds = Now()};
    for (const Board& board : boards_) {
      sample.mhz += board.ClockMhz() / static_cast<double>(boards_.size());
      sample.degrees += board.TemperatureCelsius() / static_cast<double>(boards_.size());
      sample.joules += board.Joules();
    }
    samples_.push_back(sample);
    const auto next = std::chrono::steady_clock::now() + kInterval;
    const MutexLock lock(&mu_);
    while (!stopped_ && !changed_.WaitUntil(&mu_, next)) {
    }
    if (stopped_) return;
  }
}

}  // namespace phalanx::bench
