#include "tests/sim/cluster/host_copies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"

namespace phalanx::sim {
namespace {

int64_t StepOf(const CopyPair::Buffer& buffer) { return buffer.whole ? buffer.start.step() : 0; }

}  // namespace

uint64_t FirstBits(const std::string& plan_digest) {
  uint64_t bits = 0;
  return absl::SimpleHexAtoi(plan_digest.substr(0, 16), &bits) ? bits : 0;
}

const CopyPair::Buffer* CopyPair::Find(int64_t step) const {
  for (const Buffer& buffer : buffers) {
    if (buffer.whole && buffer.start.step() == step) return &buffer;
  }
  return nullptr;
}

CopyPairPtr CopyMemory::PairOf(const Owner& owner) {
  CopyPairPtr& pair = pairs_[owner];
  if (pair == nullptr)
    pair = std::make_shared<CopyPair>(CopyPair{.epoch = owner.epoch, .rank = owner.rank});
  return pair;
}

std::vector<CopyPairPtr> CopyMemory::PairsBefore(JobId job, Epoch epoch,
                                                 const plan::RankList& ranks) const {
  std::vector<CopyPairPtr> pairs;
  for (const auto& [owner, pair] : pairs_) {
    const bool wanted = std::find(ranks.begin(), ranks.end(), Rank{owner.rank}) != ranks.end();
    if (wanted && owner.job == job && owner.epoch < epoch) pairs.push_back(pair);
  }
  return pairs;
}

void CopyMemory::FreeBefore(JobId job, Epoch epoch) {
  std::erase_if(pairs_, [&](const auto& entry) {
    return entry.first.job == job && entry.first.epoch < epoch;
  });
}

std::vector<CopyMemory::Owner> CopyMemory::Free(JobId job) {
  std::vector<Owner> freed;
  for (const auto& [owner, pair] : pairs_) {
    if (job == JobId{} || owner.job == job) freed.push_back(owner);
  }
  for (const Owner& owner : freed) pairs_.erase(owner);
  return freed;
}

bool HostCopy::AfterStep(const CopyPair::Buffer& now, int64_t copied) {
  Look();
  if (under_way_ >= 0 || now.start.step() % every_ != 0) return false;
  std::array<CopyPair::Buffer, 2>& buffers = pair_->buffers;
  const size_t older = StepOf(buffers[0]) <= StepOf(buffers[1]) ? 0 : 1;
  if (StepOf(buffers[1 - older]) > copied) return false;  // the older one is still needed
  buffers[older] = now;
  buffers[older].whole = false;
  under_way_ = static_cast<int32_t>(older);
  done_ = false;
  return true;
}

int64_t HostCopy::copied() {
  Look();
  return std::max(StepOf(pair_->buffers[0]), StepOf(pair_->buffers[1]));
}

void HostCopy::Look() {
  if (under_way_ < 0 || !done_) return;
  pair_->buffers[static_cast<size_t>(std::exchange(under_way_, -1))].whole = true;
}

}  // namespace phalanx::sim
