// coordinator/store/etcd_check.h: whether a store on etcd can be read, key by key, and whether its
// keys are of one mind (coordinator/store/store_check.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/etcd/client.h"
#include "coordinator/store/store_check.h"

namespace phalanx::coordinator {

// Reads all of the store as it was at one moment, also while a coordinator writes to it, and
// changes nothing. `prefix`: "/PREFIX/". Errors: NotFound if there is none; Unavailable if it
// cannot be read now, or a batch is half carried out and nobody goes on with it.
absl::StatusOr<StoreReport> CheckEtcdStore(EtcdClient& client, const std::string& prefix);

}  // namespace phalanx::coordinator
