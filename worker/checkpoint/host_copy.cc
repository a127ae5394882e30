#include "worker/checkpoint/host_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/shares.h"
#include "worker/checkpoint/host_load.h"

namespace phalanx::checkpoint {

static_assert(kHostCopyPage == plan::kHostHeaderBytes);

std::vector<Section> SectionsInHostMemory(const plan::Plan& plan, train::TrainingState& state) {
  std::vector<Section> sections;
  if (!plan::CopiesToHost(plan)) return sections;
  for (Section& section : SectionsToWrite(plan, state)) {
    if (section.block != nullptr) sections.push_back(std::move(section));
  }
  return sections;
}

int64_t HostCopy::BytesNeeded(const plan::Plan& plan, train::TrainingState& state) {
  const std::vector<Section> sections = SectionsInHostMemory(plan, state);
  return sections.empty() ? 0 : kHostCopyPage + Snapshot::BytesOf(sections);
}

std::unique_ptr<HostCopy> HostCopy::Create(const plan::Plan& plan, train::TrainingState& state,
                                           const Identity& identity, Mappings buffers) {
  std::unique_ptr<HostCopy> copy(new HostCopy(plan, state, identity, BytesNeeded(plan, state)));
  for (size_t i = 0; i < copy->buffers_.size(); ++i) {
    Buffer& buffer = copy->buffers_[i];
    buffer.mapping = std::move(buffers.at(i));
    buffer.snapshot =
        Snapshot::Into(*buffer.mapping, kHostCopyPage, state, SectionsInHostMemory(plan, state));
  }
  return copy;
}

absl::StatusOr<std::unique_ptr<HostCopy>> HostCopy::Create(const plan::Plan& plan,
                                                           train::TrainingState& state,
                                                           const Identity& identity,
                                                           std::array<UniqueFd, 2> buffers) {
  Mappings mappings;
  for (const UniqueFd& fd : buffers) {
    ASSIGN_OR_RETURN(
        mappings.emplace_back(),
        PinnedMapping::Map(fd.get(), BytesNeeded(plan, state), PinningOf(state.options().device)));
    // Every page is there before the first step.
    RETURN_IF_ERROR(mappings.back()->Pin([] { return true; }));
  }
  return Create(plan, state, identity, std::move(mappings));
}

Mappings HostCopy::TakeMemory(std::unique_ptr<HostCopy> copy) {
  Mappings mappings;
  if (copy == nullptr) return mappings;
  for (Buffer& buffer : copy->buffers_) {
    buffer.snapshot = nullptr;  // it writes there
    mappings.push_back(std::move(buffer.mapping));
  }
  return mappings;
}

void HostCopy::Use() {
  used_ = true;
  state_.set_copied([this] { return copied(); });
}

HostCopy::HostCopy(const plan::Plan& plan, train::TrainingState& state, const Identity& identity,
                   int64_t bytes)
    : state_(state),
      identity_(identity),
      every_(plan.spec.recovery.state_every),
      plan_(DigestInHeader(plan)),
      bytes_(bytes) {}

HostCopy::~HostCopy() {
  for (Buffer& buffer : buffers_) buffer.snapshot = nullptr;  // before what it writes to
  if (used_) state_.set_copied(nullptr);
}

void HostCopy::Look() {
  if (under_way_ < 0) return;
  Buffer& buffer = buffers_[static_cast<size_t>(under_way_)];
  const absl::StatusOr<bool> done = buffer.snapshot->Done();
  if (done.ok() && !*done) return;
  under_way_ = -1;
  failed_ = done.status();
  if (!failed_.ok()) return;
  next_.checksum = ChecksumOf(next_);
  std::memcpy(buffer.memory(), &next_, sizeof next_);
  buffer.step = next_.step;
}

int64_t HostCopy::copied() {
  Look();
  return std::max(buffers_[0].step, buffers_[1].step);
}

absl::Status HostCopy::AfterStep(Epoch epoch) {
  Look();
  RETURN_IF_ERROR(std::exchange(failed_, absl::OkStatus()));
  const train::Decision& decided = state_.decided();
  if (under_way_ >= 0 || decided.step % every_ != 0) return absl::OkStatus();
  const size_t older = buffers_[0].step <= buffers_[1].step ? 0 : 1;
  // The newer one is what everybody can go back to, or the older one is still needed. All ranks
  // read the same here, so all copy the same steps: not before all have their buffers.
  if (buffers_[1 - older].step > decided.copied) return absl::OkStatus();
  Buffer& buffer = buffers_[older];
  std::memset(buffer.memory(), 0, sizeof next_);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // before the first byte of the copy
  buffer.step = 0;
  next_ = {.store = identity_.store,
           .job = identity_.job,
           .epoch = epoch.value,
           .plan = plan_,
           .rank = identity_.rank.value,
           .bytes = bytes_ - kHostCopyPage};
  SetStart({.decision = decided, .counts = state_.counts()}, &next_);
  std::memcpy(next_.magic, kHostCopyMagic, sizeof next_.magic);
  under_way_ = static_cast<int32_t>(older);
  return buffer.snapshot->Begin();
}

}  // namespace phalanx::checkpoint
