// worker/train/commit.h: how all ranks come to the same decision about a step.
//
// When a rank's gradients are reduced it writes a Record. The records of all ranks are gathered
// (never summed: a collective that was aborted can pass garbage on as valid), and each rank derives
// the same Decision from the same records in rank order. Optimizer kernels are predicated on it on
// the device, so the host launches them without waiting.
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

struct Record {
  int64_t epoch = 0;
  int64_t step = 0;            // counted from 1
  uint64_t plan_digest = 0;    // first 64 bits
  int64_t applied = 0;         // last step applied at this rank's state
  double squared_norm = 0;     // of the undivided gradient sum, each unit counted by one rank
  double loss_sum = 0;         // counted tokens' losses, given by one rank a replica; else 0
  double counted_tokens = 0;   // likewise
  double corrupt_samples = 0;  // likewise
  int64_t stop = 0;            // the rank was told to stop
  uint64_t checksum = 0;       // of everything above
};

enum class Verdict : int32_t {
  kInvalid = 0,  // some record is missing, torn or of another step: the step must not be applied
  kCommitted = 1,
  kSkipped = 2,  // committed without an update: some gradient is not finite
};

struct Decision {
  int64_t step = 0;
  Verdict verdict = Verdict::kInvalid;
  int32_t invalid_rank = -1;  // kInvalid: the first rank whose record did not hold
  double loss = 0;            // mean over counted tokens
  double gradient_norm = 0;   // of the mean-loss gradient, before clipping
  double gradient_scale = 0;  // what gradients are multiplied with: clip factor / counted tokens
  double counted_tokens = 0;
  double corrupt_samples = 0;
};

PHALANX_HOST_DEVICE inline uint64_t ChecksumOf(const Record& record) {
  const double values[] = {record.squared_norm, record.loss_sum, record.counted_tokens,
                           record.corrupt_samples};
  uint64_t hash = 0x9E3779B97F4A7C15u;
  const uint64_t words[] = {static_cast<uint64_t>(record.epoch), static_cast<uint64_t>(record.step),
                            record.plan_digest, static_cast<uint64_t>(record.applied),
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

// What every record of the step must say.
struct Expectation {
  int64_t epoch = 0;
  int64_t step = 0;
  uint64_t plan_digest = 0;
  double clip_norm = 0;  // 0: no clipping
};

// Sums in rank order in fp64, so every rank gets the same bits.
PHALANX_HOST_DEVICE inline Decision Decide(const Record* records, int32_t world,
                                           const Expectation& expected) {
  Decision decision;
  decision.step = expected.step;
  double squared_norm = 0, loss_sum = 0;
  for (int32_t rank = 0; rank < world; ++rank) {
    const Record& record = records[rank];
    if (record.epoch != expected.epoch || record.step != expected.step || record.stop != 0 ||
        record.plan_digest != expected.plan_digest || record.applied != expected.step - 1 ||
        record.checksum != ChecksumOf(record)) {
      decision.invalid_rank = rank;
      return decision;
    }
    squared_norm += record.squared_norm;
    loss_sum += record.loss_sum;
    decision.counted_tokens += record.counted_tokens;
    decision.corrupt_samples += record.corrupt_samples;
  }
  // Not std::isfinite: this also compiles inside a kernel.
  const bool finite = squared_norm - squared_norm == 0 && loss_sum - loss_sum == 0;
  // A batch without a single counted token has a zero gradient: nothing to apply.
  if (!finite || decision.counted_tokens <= 0) {
    decision.verdict = Verdict::kSkipped;
    decision.loss = finite ? 0 : loss_sum;
    return decision;
  }
  decision.verdict = Verdict::kCommitted;
  decision.loss = loss_sum / decision.counted_tokens;
  decision.gradient_norm = sqrt(squared_norm) / decision.counted_tokens;
  double clip = 1.0;
  if (expected.clip_norm > 0 && decision.gradient_norm > expected.clip_norm) {
    clip = expected.clip_norm / decision.gradient_norm;
  }
  decision.gradient_scale = clip / decision.counted_tokens;
  return decision;
}

}  // namespace phalanx::train
