// Copies of a list on a GPU are those that the host makes, whatever their alignment and length.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ranks.h"
#include "worker/train/copy_list.h"

namespace phalanx::train {
namespace {

struct Piece {
  int64_t to = 0, from = 0, count = 0;
};

std::string PiecesAreCopied() {
  const auto device = at::Device(at::kCUDA, 0);
  const at::Tensor from = at::arange(2'000'000).remainder(251).to(at::kByte);
  const at::Tensor from_on_cuda = from.to(device);
  for (const int64_t unit : {1, 4, 16}) {
    at::Tensor to = at::zeros_like(from), to_on_cuda = to.to(device);
    CopyList on_cpu, on_cuda;
    for (const Piece& piece :
         {Piece{3 * unit, 5 * unit, unit}, Piece{5 * unit, 70 * unit, 33 * unit},
          Piece{1024, 2048, 1'600'000}}) {
      on_cpu.Add(to, piece.to, from.narrow(0, piece.from, piece.count));
      on_cuda.Add(to_on_cuda, piece.to, from_on_cuda.narrow(0, piece.from, piece.count));
    }
    on_cpu.Run();
    on_cuda.Run();
    if (!to_on_cuda.cpu().equal(to)) return absl::StrCat("in units of ", unit);
  }
  return "fine";
}

TEST(CopyListCudaTest, PiecesOfEveryAlignment_AreCopiedAsOnTheCpu) {
  if (gpu::DeviceCount() < 1) GTEST_SKIP() << "needs a GPU; there is none";
  const auto reports = gpu::RunRanks(1, /*seconds_max=*/120,
                                     [](const gpu::ForkedRank&) { return PiecesAreCopied(); });
  EXPECT_EQ(reports, std::vector<std::string>{"fine"});
}

}  // namespace
}  // namespace phalanx::train
