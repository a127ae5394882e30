#include "worker/train/verified_exchange.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/accused.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/plan/check.h"
#include "worker/train/device_wait.h"
#include "worker/train/message_stream.h"
#ifdef PHALANX_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "worker/train/word_hash.cuh"
#endif

namespace phalanx::train {
namespace {

// [kHashBytes] of kByte, beside the message.
at::Tensor HashOf(const at::Tensor& message) {
  const at::Tensor payload = message.narrow(0, 0, message.numel() - kHashBytes);
#ifdef PHALANX_WITH_CUDA
  if (message.is_cuda()) {
    // One pass where it lies, and nothing as large as the message beside it.
    const at::Tensor sum = at::zeros({1}, message.options().dtype(at::kLong));
    LaunchWordHash(payload.const_data_ptr(), payload.numel(), sum.mutable_data_ptr<int64_t>(),
                   c10::cuda::getCurrentCUDAStream().stream());
    return sum.view(at::kByte);
  }
#endif
  const uint64_t hash = Digest64({reinterpret_cast<const char*>(payload.const_data_ptr<uint8_t>()),
                                  static_cast<size_t>(payload.numel())});
  at::Tensor bytes = at::empty({kHashBytes}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), &hash, sizeof hash);
  return bytes;
}

at::Tensor TrailerOf(const at::Tensor& message) {
  return message.narrow(0, message.numel() - kHashBytes, kHashBytes);
}

}  // namespace

int32_t VerifiedExchange::PositionOf(Rank rank) const {
  const auto found = std::find(group_.ranks.begin(), group_.ranks.end(), rank);
  PHALANX_CHECK(found != group_.ranks.end(), "all who give or take are in the group");
  return static_cast<int32_t>(found - group_.ranks.begin());
}

absl::Status VerifiedExchange::Await() {
  const Moment there = Moment::Now(device_);
  return AwaitDevice({.done = [&] { return there.Passed(); },
                      .stopped = [this] { return stopped_(); },
                      .check = [this] { return group_.communicator->Check(); },
                      .excused = [] { return false; },
                      .patience = kPatience,
                      .missing = "what other ranks give of their state is not there"});
}

absl::Status VerifiedExchange::Exchange(const std::vector<Parcel>& sends,
                                        const std::vector<Parcel>& receives) {
  if (sends.empty() && receives.empty()) return absl::OkStatus();
  std::vector<comm::Outgoing> outgoing;
  std::vector<comm::Incoming> incoming;
  // A peer may still read what this rank has sent when it fails itself, and lets go of it.
  for (const Parcel& message : sends) {
    outgoing.push_back({.peer = PositionOf(message.peer),
                        .data = message.bytes.const_data_ptr(),
                        .bytes = message.bytes.numel(),
                        .keep = std::make_shared<at::Tensor>(message.bytes)});
  }
  for (const Parcel& message : receives) {
    incoming.push_back(
        {PositionOf(message.peer), message.bytes.mutable_data_ptr(), message.bytes.numel()});
  }
  RETURN_IF_ERROR(group_.communicator->Exchange(outgoing, incoming));
  RETURN_IF_ERROR(group_.communicator->Flush());
  RETURN_IF_ERROR(group_.communicator->Join());
  return Await();
}

absl::StatusOr<std::vector<VerifiedExchange::Damage>> VerifiedExchange::RunPastDamage(
    const std::vector<Parcel>& sends, std::vector<Parcel>& receives) {
  for (const Parcel& message : sends) TrailerOf(message.bytes).copy_(HashOf(message.bytes));
  RETURN_IF_ERROR(Exchange(sends, receives));
  std::vector<Damage> damaged;
  if (receives.empty()) return damaged;
  std::vector<at::Tensor> told, found;
  for (const Parcel& message : receives) {
    told.push_back(TrailerOf(message.bytes));
    found.push_back(HashOf(message.bytes));
  }
  // The device is waited for once, not for each message.
  const at::Tensor differs =
      at::cat(told).ne(at::cat(found)).view({-1, kHashBytes}).any(/*dim=*/1).cpu();
  for (size_t i = 0; i < receives.size(); ++i) {
    if (!differs.const_data_ptr<bool>()[i]) continue;
    const Parcel& message = receives[i];
    damaged.push_back(
        {i,
         absl::StrCat("rank ", group_.ranks[static_cast<size_t>(group_.communicator->rank())].value,
                      " did not get from rank ", message.peer.value, " what that sent of the ",
                      message.what, ": ", message.bytes.numel() - kHashBytes,
                      " bytes with another hash")});
  }
  return damaged;
}

absl::Status VerifiedExchange::Run(const std::vector<Parcel>& sends,
                                   std::vector<Parcel>& receives) {
  ASSIGN_OR_RETURN(const std::vector<Damage> damaged, RunPastDamage(sends, receives));
  if (damaged.empty()) return absl::OkStatus();
  const Damage& first = damaged.front();
  return Accusing(receives[first.index].peer, absl::DataLossError(first.words));
}

absl::Status VerifiedExchange::Confirm(const std::vector<Parcel>& sends,
                                       const std::vector<Parcel>& receives) {
  std::vector<Parcel> words, answers;
  const auto word = [this] {
    return at::ones({1}, at::TensorOptions().device(device_).dtype(at::kByte));
  };
  for (const Parcel& message : receives) words.push_back({message.peer, word()});
  for (const Parcel& message : sends) answers.push_back({message.peer, word()});
  return Exchange(words, answers);
}

absl::StatusOr<std::vector<int64_t>> VerifiedExchange::Gather(const std::vector<int64_t>& own) {
  if (group_.communicator == nullptr || own.empty()) return own;
  const auto count = static_cast<int64_t>(own.size());
  const auto ranks = static_cast<int64_t>(group_.communicator->size());
  const at::Tensor in = at::tensor(own, at::kLong).to(device_);
  const at::Tensor out = at::zeros({ranks * count}, in.options());
  RETURN_IF_ERROR(group_.communicator->AllGather(in.const_data_ptr(), out.mutable_data_ptr(), count,
                                                 comm::DType::kInt64));
  RETURN_IF_ERROR(group_.communicator->Join());
  RETURN_IF_ERROR(Await());
  const at::Tensor all = out.cpu();
  const auto* numbers = all.const_data_ptr<int64_t>();
  return std::vector<int64_t>(numbers, numbers + all.numel());
}

}  // namespace phalanx::train
