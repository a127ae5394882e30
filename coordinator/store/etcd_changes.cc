#include "coordinator/store/etcd_changes.h"

#include <algorithm>
#include <utility>

#include "coordinator/store/etcd_keys.h"

namespace phalanx::coordinator {
namespace {

// Of one operation beside its keys and its value.
constexpr size_t kEnvelopeBytes = 32;

// Fills transactions one after the other.
class Filling {
 public:
  etcdserverpb::RequestOp& Next(size_t bytes) {
    bytes += kEnvelopeBytes;
    const bool full =
        transactions_.empty() ||
        static_cast<size_t>(transactions_.back().success_size()) == kEtcdOperationsMax ||
        bytes_ + bytes > kEtcdBytesMax;
    if (full) {
      transactions_.emplace_back();
      bytes_ = 0;
    }
    bytes_ += bytes;
    return *transactions_.back().add_success();
  }
  std::vector<etcdserverpb::TxnRequest> Take() { return std::move(transactions_); }

 private:
  std::vector<etcdserverpb::TxnRequest> transactions_;
  size_t bytes_ = 0;  // of the last
};

}  // namespace

void EtcdChanges::Put(std::string key, std::string value) {
  puts_[std::move(key)] = std::move(value);
}

void EtcdChanges::PutParts(absl::string_view key, absl::string_view value) {
  size_t part = 0;
  do {
    Put(EtcdKeys::Part(key, part++), std::string(value.substr(0, kEtcdPartBytes)));
    value.remove_prefix(std::min(value.size(), kEtcdPartBytes));
  } while (!value.empty());
}

void EtcdChanges::Delete(const std::string& key) {
  puts_.erase(key);
  deletes_.try_emplace(key);
}

void EtcdChanges::DeleteAll(const std::string& prefix) {
  const std::string behind = EtcdKeys::Behind(prefix);
  puts_.erase(puts_.lower_bound(prefix), puts_.lower_bound(behind));
  deletes_[prefix] = behind;
}

std::vector<etcdserverpb::TxnRequest> EtcdChanges::Take() {
  Filling filling;
  for (const auto& [first, behind] : deletes_) {
    etcdserverpb::DeleteRangeRequest& request =
        *filling.Next(first.size() + behind.size()).mutable_request_delete_range();
    request.set_key(first);
    request.set_range_end(behind);
  }
  for (auto& [key, value] : puts_) {
    etcdserverpb::PutRequest& request =
        *filling.Next(key.size() + value.size()).mutable_request_put();
    request.set_key(key);
    request.set_value(std::move(value));
  }
  puts_.clear();
  deletes_.clear();
  return filling.Take();
}

}  // namespace phalanx::coordinator
