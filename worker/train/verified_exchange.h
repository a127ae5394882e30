// worker/train/verified_exchange.h: messages between ranks whose receivers check what has come, and
// whose senders learn that it is there.
//
// A message carries a hash of its bytes behind them, XXH3 on CPU. Who has given something away may
// let go of it only once the receiver has it whole: so each exchange ends with a word from every
// receiver to its senders.
//
// Not thread-safe. On CUDA waits for the device, which hashes its own messages.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"

namespace phalanx::train {

// A communicator of its own for what is moved, so that nothing else queues behind it.
struct BulkGroup {
  comm::Communicator* communicator = nullptr;  // nullptr: nobody else
  plan::RankList ranks;                        // by position in it
};

struct Parcel {
  Rank peer;
  at::Tensor bytes;  // kByte; kHashBytes at its end are the exchange's
  std::string what;  // of one that is received, for messages: "state of ..."
};
inline constexpr int64_t kHashBytes = 8;

class VerifiedExchange {
 public:
  // `stopped`: asked while it waits. All outlive it.
  VerifiedExchange(const BulkGroup& group, at::Device device, std::function<bool()> stopped)
      : group_(group), device_(device), stopped_(std::move(stopped)) {}

  // Returns once all has come and is what was sent. Errors: DataLoss that names this rank, the
  // sender, what it is and the bytes; those of the communicator. The group is of no more use then.
  absl::Status Run(const std::vector<Parcel>& sends, std::vector<Parcel>& receives);
  // What came damaged of messages that were received: which of them, and in words.
  struct Damage {
    size_t index = 0;
    std::string words;
  };
  // As Run, but damage is no error, and the group goes on. Errors: those of the communicator.
  absl::StatusOr<std::vector<Damage>> RunPastDamage(const std::vector<Parcel>& sends,
                                                    std::vector<Parcel>& receives);
  // After Run and with its messages: tells the senders that what came is kept here, and returns
  // once all receivers have said so.
  absl::Status Confirm(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives);
  // The numbers of every rank, by position in the group, from all of them alike: each calls it with
  // as many. Of no group: its own.
  absl::StatusOr<std::vector<int64_t>> Gather(const std::vector<int64_t>& own);

 private:
  absl::Status Exchange(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives);
  int32_t PositionOf(Rank rank) const;
  absl::Status Await();

  const BulkGroup& group_;
  const at::Device device_;
  const std::function<bool()> stopped_;
};

}  // namespace phalanx::train
