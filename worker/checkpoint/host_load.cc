#include "worker/checkpoint/host_load.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint_io/checkpoints.h"
#include "worker/checkpoint/host_copy.h"
#include "worker/checkpoint/loader.h"
#include "worker/checkpoint/sections.h"
#include "worker/model/torch_boundary.h"
#include "worker/train/message_stream.h"

namespace phalanx::checkpoint {
namespace {

constexpr std::chrono::microseconds kLookInterval{200};

bool HasFrozen(train::TrainingState& state) {
  return std::any_of(state.parts().begin(), state.parts().end(), [](const auto& part) {
    return part->parameters().elements > part->parameters().trained_extent;
  });
}

// Of the plan's layout, with what does not train; the rest is to be filled.
absl::StatusOr<std::unique_ptr<train::TrainingState>> StateToFill(
    const plan::Plan& plan, Rank rank, const std::string& checkpoint,
    const train::BufferOptions& options, const std::stop_token& stop,
    const std::vector<std::string>& below) {
  ASSIGN_OR_RETURN(auto state, train::TrainingState::CreateEmpty(plan, rank, options));
  if (!HasFrozen(*state)) return state;
  if (checkpoint.empty()) {
    for (const auto& part : state->parts()) part->Initialise(plan, options.init_threads);
    return state;
  }
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifestOf(checkpoint, below));
  RETURN_IF_ERROR(Load(checkpoint, manifest, plan, *state, options.init_threads, stop, below));
  return state;
}

// Fills sections from where host_copy.h leaves them in `memory`, which stays until the device has
// them; other blocks go.
void FillFrom(const std::byte* memory, const std::vector<Section>& sections,
              train::TrainingState& state) {
  std::set<const train::StateBlock*> filled;
  int64_t next = kHostCopyPage;
  for (const Section& section : sections) {
    const at::Tensor array = at::from_blob(const_cast<std::byte*>(memory + next),
                                           {section.elements}, ScalarTypeOf(section.dtype));
    CopyIn(section, array, memory);
    filled.insert(section.block);
    next += Snapshot::BytesOf({section});
  }
  for (const auto& part : state.parts()) {
    std::vector<train::StateBlock> kept;
    for (train::StateBlock& block : part->blocks()) {
      if (filled.contains(&block)) kept.push_back(std::move(block));
    }
    part->blocks() = std::move(kept);
  }
}

// Until the device has all that was enqueued.
absl::Status AwaitCopies(c10::Device device, const std::stop_token& stop) {
  const train::Moment copied = train::Moment::Now(device);
  while (!copied.Passed()) {
    if (stop.stop_requested()) return absl::CancelledError("asked to stop");
    std::this_thread::sleep_for(kLookInterval);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<train::Start> StartOf(const HostCopyHeader& header) {
  const auto verdict = static_cast<train::Verdict>(header.verdict);
  const bool known = header.verdict == static_cast<int64_t>(train::Verdict::kCommitted) ||
                     header.verdict == static_cast<int64_t>(train::Verdict::kSkipped) ||
                     header.verdict == static_cast<int64_t>(train::Verdict::kEmpty);
  if (!known || header.step < 1) return std::nullopt;
  return train::Start{
      .decision = {.step = header.step,
                   .verdict = verdict,
                   .loss = header.loss,
                   .gradient_norm = header.gradient_norm,
                   .gradient_scale = header.gradient_scale,
                   .counted_tokens = header.counted_tokens,
                   .corrupt_samples = header.corrupt_samples,
                   .volume = {.tokens = header.tokens,
                              .images = header.images,
                              .sounds = header.sounds}},
      .counts = {.updates = header.updates, .skipped_in_a_row = header.skipped_in_a_row}};
}

void SetStart(const train::Start& start, HostCopyHeader* header) {
  const train::Decision& decision = start.decision;
  header->step = decision.step;
  header->verdict = static_cast<int64_t>(decision.verdict);
  header->loss = decision.loss;
  header->gradient_norm = decision.gradient_norm;
  header->gradient_scale = decision.gradient_scale;
  header->counted_tokens = decision.counted_tokens;
  header->corrupt_samples = decision.corrupt_samples;
  header->tokens = decision.volume.tokens;
  header->images = decision.volume.images;
  header->sounds = decision.volume.sounds;
  header->updates = start.counts.updates;
  header->skipped_in_a_row = start.counts.skipped_in_a_row;
}

uint64_t DigestInHeader(const plan::Plan& plan) {
  uint64_t digest = 0;
  return absl::SimpleHexAtoi(plan.digest.substr(0, 16), &digest) ? digest : 0;
}

void HostCopyPair::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

absl::StatusOr<HostCopyPair> HostCopyPair::Map(const Identity& identity, int64_t bytes,
                                               std::array<UniqueFd, 2> buffers) {
  HostCopyPair pair(identity, static_cast<size_t>(bytes));
  for (size_t i = 0; i < buffers.size(); ++i) {
    struct stat info {};
    // What is behind the end of a file cannot be read.
    const bool sound =
        bytes >= kHostCopyPage && fstat(buffers[i].get(), &info) == 0 && info.st_size >= bytes;
    void* memory =
        sound ? mmap(nullptr, pair.bytes_, PROT_READ, MAP_SHARED, buffers[i].get(), 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot map a host buffer of ", bytes,
                                                       " bytes of rank ", identity.rank.value, ": ",
                                                       strerror(errno)));
    }
    pair.buffers_[i] = Memory(static_cast<std::byte*>(memory), Unmap{pair.bytes_});
    pair.fds_[i] = std::move(buffers[i]);
  }
  return pair;
}

bool HostCopyPair::IsMine(const HostCopyHeader& header) const {
  return header.store == identity_.store && header.job == identity_.job &&
         header.epoch == identity_.epoch.value && header.rank == identity_.rank.value &&
         StartOf(header).has_value();
}

std::vector<HostCopyHeader> HostCopyPair::Whole() const {
  std::vector<HostCopyHeader> whole;
  for (const Memory& buffer : buffers_) {
    const auto header = ReadHostCopyHeader({buffer.get(), bytes_});
    if (header.ok() && IsMine(*header)) whole.push_back(*header);
  }
  return whole;
}

absl::StatusOr<HostCopyPair::Buffer> HostCopyPair::BufferOf(int64_t step) const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const std::byte* memory = buffers_[i].get();
    const auto header = ReadHostCopyHeader({memory, bytes_});
    if (!header.ok() || !IsMine(*header) || header->step != step) continue;
    return Buffer{.header = *header,
                  .fd = fds_[i].get(),
                  .bytes = static_cast<int64_t>(bytes_),
                  .memory = memory};
  }
  return absl::DataLossError(absl::StrCat("there is no whole copy of the state of rank ",
                                          rank().value, " of step ", step, " in epoch ",
                                          epoch().value));
}

absl::Status AddCopy(const HostCopyPair& pair, int64_t step, const plan::Plan& plan,
                     const std::string& checkpoint, train::TrainingState& state,
                     const std::vector<std::string>& below, const std::stop_token& stop,
                     const FindMapping& find) {
  ASSIGN_OR_RETURN(const HostCopyPair::Buffer buffer, pair.BufferOf(step));
  if (buffer.header.plan != DigestInHeader(plan)) {
    return absl::DataLossError(absl::StrCat("the copy of the state of rank ", pair.rank().value,
                                            " of step ", step, " is of another plan"));
  }
  const PinnedMapping* mapping = find != nullptr ? find(buffer.fd, buffer.bytes) : nullptr;
  return model::CallTorch("taking a copy of state", [&]() -> absl::Status {
    ASSIGN_OR_RETURN(auto filled,
                     StateToFill(plan, pair.rank(), checkpoint, state.options(), stop, below));
    const std::vector<Section> sections = SectionsInHostMemory(plan, *filled);
    if (buffer.header.bytes != Snapshot::BytesOf(sections)) {
      return absl::DataLossError(absl::StrCat("the copy of the state of rank ", pair.rank().value,
                                              " of step ", step, " has ", buffer.header.bytes,
                                              " bytes, its layout ", Snapshot::BytesOf(sections)));
    }
    FillFrom(mapping != nullptr ? mapping->data() : buffer.memory, sections, *filled);
    RETURN_IF_ERROR(AwaitCopies(state.options().device, stop));
    return state.TakeOver(plan, *filled);
  });
}

absl::Status AddUntrained(const plan::Plan& plan, Rank rank, const std::string& checkpoint,
                          train::TrainingState& state, const std::vector<std::string>& below,
                          const std::stop_token& stop) {
  return model::CallTorch("taking what does not train", [&]() -> absl::Status {
    ASSIGN_OR_RETURN(auto filled,
                     StateToFill(plan, rank, checkpoint, state.options(), stop, below));
    FillFrom(nullptr, {}, *filled);
    return state.TakeOver(plan, *filled);
  });
}

}  // namespace phalanx::checkpoint
