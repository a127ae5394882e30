// tests/sim/cluster/fabric.h: messages between the ranks of one epoch.
//
// Each pair of ranks has a connection each way: messages arrive in order, connections know nothing
// of each other. Whoever sends to a rank that has left is told so; so is everyone whom a leaving
// rank was connected to, behind what it had sent.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "tests/sim/cluster/host_copies.h"
#include "tests/sim/cluster/ledger.h"
#include "tests/sim/cluster/network.h"
#include "tests/sim/cluster/timeline.h"
#include "tests/sim/cluster/transfers.h"
#include "worker/train/commit.h"

namespace phalanx::sim {

struct Message {
  enum class Kind : uint8_t {
    kHello,      // the connection stands
    kHoldings,   // what the sender holds
    kState,      // some of it, for the receiver
    kHave,       // the receiver has what it was sent
    kGathered,   // parameters
    kGradients,  // of a step
    kRecord,     // of a step
    kAskCopies,  // of whoever inherits copies of state
    kCopies,     // those that it is given
  } kind = Kind::kHello;
  int32_t from = 0;
  int64_t key = 0;  // step, or number of a round
  train::Record record;
  int64_t step = 0;   // of the state
  uint64_t bits = 0;  // of the state
  std::shared_ptr<const Holdings> holdings;
  std::shared_ptr<const std::vector<CopyPair>> copies = nullptr;
};

// A rank in one epoch, or a process that gives copies of state in it.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual void Deliver(const Message& message) = 0;
  virtual void OnGone(int32_t rank) = 0;
};

class Fabric {
 public:
  Fabric(Timeline& timeline, Network& network, Ledger& ledger)
      : timeline_(timeline), network_(network), ledger_(ledger) {}

  void Join(JobId job, Epoch epoch, int32_t rank, size_t node, std::weak_ptr<Endpoint> endpoint);
  // `silent`: its machine has no power, so nobody hears of it.
  void Leave(JobId job, Epoch epoch, int32_t rank, bool silent);
  void Send(JobId job, Epoch epoch, int32_t to, Message message);
  // The next message of a step is lost, and nobody hears of it: its receiver waits, and in the end
  // so do all.
  void LoseNext() { loses_next_ = true; }
  int64_t lost() const { return lost_; }

  // All ranks that hold the same of each other plan the same: the first one does, and the others
  // are compared.
  const absl::StatusOr<std::vector<TransferRound>>& TransfersOf(
      JobId job, Epoch epoch, const std::map<int32_t, Holdings>& needs,
      const std::map<int32_t, Holdings>& holdings);

 private:
  struct Member {
    size_t node = 0;
    std::weak_ptr<Endpoint> endpoint;
  };
  struct Group {
    std::map<int32_t, Member> members;
    std::map<std::pair<int32_t, int32_t>, std::shared_ptr<Pipe>> pipes;  // from, to
    std::optional<absl::StatusOr<std::vector<TransferRound>>> transfers;
    uint64_t transfers_of = 0;  // hash of what they were made of
  };
  using Key = std::pair<JobId, Epoch>;
  std::shared_ptr<Endpoint> Find(const Key& key, int32_t rank) const;
  std::shared_ptr<Pipe> PipeOf(const Key& key, Group& group, int32_t from, int32_t to);
  void TellGone(const Key& key, int32_t whom, int32_t gone);

  Timeline& timeline_;
  Network& network_;
  Ledger& ledger_;
  std::map<Key, Group> groups_;
  bool loses_next_ = false;
  int64_t lost_ = 0;
};

}  // namespace phalanx::sim
