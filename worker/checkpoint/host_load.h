// worker/checkpoint/host_load.h: takes state back from copies in memory of the node's daemon
// (host_copy.h), as whoever inherits it does.
//
// A copy is of one rank and lies in the layout of the plan that the rank trained under. It comes to
// lie nowhere, with that of other ranks, and so can enter any layout of the job (training_state.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/checkpoint_io/host_buffer.h"
#include "core/plan/plan.h"
#include "core/posix/unique_fd.h"
#include "worker/checkpoint/pinned_mapping.h"
#include "worker/train/training_state.h"

namespace phalanx::checkpoint {

// From where training goes on with a copy. Nothing where the header has no decided step.
std::optional<train::Start> StartOf(const HostCopyHeader& header);
// `start`: of the last decided step, counted in.
void SetStart(const train::Start& start, HostCopyHeader* header);
// First 64 bits of the plan's digest, as headers have them.
uint64_t DigestInHeader(const plan::Plan& plan);

// The two buffers that a rank was given in an epoch, to be read.
class HostCopyPair {
 public:
  // Of whom.
  struct Identity {
    uint64_t store = 0;
    int64_t job = 0;
    Epoch epoch;
    Rank rank;
  };
  // Errors: ResourceExhausted if they cannot be mapped.
  static absl::StatusOr<HostCopyPair> Map(const Identity& identity, int64_t bytes,
                                          std::array<UniqueFd, 2> buffers);

  Rank rank() const { return identity_.rank; }
  Epoch epoch() const { return identity_.epoch; }
  // Headers of copies that are whole and are whose they should be.
  std::vector<HostCopyHeader> Whole() const;
  // The buffer that has the copy of a step.
  struct Buffer {
    HostCopyHeader header;
    int fd = -1;
    int64_t bytes = 0;                  // of the mapping
    const std::byte* memory = nullptr;  // its page first
  };
  // Errors: DataLoss where none has one that is whole.
  absl::StatusOr<Buffer> BufferOf(int64_t step) const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Unmap>;

  HostCopyPair(const Identity& identity, size_t bytes) : identity_(identity), bytes_(bytes) {}
  bool IsMine(const HostCopyHeader& header) const;

  Identity identity_;
  size_t bytes_;
  std::array<UniqueFd, 2> fds_;
  std::array<Memory, 2> buffers_;
};

// What of a file is mapped, and pinned in part or as a whole; nullptr: nothing.
using FindMapping = std::function<const PinnedMapping*(int fd, int64_t bytes)>;

// Adds to `state`, which lies in no layout, what the copy of `step` has, and with it what does not
// train of that rank: out of `checkpoint`, that the job began with; "": it is initial values.
// `plan`: in whose layout the copy lies. Where `find` has pinned its pages a device takes them at
// the speed of its link. `below`: as Load. Errors: DataLoss, naming the rank, where there is no
// copy of the step, or one of another plan or size; those of ReadManifestOf and Load; Cancelled.
absl::Status AddCopy(const HostCopyPair& pair, int64_t step, const plan::Plan& plan,
                     const std::string& checkpoint, train::TrainingState& state,
                     const std::vector<std::string>& below, const std::stop_token& stop = {},
                     const FindMapping& find = nullptr);
// Adds what does not train of a rank of `plan` of which there is no copy: all of it, where nothing
// that it has trains. Errors: those of ReadManifestOf and Load.
absl::Status AddUntrained(const plan::Plan& plan, Rank rank, const std::string& checkpoint,
                          train::TrainingState& state, const std::vector<std::string>& below,
                          const std::stop_token& stop = {});

}  // namespace phalanx::checkpoint
