#include "worker/train/items_ahead.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/core/StreamGuard.h"
#include "core/base/status.h"
#include "core/posix/activity.h"
#include "worker/data/data_set.h"
#include "worker/train/batches.h"

namespace phalanx::train {
namespace {

at::ScalarType ScalarTypeOf(data::ValueType type) {
  return type == data::ValueType::kBf16 ? at::kBFloat16 : at::kFloat;
}

std::vector<int64_t> SizesOf(const data::Encoder& encoder, int64_t items) {
  if (encoder.kind == data::ItemKind::kImage)
    return {items, 3, encoder.image_size, encoder.image_size};
  return {items, encoder.mel_bins, encoder.frames};
}

bool IsStored(const data::Sample::Items& items, size_t item) {
  return item < items.stored.size() && items.stored[item] != nullptr;
}

}  // namespace

std::shared_ptr<data::ItemMemory> PinnedItemMemory(at::ScalarType compute) {
  const auto pin = [](size_t bytes) -> std::shared_ptr<std::byte> {
    try {
      const auto memory = std::make_shared<const at::Tensor>(at::empty(
          {static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
      return {memory, static_cast<std::byte*>(memory->mutable_data_ptr())};
    } catch (const c10::Error& error) {
      static std::atomic<bool> told = false;
      if (!told.exchange(true))
        spdlog::warn(
            "{} bytes of host memory could not be pinned: items are decoded beside it, in fp32, "
            "and take longer to the device: {}",
            bytes, error.what_without_backtrace());
      return nullptr;
    }
  };
  return std::make_shared<data::ItemMemory>(
      compute == at::kBFloat16 ? data::ValueType::kBf16 : data::ValueType::kFp32, pin);
}

ItemsAhead::ItemsAhead(const data::ItemShapes& shapes, SampleSource& source, at::Device device,
                       at::ScalarType compute)
    : shapes_(shapes),
      source_(source),
      device_(device),
      compute_(compute),
      stream_(TakeStream(device)) {}

ItemsAhead::~ItemsAhead() {
  // Behind an epoch the device has done all that it was given. A device that has failed says
  // nothing, and its process ends.
  bool done = false;
  try {
    done = read_.empty() || read_.back().until.Passed();
  } catch (const c10::Error&) {
  }
  if (!done) static_cast<void>(new std::deque<Read>(std::move(read_)));
}

void ItemsAhead::Expect(const std::vector<Lane>& lanes) {
  std::map<int32_t, std::deque<Expected>> before = std::exchange(expected_, {});
  for (const Lane& lane : lanes) {
    std::deque<Expected>& of_module = expected_[lane.module];
    Expected& next = of_module.emplace_back(Expected{lane, std::nullopt});
    if (of_module.size() > 1) continue;
    std::deque<Expected>& old = before[lane.module];
    if (!old.empty() && old.front().lane == lane) next.fetched = std::move(old.front().fetched);
  }
}

bool ItemsAhead::HasFetched(const Lane& lane) const {
  const auto found = expected_.find(lane.module);
  return found != expected_.end() && !found->second.empty() &&
         found->second.front().fetched.has_value() && found->second.front().lane == lane;
}

bool ItemsAhead::IsReady(const Lane& lane) const {
  for (size_t i = 0; i < lane.samples.size(); ++i) {
    if (lane.items[i] > 0 && !source_.IsReady(lane.samples[i])) return false;
  }
  return true;
}

void ItemsAhead::Fetch() {
  for (auto& [module, lanes] : expected_) {
    if (lanes.empty() || lanes.front().fetched.has_value() || !IsReady(lanes.front().lane))
      continue;
    // What it has taken of the source is gone, also where it has failed.
    lanes.front().fetched = Copy(lanes.front().lane);
  }
}

absl::StatusOr<ItemsAhead::Items> ItemsAhead::Take(const Lane& lane) {
  std::optional<absl::StatusOr<Fetched>> taken;
  if (const auto found = expected_.find(lane.module); found != expected_.end()) {
    std::deque<Expected>& lanes = found->second;
    const auto next = std::find_if(lanes.begin(), lanes.end(),
                                   [&](const Expected& expected) { return expected.lane == lane; });
    if (next != lanes.end()) {
      taken = std::move(next->fetched);
      const bool keeps = next != lanes.begin() && lanes.front().fetched.has_value();
      lanes.erase(lanes.begin() + (keeps ? 1 : 0), std::next(next));
    }
  }
  if (!taken.has_value()) taken = Copy(lane);
  ASSIGN_OR_RETURN(Fetched fetched, *std::move(taken));
  fetched.there.Await();
  Items items = std::move(fetched.items);
  if (!items.values.defined()) return items;
  if (stream_.get().has_value()) lent_.push_back(items.values);
  items.values = items.values.to(compute_);
  return items;
}

absl::StatusOr<ItemsAhead::Fetched> ItemsAhead::Copy(const Lane& lane) {
  LetGo();
  Fetched result;
  Items& items = result.items;
  items.valid.assign(lane.samples.size(), 1);
  Samples samples;
  const auto encoder = static_cast<size_t>(shapes_.EncoderOf(lane.module));
  const auto values = static_cast<size_t>(shapes_.encoders[encoder].values());
  bool stored = true;
  for (size_t i = 0; i < lane.samples.size(); ++i) {
    if (lane.items[i] == 0) continue;
    std::shared_ptr<const data::Sample> sample;
    {
      const Waiting for_data;
      ASSIGN_OR_RETURN(sample, source_.Take(lane.samples[i]));
    }
    const data::Sample::Items& of = sample->encoders[encoder];
    if (static_cast<int64_t>(of.values.size()) != lane.items[i]) {
      return absl::InternalError(absl::StrCat(source_.NameOf(lane.samples[i]), " has ",
                                              of.values.size(), " items, its index says ",
                                              lane.items[i]));
    }
    for (size_t item = 0; item < of.values.size(); ++item) {
      if (IsStored(of, item)) continue;
      stored = false;
      if (of.values[item].size() == values) continue;
      return absl::InternalError(
          absl::StrCat(source_.NameOf(lane.samples[i]), " has an item of another size"));
    }
    if (sample->corrupt) {
      items.valid[i] = 0;
      items.corrupt.push_back({lane.samples[i], sample->corrupt_reason});
    }
    samples.push_back(std::move(sample));
  }
  const int64_t count = std::accumulate(lane.items.begin(), lane.items.end(), int64_t{0});
  if (count == 0) return result;
  const c10::OptionalStreamGuard guard(stream_.get());
  items.values = stored ? CopyStored(encoder, samples, count) : CopyValues(encoder, samples, count);
  result.there = Moment::Now(device_);
  if (stream_.get().has_value()) read_.push_back({std::move(samples), result.there});
  return result;
}

at::Tensor ItemsAhead::CopyStored(size_t encoder, const Samples& samples, int64_t count) const {
  const at::TensorOptions type =
      at::TensorOptions().dtype(ScalarTypeOf(samples[0]->encoders[encoder].stored_type));
  const std::vector<int64_t> sizes = SizesOf(shapes_.encoders[encoder], count);
  const at::Tensor to = at::empty(sizes, type.device(device_));
  const at::IntArrayRef of_one = at::IntArrayRef(sizes).slice(1);
  int64_t item = 0;
  for (const auto& sample : samples) {
    for (const std::shared_ptr<const std::byte>& block : sample->encoders[encoder].stored) {
      const at::Tensor from = at::from_blob(const_cast<std::byte*>(block.get()), of_one, type);
      to.select(0, item++).copy_(from, /*non_blocking=*/true);
    }
  }
  return to;
}

at::Tensor ItemsAhead::CopyValues(size_t encoder, const Samples& samples, int64_t count) const {
  const int64_t values = shapes_.encoders[encoder].values();
  const at::Tensor host =
      at::empty(SizesOf(shapes_.encoders[encoder], count),
                at::TensorOptions().dtype(at::kFloat).pinned_memory(device_.is_cuda()));
  auto* to = host.mutable_data_ptr<float>();
  for (const auto& sample : samples) {
    const data::Sample::Items& of = sample->encoders[encoder];
    for (size_t i = 0; i < of.values.size(); ++i, to += values) {
      if (!IsStored(of, i)) {
        std::copy(of.values[i].begin(), of.values[i].end(), to);
        continue;
      }
      // There was memory left for this one, but not for another.
      const at::TensorOptions type = at::TensorOptions().dtype(ScalarTypeOf(of.stored_type));
      at::from_blob(to, {values}, at::TensorOptions().dtype(at::kFloat))
          .copy_(at::from_blob(const_cast<std::byte*>(of.stored[i].get()), {values}, type));
    }
  }
  return device_.is_cpu() ? host : host.to(device_, /*non_blocking=*/true);
}

void ItemsAhead::LetGo() {
  while (!read_.empty() && read_.front().until.Passed()) read_.pop_front();
  const auto unnamed = std::partition(lent_.begin(), lent_.end(), IsNamedElsewhere);
  if (unnamed != lent_.end()) {
    used_.Hold({std::make_move_iterator(unnamed), std::make_move_iterator(lent_.end())},
               Moment::Now(device_));
    lent_.erase(unnamed, lent_.end());
  }
  used_.LetGo();
}

}  // namespace phalanx::train
