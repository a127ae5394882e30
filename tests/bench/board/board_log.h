// tests/bench/board/board_log.h: what boards say while training runs on them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "tests/bench/board/board.h"

namespace phalanx::bench {

struct BoardSample {
  int64_t step = 0;             // the last that was done
  double seconds = 0;           // of a clock that nobody sets
  double mhz = 0, degrees = 0;  // means over the boards
  double joules = 0;            // of all boards together, since their driver was loaded
};

struct BoardMeans {
  double mhz = 0, degrees = 0;  // over the boards, too
  double watts = 0;             // of all boards together
};
// Of the samples whose last step is in [begin, end). nullopt: they are fewer than two.
std::optional<BoardMeans> MeansOf(const std::vector<BoardSample>& samples, int64_t begin,
                                  int64_t end);

// Asks boards four times a second, in a thread of its own, from its creation on. Not thread-safe.
class BoardLog {
 public:
  // `step`: the last that was done; the log's thread calls it.
  BoardLog(std::vector<Board> boards, std::function<int64_t()> step);

  ~BoardLog();

  // Ends the log. Once.
  std::vector<BoardSample> Stop();

 private:
  void Ask();

  // Constant after construction.
  const std::vector<Board> boards_;
  const std::function<int64_t()> step_;
  // Of the thread, until it has been joined.
  std::vector<BoardSample> samples_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace phalanx::bench
