// coordinator/store/etcd_chain.h: transactions on etcd that follow one another, of the coordinator
// that leads.
//
// Each compares two things and writes one: that the leader's key is the one that we made, that the
// head (one key) is as our last transaction left it, and the new head. Nobody who leads no more
// adds to the chain; and a transaction of our own that was given up, because etcd did not answer,
// is either in it by the time that we look or never will be, for the next one takes its place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/election.h"

namespace phalanx::coordinator {

// Not thread-safe.
class EtcdChain {
 public:
  EtcdChain(std::shared_ptr<EtcdClient> client, std::string head)
      : client_(std::move(client)), head_(std::move(head)) {}

  // What the head is; nothing: there is none. Errors: Unavailable.
  absl::StatusOr<std::optional<std::string>> Read();

  // Tries again while etcd does not answer. `value` is one that no transaction before wrote, by
  // which one that is tried again knows that it had been carried out. Errors: Aborted if
  // `leadership` is lost; Unavailable: nobody knows, and Read and an empty Step come before the
  // next one. After any other one nothing was done.
  absl::Status Step(Leadership& leadership, etcdserverpb::TxnRequest request,
                    const std::string& value);

  // That wrote the head; 0: there is none.
  int64_t revision() const { return revision_; }

 private:
  // Of a transaction that was refused. OK: it had been carried out before.
  absl::Status Settle(Leadership& leadership, const etcdserverpb::TxnResponse& refusal,
                      const std::string& value);

  const std::shared_ptr<EtcdClient> client_;
  const std::string head_;
  int64_t revision_ = 0;
};

}  // namespace phalanx::coordinator
