// coordinator/store/etcd_changes.h: what a batch changes in a store on etcd, as transactions.
//
// etcd takes 128 operations and 1.5 MiB in one transaction, and no transaction that writes a key
// twice. So changes are gathered first: of those to one key the last holds.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "etcd/etcd_service.pb.h"

namespace phalanx::coordinator {

// Below etcd's own limits, with room for what goes along: comparisons, the state, the envelope.
inline constexpr size_t kEtcdOperationsMax = 100;
inline constexpr size_t kEtcdBytesMax = 1 << 20;

// Not thread-safe.
class EtcdChanges {
 public:
  // `key` is not among what was deleted before: nothing that goes in a batch comes back in it.
  void Put(std::string key, std::string value);
  // The value in parts; `key` ends with a slash.
  void PutParts(absl::string_view key, absl::string_view value);
  void Delete(const std::string& key);
  // All keys that begin with `prefix`, which ends with a slash.
  void DeleteAll(const std::string& prefix);

  bool empty() const { return puts_.empty() && deletes_.empty(); }
  // As few transactions as hold them, each within the bounds above. Done in any order they give the
  // same: each key is changed once.
  std::vector<etcdserverpb::TxnRequest> Take();

 private:
  std::map<std::string, std::string> puts_;
  std::map<std::string, std::string> deletes_;  // first key -> behind the last; "": that key alone
};

}  // namespace phalanx::coordinator
