// worker/train/run_ahead.h: how far the host may run ahead of the device.
//
// What is enqueued cannot be taken back, and a rank that is told to stop has to wait for it. So the
// host enqueues a pass only while the work that the device has before it, as predicted from earlier
// steps, stays below a bound. What is unknown counts as a quarter of the bound. Messages are not
// held back (messages_ahead.h).
//
// An instruction may be enqueued layer by layer, of which each takes an equal part of its time.
// Their number is bounded too: a stream holds some 1,000 kernels and events, and whoever launches
// one more waits in CUDA, where no stop and no message reaches him.
//
// Pure. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

namespace phalanx::train {

class RunAhead {
 public:
  static constexpr double kSecondsMax = 0.2;
  static constexpr double kSecondsUnknown = kSecondsMax / 4;
  static constexpr size_t kLayersMax = 12;  // 80 kernels and events a layer stay within that

  // `last`: the number that was given last, with nothing queued. `seconds_max`: the bound.
  explicit RunAhead(int64_t last = 0, double seconds_max = kSecondsMax)
      : last_(last), seconds_max_(seconds_max) {}

  // What instruction `instruction` of the program took, in seconds.
  void Learn(int32_t instruction, double seconds) { known_[instruction] = seconds; }
  // As it was learned; 0: not yet.
  double Known(int32_t instruction) const {
    const auto found = known_.find(instruction);
    return found == known_.end() ? 0 : found->second;
  }
  // In how many layers it is enqueued from now on; 1 until this is called.
  void Split(int32_t instruction, int32_t layers) { layers_[instruction] = layers; }

  // Whether the next layer of the instruction may be enqueued: with it the queue stays within the
  // bound, or it is empty.
  bool Admits(int32_t instruction) const {
    return queue_.empty() ||
           (queue_.size() < kLayersMax && seconds_ + Predicted(instruction) <= seconds_max_);
  }
  // A layer of the instruction was enqueued; returns its number, one more than the last.
  int64_t Enqueued(int32_t instruction);
  // The device has done everything up to this number.
  void Finished(int64_t number);

 private:
  struct Entry {
    int64_t number = 0;
    double seconds = 0;
  };
  double Predicted(int32_t instruction) const;  // of a layer

  std::map<int32_t, double> known_;
  std::map<int32_t, int32_t> layers_;
  std::deque<Entry> queue_;
  double seconds_ = 0;  // of the queue
  int64_t last_;
  double seconds_max_;
};

}  // namespace phalanx::train
