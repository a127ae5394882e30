// worker/train/commit.h: how all ranks come to the same decision about a step.
//
// When a rank's gradients are reduced it writes a Record. The records of all ranks are gathered
// (never summed: a collective that was aborted can pass garbage on as valid) into a place that was
// filled with 0xFF before, and each rank derives the same Decision from the same records in rank
// order. Optimizer kernels are predicated on it on the device, so the host launches them without
// waiting.
//
// A step is decided for all as soon as one rank has decided it: every record is there, so every
// gradient is reduced. A rank that has not heard of it applies it later, from the gradients that it
// keeps.
//
// Plain structs without pointers; the same code runs on CPU and inside a CUDA kernel.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define PHALANX_HOST_DEVICE __host__ __device__
#else
#define PHALANX_HOST_DEVICE
#endif

namespace phalanx::train {

// What the samples of a step bring, as the index of the data set says: positions without padding,
// and items.
struct Volume {
  int64_t tokens = 0, images = 0, sounds = 0;
};

struct Record {
  int64_t epoch = 0;
  int64_t step = 0;            // counted from 1
  uint64_t plan_digest = 0;    // first 64 bits
  int64_t applied = 0;         // last step that all of this rank's state has applied
  double squared_norm = 0;     // of the undivided gradient sum, each unit counted by one rank
  double loss_sum = 0;         // counted tokens' losses, given by one rank a replica; else 0
  double counted_tokens = 0;   // likewise
  double corrupt_samples = 0;  // likewise
  Volume volume;               // of its replica's samples, given by one rank a replica; else 0
  int64_t copied = 0;          // last step of whose state its host memory has a whole copy
  int64_t wish = 0;            // what the rank was asked to wish for: kNoWish, kWishEnd, kWishLeave
  int64_t writing = 0;         // 1: its part of a checkpoint is still being written
  int64_t finite = 0;          // 1: all of the sums above are
  int64_t stop = 0;            // 1: the rank was told to stop
  uint64_t checksum = 0;       // of everything above
};

enum class Verdict : int32_t {
  // Some record is missing, torn or of another step, or this rank was told to stop: the step is not
  // decided here and must not be applied.
  kInvalid = 0,
  kCommitted = 1,
  kSkipped = 2,  // decided, without an update: some gradient is not finite
  kEmpty = 3,    // decided, without an update: no token counted, so the gradient is zero
};
PHALANX_HOST_DEVICE inline bool IsDecided(Verdict verdict) { return verdict != Verdict::kInvalid; }

struct Decision {
  int64_t step = 0;
  Verdict verdict = Verdict::kInvalid;
  // kInvalid: the first rank whose record did not hold; -1: this rank was told to stop.
  int32_t invalid_rank = -1;
  double loss = 0;            // mean over counted tokens
  double gradient_norm = 0;   // of the mean-loss gradient, before clipping
  double gradient_scale = 0;  // what gradients are multiplied with: clip factor / counted tokens
  double counted_tokens = 0;
  double corrupt_samples = 0;
  Volume volume;
  int64_t copied = 0;   // the least of all records
  int64_t wish = 0;     // the greatest of all records
  int64_t writing = 0;  // likewise
};

// Of a rank whose layout keeps no copies in host memory; more than any step.
inline constexpr int64_t kKeepsNoCopies = INT64_MAX;
// Of one that is to keep copies and cannot yet: nobody begins any before.
inline constexpr int64_t kCopiesNotYet = -1;

// A wish of any rank is one of all, from the same step on.
inline constexpr int64_t kNoWish = 0;
// The job is to end early, with a checkpoint: the step after the decided one is the last.
inline constexpr int64_t kWishEnd = 1;
// Another epoch is connected and takes over: that step is this epoch's last. It stands before a
// wished end, which the next epoch hears of again.
inline constexpr int64_t kWishLeave = 2;

PHALANX_HOST_DEVICE inline uint64_t ChecksumOf(const Record& record) {
  const double values[] = {record.squared_norm, record.loss_sum, record.counted_tokens,
                           record.corrupt_samples};
  uint64_t hash = 0x9E3779B97F4A7C15u;
  const uint64_t words[] = {static_cast<uint64_t>(record.epoch),
                            static_cast<uint64_t>(record.step),
                            record.plan_digest,
                            static_cast<uint64_t>(record.applied),
                            static_cast<uint64_t>(record.volume.tokens),
                            static_cast<uint64_t>(record.volume.images),
                            static_cast<uint64_t>(record.volume.sounds),
                            static_cast<uint64_t>(record.copied),
                            static_cast<uint64_t>(record.wish),
                            static_cast<uint64_t>(record.writing),
                            static_cast<uint64_t>(record.finite),
                            static_cast<uint64_t>(record.stop)};
  for (uint64_t word : words) hash = (hash ^ word) * 0xBF58476D1CE4E5B9u;
  for (double value : values) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 0x94D049BB133111EBu;
    hash ^= hash >> 29;
  }
  return hash;
}

// Not std::isfinite: this also compiles inside a kernel.
PHALANX_HOST_DEVICE inline bool IsFinite(double value) { return value - value == 0; }

// The record that `header` begins: its numbers are sums[0..3] in the order of Record.
PHALANX_HOST_DEVICE inline Record CompleteRecord(Record header, const double* sums) {
  header.squared_norm = sums[0];
  header.loss_sum = sums[1];
  header.counted_tokens = sums[2];
  header.corrupt_samples = sums[3];
  header.finite =
      IsFinite(sums[0]) && IsFinite(sums[1]) && IsFinite(sums[2]) && IsFinite(sums[3]) ? 1 : 0;
  header.checksum = ChecksumOf(header);
  return header;
}

// What every record of the step must say.
struct Expectation {
  int64_t epoch = 0;
  int64_t step = 0;
  uint64_t plan_digest = 0;
  double clip_norm = 0;  // 0: no clipping
};

PHALANX_HOST_DEVICE inline bool Holds(const Record& record, const Expectation& expected) {
  return record.epoch == expected.epoch && record.step == expected.step &&
         record.plan_digest == expected.plan_digest && record.applied == expected.step - 1 &&
         record.stop == 0 && record.checksum == ChecksumOf(record);
}

// `stop`: this rank was told to stop. Sums in rank order in fp64, so every rank gets the same bits.
PHALANX_HOST_DEVICE inline Decision Decide(const Record* records, int32_t world,
                                           const Expectation& expected, bool stop) {
  Decision decision;
  decision.step = expected.step;
  if (stop) return decision;
  double squared_norm = 0, loss_sum = 0, tokens = 0, corrupt = 0;
  Volume volume;
  int64_t copied = kKeepsNoCopies, wish = kNoWish, writing = 0;
  bool finite = true;
  for (int32_t rank = 0; rank < world; ++rank) {
    const Record& record = records[rank];
    if (!Holds(record, expected)) {
      decision.invalid_rank = rank;
      return decision;
    }
    squared_norm += record.squared_norm;
    loss_sum += record.loss_sum;
    tokens += record.counted_tokens;
    corrupt += record.corrupt_samples;
    volume.tokens += record.volume.tokens;
    volume.images += record.volume.images;
    volume.sounds += record.volume.sounds;
    if (record.copied < copied) copied = record.copied;
    if (record.wish > wish) wish = record.wish;
    if (record.writing > writing) writing = record.writing;
    finite = finite && record.finite == 1;
  }
  decision.counted_tokens = tokens;
  decision.corrupt_samples = corrupt;
  decision.volume = volume;
  decision.copied = copied;
  decision.wish = wish;
  decision.writing = writing;
  if (!finite || !IsFinite(squared_norm) || !IsFinite(loss_sum)) {
    decision.verdict = Verdict::kSkipped;
    decision.loss = loss_sum;
    return decision;
  }
  if (tokens <= 0) {
    decision.verdict = Verdict::kEmpty;
    return decision;
  }
  decision.verdict = Verdict::kCommitted;
  decision.loss = loss_sum / tokens;
  decision.gradient_norm = sqrt(squared_norm) / tokens;
  double clip = 1.0;
  if (expected.clip_norm > 0 && decision.gradient_norm > expected.clip_norm) {
    clip = expected.clip_norm / decision.gradient_norm;
  }
  decision.gradient_scale = clip / tokens;
  return decision;
}

}  // namespace phalanx::train
