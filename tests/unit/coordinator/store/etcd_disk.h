// tests/unit/coordinator/store/etcd_disk.h: a place for a store on the etcd of this test program.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/election.h"
#include "coordinator/etcd/place.h"
#include "coordinator/store/etcd_backend.h"
#include "tests/support/etcd.h"

namespace phalanx::coordinator {

// Opened again it is another coordinator's, which leads once the one before has given it up.
struct EtcdDisk {
  std::shared_ptr<EtcdClient> NewClient(std::function<absl::Status()> write_fault = nullptr) const {
    return std::make_shared<EtcdClient>(
        EtcdOptions{.members = place.members, .write_fault = std::move(write_fault)});
  }
  absl::StatusOr<std::shared_ptr<Leadership>> Lead(std::shared_ptr<EtcdClient> client) const {
    return Election(std::move(client), place.prefix, "127.0.0.1:1").Try();
  }
  absl::StatusOr<std::unique_ptr<EtcdBackend>> Open() const {
    const std::shared_ptr<EtcdClient> client = NewClient();
    absl::StatusOr<std::shared_ptr<Leadership>> leadership = Lead(client);
    if (!leadership.ok()) return leadership.status();
    if (*leadership == nullptr) return absl::FailedPreconditionError("another one leads");
    return EtcdBackend::Open(client, place.prefix, *std::move(leadership));
  }
  // Leads until Forget, and does not know of that: as a process that was stopped.
  std::shared_ptr<Leadership> LeadBlindly() const {
    const std::shared_ptr<EtcdClient> client = NewClient();
    const int64_t lease = client->Grant(60)->id();
    etcdserverpb::TxnRequest make;
    etcdserverpb::PutRequest& put = *make.add_success()->mutable_request_put();
    put.set_key(place.prefix + "leader");
    put.set_lease(lease);
    const int64_t revision = client->Write(make)->header().revision();
    return std::make_shared<Leadership>(
        client, put.key(), revision,
        Leadership::Lease{.id = lease,
                          .length = absl::Hours(1),
                          .valid_until = SteadyNow() + std::chrono::hours(1)});
  }
  void Forget() const {
    etcdserverpb::TxnRequest request;
    request.add_success()->mutable_request_delete_range()->set_key(place.prefix + "leader");
    static_cast<void>(NewClient()->Write(request));
  }

  const EtcdPlace place = *ParseEtcdPlace(support::SharedEtcd().NewPlace());
};

}  // namespace phalanx::coordinator
