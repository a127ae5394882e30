#include "worker/train/muted.h"

#include <algorithm>
#include <utility>

namespace phalanx::train {
namespace {

class Muted final : public comm::Communicator {
 public:
  Muted(comm::Communicator& inner, const bool& muted) : inner_(inner), muted_(muted) {}
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }
  absl::Status AllReduceSum(void* data, int64_t count, comm::DType dtype) override {
    return muted_ ? absl::OkStatus() : inner_.AllReduceSum(data, count, dtype);
  }
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count,
                                comm::DType dtype) override {
    return muted_ ? absl::OkStatus() : inner_.ReduceScatterSum(in, out, count, dtype);
  }
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override {
    return muted_ ? absl::OkStatus() : inner_.AllGather(in, out, count, dtype);
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    return muted_ ? absl::OkStatus() : inner_.Exchange(sends, receives);
  }
  absl::Status Join() override { return muted_ ? absl::OkStatus() : inner_.Join(); }
  absl::Status Flush() override { return muted_ ? absl::OkStatus() : inner_.Flush(); }
  absl::StatusOr<Point> Mark() override {
    if (!muted_) return inner_.Mark();
    return [] { return absl::OkStatus(); };
  }
  absl::Status Lead() override { return muted_ ? absl::OkStatus() : inner_.Lead(); }
  absl::Status Check() override { return inner_.Check(); }
  void Abort(absl::Status reason) override { inner_.Abort(std::move(reason)); }

 private:
  comm::Communicator& inner_;
  const bool& muted_;
};

class Silent final : public comm::Communicator {
 public:
  Silent(int32_t rank, int32_t size) : rank_(rank), size_(size) {}
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  absl::Status AllReduceSum(void*, int64_t, comm::DType) override { return absl::OkStatus(); }
  absl::Status ReduceScatterSum(const void*, void*, int64_t, comm::DType) override {
    return absl::OkStatus();
  }
  absl::Status AllGather(const void*, void*, int64_t, comm::DType) override {
    return absl::OkStatus();
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing>,
                        absl::Span<const comm::Incoming>) override {
    return absl::OkStatus();
  }
  absl::Status Join() override { return absl::OkStatus(); }
  absl::Status Flush() override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}

 private:
  const int32_t rank_, size_;
};

}  // namespace

comm::Communicators SilentCommunicators(const plan::Plan& plan, Rank rank) {
  comm::Communicators communicators;
  for (const plan::CommunicatorSpec& spec : plan::Communicators(plan)) {
    std::unique_ptr<comm::Communicator>& made = communicators.emplace_back();
    const auto place = std::find(spec.ranks.begin(), spec.ranks.end(), rank);
    if (place != spec.ranks.end()) {
      made = std::make_unique<Silent>(static_cast<int32_t>(place - spec.ranks.begin()),
                                      static_cast<int32_t>(spec.ranks.size()));
    }
  }
  return communicators;
}

std::unique_ptr<comm::Communicator> MakeMuted(comm::Communicator& inner, const bool& muted) {
  return std::make_unique<Muted>(inner, muted);
}

}  // namespace phalanx::train
