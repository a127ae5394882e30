#include "worker/comm/peer_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::comm {
namespace {

// Messages up to this size leave from a copy.
constexpr int64_t kStagedBytesMax = 64 << 10;
// All-reduces up to this size send everything to everybody; above, two phases move fewer bytes.
constexpr int64_t kDirectBytesMax = 16 << 10;
constexpr size_t kPendingMessagesMax = 4096;

uint64_t TagOf(int32_t index, bool collective, uint64_t sequence) {
  return static_cast<uint64_t>(index) << 48 | static_cast<uint64_t>(collective) << 47 | sequence;
}
const char* At(const void* data, int64_t offset) { return static_cast<const char*>(data) + offset; }
char* At(void* data, int64_t offset) { return static_cast<char*>(data) + offset; }
void Ignore(size_t, const void*) {}

// An operation that an observer, if there is one, is told of.
class Observed {
 public:
  Observed(Observer* observer, plan::CommunicatorOperation operation) : observer_(observer) {
    if (observer_ != nullptr) observer_->Begins(operation, nullptr);
  }
  ~Observed() {
    if (observer_ != nullptr) observer_->Ends(nullptr);
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

 private:
  Observer* const observer_;
};

}  // namespace

PeerCommunicator::PeerCommunicator(std::shared_ptr<Transport> transport, int32_t index,
                                   const plan::CommunicatorSpec& spec, Rank self)
    : transport_(std::move(transport)),
      index_(index),
      name_(spec.name),
      sent_(spec.ranks.size()),
      received_(spec.ranks.size()) {
  for (const Rank rank : spec.ranks) {
    if (rank == self) rank_ = static_cast<int32_t>(members_.size());
    members_.push_back(rank.value);
  }
}

PeerCommunicator::~PeerCommunicator() {
  // The last collectives may still be on their way to slower members. Those are inside them, since
  // their own part arrived here, so this does not wait for long.
  for (Staging& staging : staging_) transport_->Settle(staging.pending).IgnoreError();
}

absl::Status PeerCommunicator::Named(const absl::Status& status) const {
  return status.ok() ? status : Annotate(status, absl::StrCat("communicator ", name_));
}

uint64_t PeerCommunicator::NextCollectiveTag() { return TagOf(index_, true, collectives_++); }

absl::Status PeerCommunicator::CheckSum(int64_t count, DType dtype) const {
  if (count < 0) return Named(absl::InvalidArgumentError(absl::StrCat("count is ", count)));
  if (dtype == DType::kByte) return Named(absl::InvalidArgumentError("bytes have no sum"));
  return absl::OkStatus();
}

std::vector<PeerCommunicator::Block> PeerCommunicator::SplitEvenly(int64_t count) const {
  std::vector<Block> blocks;
  int64_t first = 0;
  for (int32_t i = 0; i < size(); ++i) {
    const int64_t block = count / size() + (i < count % size() ? 1 : 0);
    blocks.push_back({first, block});
    first += block;
  }
  return blocks;
}

PeerCommunicator::Staging* PeerCommunicator::Stage(const void* data, int64_t bytes) {
  Staging& staging = staging_[staging_next_];
  staging_next_ = (staging_next_ + 1) % staging_.size();
  // What left from here two calls ago has arrived: everybody answered in the call between, and did
  // so after taking it. So this settles at once; an error shows again in the transfer.
  transport_->Settle(staging.pending).IgnoreError();
  staging.bytes.assign(At(data, 0), At(data, bytes));
  return &staging;
}

absl::Status PeerCommunicator::AllReduceSum(void* data, int64_t count, DType dtype) {
  RETURN_IF_ERROR(CheckSum(count, dtype));
  if (count == 0 || size() == 1) return absl::OkStatus();
  const Observed observed(observer_, plan::CommunicatorOperation::kAllReduce);
  const bool direct = count * SizeOf(dtype) <= kDirectBytesMax;
  return Named(direct ? AllReduceDirect(data, count, dtype)
                      : AllReduceTwoPhases(data, count, dtype));
}

absl::Status PeerCommunicator::AllReduceDirect(void* data, int64_t count, DType dtype) {
  const int64_t bytes = count * SizeOf(dtype);
  Staging* staging = Stage(data, bytes);
  const uint64_t tag = NextCollectiveTag();
  outbound_.clear();
  inbound_.clear();
  for (int32_t i = 0; i < size(); ++i) {
    if (i == rank_) continue;
    outbound_.push_back({members_[i], tag, staging->bytes.data(), bytes});
    inbound_.push_back({members_[i], tag, nullptr, bytes});
  }
  sum_.Reset(dtype, count);
  if (rank_ == 0) sum_.Add(data);
  RETURN_IF_ERROR(transport_->Transfer(outbound_, inbound_, staging->pending,
                                       [&](size_t i, const void* values) {
                                         sum_.Add(values);
                                         // Receive i is that of member i, or of i + 1 past this
                                         // one.
                                         if (static_cast<int32_t>(i) + 1 == rank_) sum_.Add(data);
                                       }));
  sum_.Store(data);
  return absl::OkStatus();
}

absl::Status PeerCommunicator::SumOwnBlock(const void* data, absl::Span<const Block> blocks,
                                           DType dtype) {
  const int64_t width = SizeOf(dtype);
  const Block own = blocks[static_cast<size_t>(rank_)];
  const void* mine = At(data, own.first * width);
  const uint64_t tag = NextCollectiveTag();
  outbound_.clear();
  inbound_.clear();
  for (int32_t step = 1; step < size(); ++step) {  // spread: nobody is everyone's first
    const int32_t i = (rank_ + step) % size();
    const Block block = blocks[static_cast<size_t>(i)];
    if (block.count > 0)
      outbound_.push_back({members_[i], tag, At(data, block.first * width), block.count * width});
  }
  for (int32_t i = 0; i < size() && own.count > 0; ++i) {
    if (i != rank_) inbound_.push_back({members_[i], tag, nullptr, own.count * width});
  }
  sum_.Reset(dtype, own.count);
  if (rank_ == 0) sum_.Add(mine);
  return transport_->Transfer(outbound_, inbound_, pending_collective_,
                              [&](size_t i, const void* values) {
                                sum_.Add(values);
                                if (static_cast<int32_t>(i) + 1 == rank_) sum_.Add(mine);
                              });
}

absl::Status PeerCommunicator::GatherBlocks(void* data, absl::Span<const Block> blocks,
                                            int64_t width) {
  const Block own = blocks[static_cast<size_t>(rank_)];
  const uint64_t tag = NextCollectiveTag();
  outbound_.clear();
  inbound_.clear();
  for (int32_t step = 1; step < size(); ++step) {
    const int32_t i = (rank_ + step) % size();
    if (own.count > 0)
      outbound_.push_back({members_[i], tag, At(data, own.first * width), own.count * width});
    const int32_t j = (rank_ + size() - step) % size();
    const Block block = blocks[static_cast<size_t>(j)];
    if (block.count > 0)
      inbound_.push_back({members_[j], tag, At(data, block.first * width), block.count * width});
  }
  return transport_->Transfer(outbound_, inbound_, pending_collective_, Ignore);
}

absl::Status PeerCommunicator::AllReduceTwoPhases(void* data, int64_t count, DType dtype) {
  const int64_t width = SizeOf(dtype);
  const std::vector<Block> blocks = SplitEvenly(count);
  absl::Status status = SumOwnBlock(data, blocks, dtype);
  if (status.ok()) {
    // The other blocks may be overwritten while their sends are "under way": a member's sum arrives
    // only after it has all of what it summed. The own block is sent to nobody in the first phase.
    sum_.Store(At(data, blocks[static_cast<size_t>(rank_)].first * width));
    status = GatherBlocks(data, blocks, width);
  }
  const absl::Status settled = transport_->Settle(pending_collective_);
  return status.ok() ? settled : status;
}

absl::Status PeerCommunicator::ReduceScatterSum(const void* in, void* out, int64_t count_per_rank,
                                                DType dtype) {
  RETURN_IF_ERROR(CheckSum(count_per_rank, dtype));
  if (count_per_rank == 0) return absl::OkStatus();
  const int64_t bytes = count_per_rank * SizeOf(dtype);
  if (size() == 1) {
    std::memmove(out, in, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  const Observed observed(observer_, plan::CommunicatorOperation::kReduceScatter);
  absl::Status status = SumOwnBlock(in, SplitEvenly(count_per_rank * size()), dtype);
  const absl::Status settled = transport_->Settle(pending_collective_);
  if (status.ok()) status = settled;
  if (status.ok()) sum_.Store(out);
  return Named(status);
}

absl::Status PeerCommunicator::AllGather(const void* in, void* out, int64_t count_per_rank,
                                         DType dtype) {
  if (count_per_rank < 0) {
    return Named(absl::InvalidArgumentError(absl::StrCat("count is ", count_per_rank)));
  }
  const int64_t bytes = count_per_rank * SizeOf(dtype);
  if (bytes == 0) return absl::OkStatus();
  std::memmove(At(out, rank_ * bytes), in, static_cast<size_t>(bytes));
  if (size() == 1) return absl::OkStatus();
  const Observed observed(observer_, plan::CommunicatorOperation::kAllGather);
  if (bytes > kStagedBytesMax) {
    absl::Status status = GatherBlocks(out, SplitEvenly(bytes * size()), 1);
    const absl::Status settled = transport_->Settle(pending_collective_);
    return Named(status.ok() ? settled : status);
  }
  Staging* staging = Stage(in, bytes);
  const uint64_t tag = NextCollectiveTag();
  outbound_.clear();
  inbound_.clear();
  for (int32_t i = 0; i < size(); ++i) {
    if (i == rank_) continue;
    outbound_.push_back({members_[i], tag, staging->bytes.data(), bytes});
    inbound_.push_back({members_[i], tag, At(out, i * bytes), bytes});
  }
  return Named(transport_->Transfer(outbound_, inbound_, staging->pending, Ignore));
}

absl::Status PeerCommunicator::Exchange(absl::Span<const Outgoing> sends,
                                        absl::Span<const Incoming> receives) {
  const auto check = [&](int32_t peer, int64_t bytes) {
    if (peer >= 0 && peer < size() && peer != rank_ && bytes >= 0) return absl::OkStatus();
    return Named(
        absl::InvalidArgumentError(absl::StrCat("message of ", bytes, " bytes with peer ", peer,
                                                ": this is rank ", rank_, " of ", size())));
  };
  for (const Outgoing& send : sends) RETURN_IF_ERROR(check(send.peer, send.bytes));
  for (const Incoming& receive : receives) RETURN_IF_ERROR(check(receive.peer, receive.bytes));
  outbound_.clear();
  inbound_.clear();
  for (const Outgoing& send : sends) {
    if (send.bytes == 0) continue;
    const uint64_t tag = TagOf(index_, false, sent_[static_cast<size_t>(send.peer)]++);
    outbound_.push_back({members_[send.peer], tag, send.data, send.bytes, send.keep});
  }
  for (const Incoming& receive : receives) {
    if (receive.bytes == 0) continue;
    const uint64_t tag = TagOf(index_, false, received_[static_cast<size_t>(receive.peer)]++);
    inbound_.push_back({members_[receive.peer], tag, receive.data, receive.bytes});
  }
  const bool any = !outbound_.empty() || !inbound_.empty();
  const Observed observed(any ? observer_ : nullptr, plan::CommunicatorOperation::kExchange);
  transport_->ForgetComplete(pending_messages_);
  absl::Status status = transport_->Transfer(outbound_, inbound_, pending_messages_, Ignore);
  outbound_.clear();  // and with it what it keeps
  if (!status.ok()) {
    transport_->Settle(pending_messages_).IgnoreError();  // lets go of the caller's memory
    return Named(status);
  }
  // A caller that never flushes pays here rather than in memory.
  if (pending_messages_.size() <= kPendingMessagesMax) return absl::OkStatus();
  PendingSends oldest;
  while (pending_messages_.size() > kPendingMessagesMax / 2) {
    oldest.push_back(std::move(pending_messages_.front()));
    pending_messages_.pop_front();
  }
  return Named(transport_->Settle(oldest));
}

absl::Status PeerCommunicator::Flush() { return Named(transport_->Settle(pending_messages_)); }

absl::Status PeerCommunicator::Check() { return Named(transport_->Check()); }

void PeerCommunicator::Abort(absl::Status reason) { transport_->Abort(std::move(reason)); }

Communicators MakeCommunicators(std::shared_ptr<Transport> transport,
                                absl::Span<const plan::CommunicatorSpec> specs, Rank self) {
  Communicators communicators;
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool member =
        std::find(specs[i].ranks.begin(), specs[i].ranks.end(), self) != specs[i].ranks.end();
    communicators.push_back(member ? std::make_unique<PeerCommunicator>(
                                         transport, static_cast<int32_t>(i), specs[i], self)
                                   : nullptr);
  }
  return communicators;
}

}  // namespace phalanx::comm
