// tests/sim/cluster/host_copies.h: copies of ranks' state in memory of their nodes' daemons: which
// step each is of, and whether it is whole (worker/agent/host_memory.h,
// worker/checkpoint/host_copy.h).
//
// There is always room. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/machine/records.h"
#include "core/base/ids.h"
#include "core/plan/grid.h"

namespace phalanx::sim {

// First 64 bits of a plan's digest.
uint64_t FirstBits(const std::string& plan_digest);

// A rank's two buffers in an epoch. Whoever has them may use them when their daemon has let them
// go.
struct CopyPair {
  struct Buffer {
    bool whole = false;
    coordinator::EpochStart start;  // of the last step that is in it
    uint64_t bits = 0;              // of that state
    uint64_t plan = 0;              // FirstBits of that in whose layout it lies
  };
  // The whole copy of the step; nullptr: there is none.
  const Buffer* Find(int64_t step) const;

  Epoch epoch;
  int32_t rank = 0;
  std::array<Buffer, 2> buffers;
};
using CopyPairPtr = std::shared_ptr<CopyPair>;

// Before the rank that gives them: under which key of the rendezvous it says that it is there.
inline constexpr char kKeeperKey[] = "copies/";

// The daemon's. It is gone with the daemon.
class CopyMemory {
 public:
  struct Owner {
    JobId job;
    Epoch epoch;
    int32_t rank = 0;
    friend auto operator<=>(const Owner&, const Owner&) = default;
  };

  // The rank's buffers in the epoch, made if there are none yet.
  CopyPairPtr PairOf(const Owner& owner);
  // What those ranks were given in epochs before this one.
  std::vector<CopyPairPtr> PairsBefore(JobId job, Epoch epoch, const plan::RankList& ranks) const;
  void FreeBefore(JobId job, Epoch epoch);  // of epochs before this one
  // Of all jobs where it is JobId{}. Returns whose buffers these were.
  std::vector<Owner> Free(JobId job);

 private:
  std::map<Owner, CopyPairPtr> pairs_;
};

// The copies that a rank makes in an epoch.
class HostCopy {
 public:
  HostCopy(CopyPairPtr pair, int64_t every) : pair_(std::move(pair)), every_(every) {}

  // The rank's state is of the last step of `now.start`, whose records had copies of `copied`.
  // Returns whether a copy of it begins: MarkDone is to follow.
  bool AfterStep(const CopyPair::Buffer& now, int64_t copied);
  // All of the copy under way is there. It is whole once somebody has looked.
  void MarkDone() { done_ = true; }
  // The step of the newest whole copy; 0: there is none.
  int64_t copied();

 private:
  void Look();

  CopyPairPtr pair_;
  int64_t every_;
  int32_t under_way_ = -1;  // buffer; -1: none
  bool done_ = false;       // all of the one under way is there
};

}  // namespace phalanx::sim
