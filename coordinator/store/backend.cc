#include "coordinator/store/backend.h"

namespace phalanx::coordinator {

absl::Status Backend::ForEachRequest(absl::FunctionRef<absl::Status(StoredRequest)>) {
  return absl::UnimplementedError("this store cannot be copied");
}

absl::Status Backend::Import(const StoreContents&) {
  return absl::UnimplementedError("this store takes no copy");
}

}  // namespace phalanx::coordinator
