// tests/gpu/ranks.h: ranks as forked processes, a GPU each, as in a job.
//
// Threads would not do: an allocation of one waits for the kernels of all, of which some wait for
// that one. The parent never touches CUDA: a forked context would be broken.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/comm/communicator.h"

namespace phalanx::gpu {

// How many ranks there is room for, asked in a process of its own: one a device, or
// PHALANX_GPU_RANKS_A_DEVICE, so that a machine with few devices runs what needs more ranks;
// slowly, since their kernels take turns.
int32_t DeviceCount();

// A folder of files; a process that waits for one looks again and again, as nothing here is timed.
class FolderRendezvous final : public comm::Rendezvous {
 public:
  // Keys of one prefix are apart from those of others.
  explicit FolderRendezvous(std::string folder, std::string prefix = "")
      : folder_(std::move(folder)), prefix_(std::move(prefix)) {}
  absl::Status Put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, comm::Deadline deadline) override;
  bool Has(const std::string& key) const;

 private:
  std::string PathOf(const std::string& key) const;
  const std::string folder_, prefix_;
};

struct ForkedRank {
  int32_t rank = 0, world = 0;
  std::string folder;  // of the world, for a FolderRendezvous; it goes with it
  int32_t device = 0;  // which is current; several ranks may share it
};

// Runs `body` in a process a rank, each with its device current and the environment that rank
// processes set themselves, and returns what each said: the text, what it threw, or "killed". A
// rank that takes longer than `seconds_max` is killed.
std::vector<std::string> RunRanks(int32_t world, int32_t seconds_max,
                                  const std::function<std::string(const ForkedRank&)>& body);

}  // namespace phalanx::gpu
