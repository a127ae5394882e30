// The hash of a message on CUDA is that of its words, byte by byte behind the last one, and sees
// every bit and every place.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/ranks.h"
#include "worker/train/word_hash.cuh"

namespace phalanx::train {
namespace {

uint64_t Scramble(uint64_t value, uint64_t place) {
  uint64_t mixed = value + (place + 1) * 0x1E3779B97F4A7C15;
  mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9;
  return mixed ^ (mixed >> 32);
}

uint64_t HashOnHost(const std::vector<uint8_t>& bytes) {
  const size_t words = bytes.size() / 8;
  uint64_t sum = 0;
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, sizeof word);
    sum += Scramble(word, i);
  }
  for (size_t i = 8 * words; i < bytes.size(); ++i) sum += Scramble(bytes[i], i - 8 * words);
  return sum;
}

uint64_t HashOnDevice(const std::vector<uint8_t>& bytes) {
  const auto on_host = at::from_blob(const_cast<uint8_t*>(bytes.data()),
                                     {static_cast<int64_t>(bytes.size())}, at::kByte);
  const at::Tensor there = on_host.to(at::Device(at::kCUDA, 0));
  const at::Tensor sum = at::zeros({1}, there.options().dtype(at::kLong));
  LaunchWordHash(there.const_data_ptr(), there.numel(), sum.mutable_data_ptr<int64_t>(), nullptr);
  return static_cast<uint64_t>(sum.item<int64_t>());
}

std::string AllSizesAreHashed() {
  uint64_t next = 1;
  for (const size_t size : {1u, 7u, 8u, 9u, 4096u, 100'003u, 9'000'001u}) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes)
      byte =
          static_cast<uint8_t>((next = next * 6364136223846793005u + 1442695040888963407u) >> 56);
    const uint64_t hash = HashOnDevice(bytes);
    if (hash != HashOnHost(bytes)) return "of " + std::to_string(size) + " bytes it is another";
    bytes[size / 2] ^= 0x10;
    if (HashOnDevice(bytes) == hash) return "a changed bit is not seen";
  }
  return "fine";
}

TEST(WordHashCudaTest, MessagesOfEverySize_AreHashedAsOnTheHost) {
  if (gpu::DeviceCount() < 1) GTEST_SKIP() << "needs a GPU; there is none";
  const std::vector<std::string> said = gpu::RunRanks(
      1, /*seconds_max=*/60, [](const gpu::ForkedRank&) { return AllSizesAreHashed(); });
  EXPECT_EQ(said[0], "fine");
}

}  // namespace
}  // namespace phalanx::train
