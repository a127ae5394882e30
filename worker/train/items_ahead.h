// worker/train/items_ahead.h: pixels and sounds on their way to the device, a microbatch ahead.
//
// On CUDA they are copied on a stream of their own, from memory that the device knows and that the
// threads which decode have filled (PinnedItemMemory); the stream of the passes waits for the copy.
// Of each encoder the next microbatch is fetched as soon as it is decoded, while passes of others
// run. What is fetched is not taken from the source again.
//
// What a copy reads stays until the device has done it, and memory of the device until the passes
// that name it are done; both were allocated for the copies' stream, and so come back to it alone.
// On CPU nothing is ahead: items are gathered when they are taken.
//
// Not thread-safe. The current stream of the caller is that of the passes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/item_memory.h"
#include "worker/data/job_data.h"
#include "worker/device/cuda_device.h"
#include "worker/train/message_stream.h"

namespace phalanx::train {

class SampleSource;

struct CorruptSample {
  int64_t sample = 0;
  std::string reason;
};

// For LoaderOptions::memory of a rank on CUDA: pinned, in the compute type if that is bf16, which
// rounds as the device would, else fp32. LibTorch keeps what it has pinned.
std::shared_ptr<data::ItemMemory> PinnedItemMemory(at::ScalarType compute);

class ItemsAhead {
 public:
  // What the first part of an encoder reads of one microbatch.
  struct Lane {
    int32_t module = 0;
    std::vector<int64_t> samples;  // numbers in the data set
    std::vector<int64_t> items;    // of each, those that the module reads
    friend bool operator==(const Lane&, const Lane&) = default;
  };
  struct Items {
    // [items, 3, side, side] or [items, mel bins, frames] of the compute type; undefined: none.
    at::Tensor values;
    std::vector<float> valid;  // of each sample: 0 where an item did not decode
    std::vector<CorruptSample> corrupt;
  };

  // Everything given by reference outlives it.
  ItemsAhead(const data::ItemShapes& shapes, SampleSource& source, at::Device device,
             at::ScalarType compute);
  // Copies may be under way: what they read stays for good then.
  ~ItemsAhead();
  ItemsAhead(const ItemsAhead&) = delete;

  // Lanes to come, those of a module in the order of their use, instead of those that were said to
  // come. What has been fetched stays if it is a module's first.
  void Expect(const std::vector<Lane>& lanes);
  // Whether it comes next of its module and has been fetched, or could not be.
  bool HasFetched(const Lane& lane) const;
  // Fetches the next lane of each module, where it is decoded. Does not wait; errors show up when
  // the lane is taken.
  void Fetch();
  // A lane, whether it was expected or not: waits for its data; the current stream waits for the
  // copy. Errors: those of the source, also where it gave them to Fetch(), once; Internal if
  // samples are not as the lane says.
  //
  // Of those expected of the module, lanes before it are passed over: they are not fetched any
  // more. One that has been stays, and is the only one, until it is taken or not expected.
  absl::StatusOr<Items> Take(const Lane& lane);

 private:
  using Samples = std::vector<std::shared_ptr<const data::Sample>>;
  // On its way, or there.
  struct Fetched {
    Items items;
    Moment there;
  };
  struct Expected {
    Lane lane;
    std::optional<absl::StatusOr<Fetched>> fetched;
  };
  // What a copy reads.
  struct Read {
    Samples samples;
    Moment until;
  };

  bool IsReady(const Lane& lane) const;
  // Takes samples that have items, and enqueues the copy of these.
  absl::StatusOr<Fetched> Copy(const Lane& lane);
  // The `count` items of `samples` on the device: those that are all in LoaderOptions::memory, as
  // they are there, and others, in fp32.
  at::Tensor CopyStored(size_t encoder, const Samples& samples, int64_t count) const;
  at::Tensor CopyValues(size_t encoder, const Samples& samples, int64_t count) const;
  // Lets go of what neither copies nor passes use any more.
  void LetGo();

  const data::ItemShapes& shapes_;
  SampleSource& source_;
  const at::Device device_;
  const at::ScalarType compute_;
  const device::OwnedStream stream_;                  // none on CPU
  std::map<int32_t, std::deque<Expected>> expected_;  // by module
  std::deque<Read> read_;                             // in the order of copies
  std::vector<at::Tensor> lent_;                      // that passes may name
  HeldMemory used_;
};

}  // namespace phalanx::train
