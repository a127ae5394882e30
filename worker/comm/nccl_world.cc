// ConnectNccl: all communicators of a rank, created in one group and used once before they are
// handed out. A communicator connects at its first use of each kind, which takes longer than
// creating it; so the first uses run side by side, a thread each.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "worker/comm/interface.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/releases.h"

namespace phalanx::comm {
namespace {

// Enough for messages and for what is small, at a third of the memory and set-up time of NCCL's
// default, which gradients have, and what tensor ranks exchange in each layer.
constexpr int kMaxCtas = 8;
constexpr int64_t kWarmUpCount = 64;  // elements a rank

// NCCL reads its environment once, at its first use. It listens on the interface of `address`: by
// itself it takes the first one that it finds, on whatever network that is.
void SetEnvironment(const std::string& address) {
  static std::once_flag once;
  std::call_once(once, [&address] {
    if (const std::string interface = NcclInterfaceOf(address); !interface.empty())
      setenv("NCCL_SOCKET_IFNAME", interface.c_str(), 0);
    // Else the first rank of a node opens a port that tells whoever asks what the job looks like.
    setenv("NCCL_RAS_ENABLE", "0", 0);
    // NVLS buffers are not recovered in process; a ring has one order of summation for any size.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_ALGO", "Ring", 0);
  });
}

ncclConfig_t ConfigOf(const plan::CommunicatorSpec& spec, const NcclHandle& handle,
                      const WorldOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 0;
  config.collnetEnable = 0;
  config.commName = handle.name.c_str();
  using Use = plan::CommunicatorSpec::Use;
  const bool wide =
      spec.use == Use::kData || (spec.use == Use::kTensor && options.wide_tensor_groups);
  if (!wide) config.maxCTAs = kMaxCtas;
  return config;
}

struct Membership {
  size_t index = 0;  // into specs
  int32_t rank = 0;
  ncclUniqueId id = {};
};

absl::StatusOr<std::vector<Membership>> MeetGroups(absl::Span<const plan::CommunicatorSpec> specs,
                                                   Rank self, Rendezvous& rendezvous,
                                                   Deadline deadline) {
  std::vector<Membership> memberships;
  const auto key = [&](size_t index) {
    return absl::StrCat("nccl/", index, "/", specs[index].name);
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto found = std::find(specs[i].ranks.begin(), specs[i].ranks.end(), self);
    if (found == specs[i].ranks.end()) continue;
    Membership membership{.index = i, .rank = static_cast<int32_t>(found - specs[i].ranks.begin())};
    if (membership.rank == 0) {
      RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&membership.id), "unique id"));
      RETURN_IF_ERROR(rendezvous.Put(
          key(i), std::string(membership.id.internal, sizeof(membership.id.internal))));
    }
    memberships.push_back(membership);
  }
  for (Membership& membership : memberships) {
    if (membership.rank == 0) continue;
    const plan::CommunicatorSpec& spec = specs[membership.index];
    ASSIGN_OR_RETURN(const std::string id,
                     rendezvous.GetFrom(spec.ranks[0], key(membership.index), deadline));
    if (id.size() != sizeof(membership.id.internal))
      return absl::InternalError(
          absl::StrCat("the id of ", spec.name, " has ", id.size(), " bytes"));
    std::memcpy(membership.id.internal, id.data(), id.size());
  }
  return memberships;
}

absl::StatusOr<std::shared_ptr<NcclHandle>> MakeHandle(const WorldOptions& options) {
  auto handle = std::make_shared<NcclHandle>();
  handle->release_timeout = options.release_timeout;
  int least = 0, greatest = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&handle->device), "device"));
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities"));
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&handle->stream, cudaStreamNonBlocking, greatest), "stream"));
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&handle->before, cudaEventDisableTiming), "event"));
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&handle->begun, cudaEventDisableTiming), "event"));
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&handle->after, cudaEventDisableTiming), "event"));
  return handle;
}

// One use of each kind that the communicator will see. `memory` holds 2 * size * kWarmUpCount
// floats.
absl::Status WarmUp(NcclCommunicator& group, plan::CommunicatorSpec::Use use,
                    absl::Span<const int32_t> peers, float* memory, Deadline deadline) {
  using Use = plan::CommunicatorSpec::Use;
  const int32_t size = group.size();
  float* received = memory + size * kWarmUpCount;
  if (use != Use::kForward && use != Use::kBackward) {
    RETURN_IF_ERROR(group.AllReduceSum(memory, kWarmUpCount, DType::kFp32));
    RETURN_IF_ERROR(group.ReduceScatterSum(memory, received, kWarmUpCount, DType::kFp32));
    RETURN_IF_ERROR(group.AllGather(memory, received, kWarmUpCount, DType::kFp32));
  }
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (const int32_t peer : peers) {
    sends.push_back({peer, memory + peer * kWarmUpCount, kWarmUpCount * 4});
    receives.push_back({peer, received + peer * kWarmUpCount, kWarmUpCount * 4});
  }
  RETURN_IF_ERROR(group.Exchange(sends, receives));
  return group.Drain(deadline);
}

bool HasMessages(const plan::CommunicatorSpec& spec) {
  using Use = plan::CommunicatorSpec::Use;
  return spec.use == Use::kForward || spec.use == Use::kBackward;
}

// Device memory for the time of the set-up. It is kept for the next one: to free memory waits for
// the device, and with it for kernels that may be waiting for peers.
class ScratchMemory {
 public:
  ~ScratchMemory() {
    if (block_.memory == nullptr) return;
    MutexLock lock(&TheKept().mutex);
    TheKept().blocks.push_back(block_);
  }
  absl::Status Allocate(int64_t bytes) {
    {
      MutexLock lock(&TheKept().mutex);
      std::vector<Block>& blocks = TheKept().blocks;
      const auto fits = std::find_if(blocks.begin(), blocks.end(),
                                     [bytes](const Block& block) { return block.bytes >= bytes; });
      if (fits != blocks.end()) {
        block_ = *fits;
        blocks.erase(fits);
        return absl::OkStatus();
      }
    }
    bytes = std::max(bytes, kBytesMin);
    RETURN_IF_ERROR(CudaStatus(cudaMalloc(&block_.memory, static_cast<size_t>(bytes)), "scratch"));
    block_.bytes = bytes;
    return absl::OkStatus();
  }
  float* floats() const { return static_cast<float*>(block_.memory); }

 private:
  static constexpr int64_t kBytesMin = 1 << 20;
  struct Block {
    void* memory = nullptr;
    int64_t bytes = 0;
  };
  // Of the one device of this process.
  struct Kept {
    Mutex mutex;
    std::vector<Block> blocks ABSL_GUARDED_BY(mutex);
  };
  static Kept& TheKept() {
    static auto* kept = new Kept;  // outlives every thread
    return *kept;
  }

  Block block_;
};

// The communicators of this rank while they are made, in the order of their memberships.
class NcclSetup {
 public:
  NcclSetup(absl::Span<const plan::CommunicatorSpec> specs, std::vector<Membership> memberships,
            const WorldOptions& options, Deadline deadline)
      : specs_(specs),
        memberships_(std::move(memberships)),
        options_(options),
        deadline_(deadline) {}

  // Fills in those of `result` of which this rank is a member; none is connected.
  absl::Status Make(Communicators& result);
  // Meets those whose messages this rank receives.
  absl::Status MeetSenders(Rank self, int32_t world, Rendezvous& rendezvous);
  // Creates all of them in one group.
  absl::Status Create();
  // Uses each once.
  absl::Status UseOnce();
  // Once every peer has been heard of: receives wait for signals from now on.
  void SetSignals();

  const std::vector<NcclCommunicator*>& groups() const { return groups_; }

 private:
  // Between them nobody gives back what NCCL is about to write to. Errors: why one was aborted.
  absl::Status BeginCreating();
  void EndCreating();
  // All are created: from here on each is aborted by itself.
  void Ungroup();
  const plan::CommunicatorSpec& SpecOf(size_t i) const { return specs_[memberships_[i].index]; }
  // With whom this rank exchanges messages.
  std::vector<int32_t> PeersOf(size_t i) const;

  const absl::Span<const plan::CommunicatorSpec> specs_;
  const std::vector<Membership> memberships_;
  const WorldOptions& options_;
  const Deadline deadline_;
  std::vector<NcclCommunicator*> groups_;
  std::vector<std::shared_ptr<NcclHandle>> handles_;
  int64_t scratch_count_ = 0;
  ScratchMemory scratch_;
  std::shared_ptr<NcclSignalMemory> signals_;
};

std::vector<int32_t> NcclSetup::PeersOf(size_t i) const {
  if (!options_.peers.empty()) return options_.peers[memberships_[i].index];
  std::vector<int32_t> everybody;
  for (int32_t peer = 0; peer < groups_[i]->size(); ++peer) {
    if (peer != groups_[i]->rank()) everybody.push_back(peer);
  }
  return everybody;
}

absl::Status NcclSetup::Make(Communicators& result) {
  for (const Membership& membership : memberships_) {
    const plan::CommunicatorSpec& spec = specs_[membership.index];
    ASSIGN_OR_RETURN(std::shared_ptr<NcclHandle> handle, MakeHandle(options_));
    handle->name = spec.name;
    const auto size = static_cast<int32_t>(spec.ranks.size());
    auto group =
        std::make_unique<NcclCommunicator>(handle, spec.name, membership.rank, size, options_);
    groups_.push_back(group.get());
    handles_.push_back(std::move(handle));
    result[membership.index] = std::move(group);
    scratch_count_ += 2 * size * kWarmUpCount;
  }
  return groups_.empty() ? absl::OkStatus() : scratch_.Allocate(scratch_count_ * 4);
}

absl::Status NcclSetup::MeetSenders(Rank self, int32_t world, Rendezvous& rendezvous) {
  std::set<Rank> peers;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!HasMessages(SpecOf(i))) continue;
    for (const int32_t peer : PeersOf(i)) peers.insert(SpecOf(i).ranks[static_cast<size_t>(peer)]);
  }
  if (peers.empty()) return absl::OkStatus();
  const auto count = static_cast<int32_t>(std::count_if(specs_.begin(), specs_.end(), HasMessages));
  ASSIGN_OR_RETURN(signals_,
                   NcclSignalMemory::Meet(self, world, count, peers, rendezvous, deadline_));
  return absl::OkStatus();
}

absl::Status NcclSetup::BeginCreating() {
  const auto group_abort = std::make_shared<Mutex>();
  for (const std::shared_ptr<NcclHandle>& handle : handles_) {
    MutexLock lock(&handle->mutex);
    if (!handle->failure.ok()) return handle->failure;
    handle->creating = true;
    handle->group_abort = group_abort;
  }
  return absl::OkStatus();
}

void NcclSetup::EndCreating() {
  for (const std::shared_ptr<NcclHandle>& handle : handles_) {
    MutexLock lock(&handle->mutex);
    handle->creating = false;
    handle->created.SignalAll();
  }
}

void NcclSetup::Ungroup() {
  for (const std::shared_ptr<NcclHandle>& handle : handles_) {
    MutexLock lock(&handle->mutex);
    handle->group_abort = nullptr;
  }
}

absl::Status NcclSetup::Create() {
  std::vector<ncclConfig_t> configs;
  configs.reserve(memberships_.size());
  const absl::Cleanup created_or_not = [this] { EndCreating(); };
  RETURN_IF_ERROR(BeginCreating());
  RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), "create"));
  ncclResult_t created = ncclSuccess;
  for (size_t i = 0; i < memberships_.size(); ++i) {
    const Membership& membership = memberships_[i];
    configs.push_back(ConfigOf(SpecOf(i), *handles_[i], options_));
    const ncclResult_t one = ncclCommInitRankConfig(
        &handles_[i]->comm, groups_[i]->size(), membership.id, membership.rank, &configs.back());
    if (one != ncclSuccess && one != ncclInProgress && created == ncclSuccess) created = one;
  }
  const ncclResult_t ended = ncclGroupEnd();
  if (created == ncclSuccess && ended != ncclInProgress) created = ended;
  RETURN_IF_ERROR(NcclStatus(created, "create"));
  EndCreating();  // from here on an abort ends the creation
  for (size_t i = 0; i < groups_.size(); ++i) {
    RETURN_IF_ERROR(groups_[i]->Settle(ncclInProgress, deadline_,
                                       absl::StrCat("creating communicator ", SpecOf(i).name)));
  }
  Ungroup();
  return absl::OkStatus();
}

absl::Status NcclSetup::UseOnce() {
  std::vector<absl::Status> statuses(groups_.size());
  std::vector<std::thread> threads;
  float* memory = scratch_.floats();
  for (size_t i = 0; i < groups_.size(); ++i) {
    threads.emplace_back([this, &status = statuses[i], i, memory] {
      cudaSetDevice(handles_[i]->device);
      status = WarmUp(*groups_[i], SpecOf(i).use, PeersOf(i), memory, deadline_);
    });
    memory += 2 * groups_[i]->size() * kWarmUpCount;
  }
  for (std::thread& thread : threads) thread.join();
  for (absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

void NcclSetup::SetSignals() {
  if (signals_ == nullptr) return;
  signals_->Settled();
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!HasMessages(SpecOf(i))) continue;
    const auto end = specs_.begin() + static_cast<std::ptrdiff_t>(memberships_[i].index);
    const auto group = static_cast<int32_t>(std::count_if(specs_.begin(), end, HasMessages));
    groups_[i]->SetSignals(std::make_unique<NcclSignals>(signals_, group, SpecOf(i).ranks));
  }
}

}  // namespace

absl::StatusOr<Communicators> ConnectNccl(absl::Span<const plan::CommunicatorSpec> specs, Rank self,
                                          int32_t world, Rendezvous& rendezvous,
                                          const WorldOptions& options) {
  if (self.value < 0 || self.value >= world) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", self.value, " of a world of ", world));
  }
  if (!options.peers.empty() && options.peers.size() != specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "peers on ", options.peers.size(), " communicators, of which there are ", specs.size()));
  }
  SetEnvironment(options.interface_address);
  const Deadline deadline = DeadlineIn(options.setup_timeout);
  // What is made hangs beside kernels that nobody has stopped.
  Releases::OfProcess().AwaitStops(deadline);
  ASSIGN_OR_RETURN(std::vector<Membership> memberships,
                   MeetGroups(specs, self, rendezvous, deadline));
  Communicators result(specs.size());
  NcclSetup setup(specs, std::move(memberships), options, deadline);
  RETURN_IF_ERROR(setup.Make(result));
  if (setup.groups().empty()) return result;
  RETURN_IF_ERROR(setup.MeetSenders(self, world, rendezvous));

  // On an error past this point, dropping `result` aborts in the background what was begun.
  const auto abort_all = [&setup](const absl::Status& reason) {
    for (NcclCommunicator* group : setup.groups()) group->Abort(reason);
  };
  const absl::Time begin = absl::Now();
  absl::Time created = begin;
  absl::Status status;
  std::optional<PeerKernels> first_use;
  {
    const std::stop_callback interrupt(options.stop, [&abort_all] {
      abort_all(absl::CancelledError("asked to stop while connecting"));
    });
    status = setup.Create();
    created = absl::Now();
    first_use.emplace();
    if (status.ok()) status = setup.UseOnce();
  }
  if (!status.ok()) {
    abort_all(status);
    // Before the scratch memory goes.
    Releases::OfProcess().AwaitStops(DeadlineIn(options.release_timeout));
    return Annotate(status, "connecting over NCCL");
  }
  setup.SetSignals();
  const absl::Time now = absl::Now();
  std::fprintf(stderr,
               "%s NCCL: %d communicators made within %s, of which %s for their first use\n",
               absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone()).c_str(),
               static_cast<int>(setup.groups().size()), absl::FormatDuration(now - begin).c_str(),
               absl::FormatDuration(now - created).c_str());
  return result;
}

}  // namespace phalanx::comm
