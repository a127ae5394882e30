#include "worker/comm/nccl_signals.h"

#include <cudaTypedefs.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/comm/nccl_communicator.h"

namespace phalanx::comm {
namespace {

// Waits compare cyclically: a word ends those that are up to half the numbers behind it.
constexpr uint32_t kFarAhead = uint32_t{1} << 30;
constexpr unsigned int kDriverVersion = 12000;

// Of the driver, which this program does not link.
struct StreamOperations {
  PFN_cuStreamWriteValue32_v11070 write = nullptr;
  PFN_cuStreamWaitValue32_v11070 wait = nullptr;
  bool there() const { return write != nullptr && wait != nullptr; }
};

void* EntryPoint(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, kDriverVersion, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
}

const StreamOperations& Operations() {
  static const StreamOperations operations = {
      .write =
          reinterpret_cast<PFN_cuStreamWriteValue32_v11070>(EntryPoint("cuStreamWriteValue32")),
      .wait = reinterpret_cast<PFN_cuStreamWaitValue32_v11070>(EntryPoint("cuStreamWaitValue32"))};
  return operations;
}

absl::Status DriverStatus(CUresult result, absl::string_view what) {
  return CudaStatus(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown,
                    absl::StrCat(what, " (driver: ", static_cast<int>(result), ")"));
}

std::string KeyOf(Rank rank) { return absl::StrCat("nccl/signals/", rank.value); }

}  // namespace

class NcclSignalMemory::Mapped {
 public:
  static std::unique_ptr<Mapped> Register(SharedSegment segment, uint64_t bytes) {
    void* device = nullptr;
    if (cudaHostRegister(segment.data(), bytes, cudaHostRegisterMapped) != cudaSuccess) {
      cudaGetLastError();  // nobody else is to find it
      return nullptr;
    }
    auto mapped = std::make_unique<Mapped>(std::move(segment));
    if (cudaHostGetDevicePointer(&device, mapped->segment_.data(), 0) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    mapped->device_ = reinterpret_cast<uint64_t>(device);
    return mapped;
  }
  explicit Mapped(SharedSegment segment) : segment_(std::move(segment)) {}
  ~Mapped() {
    if (cudaHostUnregister(segment_.data()) != cudaSuccess) cudaGetLastError();
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  SharedSegment& segment() { return segment_; }
  Word At(uint64_t index) const {
    return {reinterpret_cast<std::atomic<uint32_t>*>(segment_.data()) + index,
            device_ + index * sizeof(uint32_t)};
  }

 private:
  SharedSegment segment_;
  uint64_t device_ = 0;
};

NcclSignalMemory::NcclSignalMemory(Rank self, int32_t world, int32_t groups)
    : self_(self), world_(world), groups_(groups) {}

uint64_t NcclSignalMemory::Bytes() const {
  // Behind the signals of the groups is one by which each peer says that it has attached.
  return sizeof(uint32_t) * static_cast<uint64_t>(world_) * static_cast<uint64_t>(groups_ + 1);
}

NcclSignalMemory::Word NcclSignalMemory::WordOf(const Mapped& segment, int32_t group,
                                                Rank rank) const {
  return segment.At(static_cast<uint64_t>(group) * static_cast<uint64_t>(world_) +
                    static_cast<uint64_t>(rank.value));
}

absl::StatusOr<std::shared_ptr<NcclSignalMemory>> NcclSignalMemory::Meet(
    Rank self, int32_t world, int32_t groups, const std::set<Rank>& peers, Rendezvous& rendezvous,
    Deadline deadline) {
  std::shared_ptr<NcclSignalMemory> memory(new NcclSignalMemory(self, world, groups));
  const uint64_t bytes = memory->Bytes();
  if (Operations().there()) {
    if (auto segment = SharedSegment::Create(bytes); segment.ok())
      memory->own_ = Mapped::Register(*std::move(segment), bytes);
  }
  const bool usable = memory->own_ != nullptr;
  RETURN_IF_ERROR(rendezvous.Put(KeyOf(self), usable ? memory->own_->segment().Handle() : ""));
  for (const Rank peer : peers) {
    ASSIGN_OR_RETURN(const std::string handle, rendezvous.GetFrom(peer, KeyOf(peer), deadline));
    if (!usable) continue;
    std::optional<SharedSegment> segment = SharedSegment::Attach(handle, bytes);
    if (!segment.has_value()) continue;
    std::unique_ptr<Mapped> mapped = Mapped::Register(*std::move(segment), bytes);
    if (mapped == nullptr) continue;
    memory->WordOf(*mapped, groups, self).host->store(1);
    memory->peers_.emplace(peer, std::move(mapped));
  }
  return memory;
}

std::optional<NcclSignalMemory::Word> NcclSignalMemory::Mine(int32_t group, Rank peer) const {
  if (own_ == nullptr || WordOf(*own_, groups_, peer).host->load() == 0) return std::nullopt;
  return WordOf(*own_, group, peer);
}

std::optional<NcclSignalMemory::Word> NcclSignalMemory::AtPeer(int32_t group, Rank peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  return WordOf(*found->second, group, self_);
}

void NcclSignalMemory::Settled() {
  if (own_ != nullptr) own_->segment().Close();
}

NcclSignals::NcclSignals(std::shared_ptr<NcclSignalMemory> memory, int32_t group,
                         absl::Span<const Rank> ranks)
    : memory_(std::move(memory)), peers_(ranks.size()) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    peers_[i].mine = memory_->Mine(group, ranks[i]);
    peers_[i].theirs = memory_->AtPeer(group, ranks[i]);
  }
}

absl::Status NcclSignals::Enqueue(cudaStream_t stream, absl::Span<const Outgoing> sends,
                                  absl::Span<const Incoming> receives) {
  for (const Outgoing& send : sends) {
    Peer& peer = peers_[static_cast<size_t>(send.peer)];
    if (send.bytes == 0 || !peer.theirs.has_value()) continue;
    RETURN_IF_ERROR(DriverStatus(
        Operations().write(stream, peer.theirs->device, ++peer.sent, CU_STREAM_WRITE_VALUE_DEFAULT),
        "the signal of a send"));
  }
  std::set<int32_t> awaited;
  for (const Incoming& receive : receives) {
    Peer& peer = peers_[static_cast<size_t>(receive.peer)];
    if (receive.bytes == 0 || !peer.mine.has_value()) continue;
    const uint32_t number = ++peer.received;
    // The first of several from one peer: it may send the others later.
    if (!awaited.insert(receive.peer).second) continue;
    RETURN_IF_ERROR(
        DriverStatus(Operations().wait(stream, peer.mine->device, number, CU_STREAM_WAIT_VALUE_GEQ),
                     "the wait for a sender"));
  }
  return absl::OkStatus();
}

void NcclSignals::EndWaits() {
  for (Peer& peer : peers_) {
    if (peer.mine.has_value()) peer.mine->host->store(peer.received.load() + kFarAhead);
  }
}

}  // namespace phalanx::comm
