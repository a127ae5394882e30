#include "worker/train/copy_list.cuh"

namespace phalanx::train {
namespace {

constexpr int kThreads = 256;

template <typename Unit>
__device__ void CopyPiece(int64_t to, int64_t from, int64_t bytes) {
  auto* out = reinterpret_cast<Unit*>(to);
  const auto* in = reinterpret_cast<const Unit*>(from);
  const auto count = bytes / static_cast<int64_t>(sizeof(Unit));
  for (int64_t i = threadIdx.x; i < count; i += kThreads) out[i] = in[i];
}

// One piece a block, in the widest units that its alignment allows.
__global__ void CopyPieces(const int64_t* table) {
  const int64_t* piece = table + 3 * static_cast<int64_t>(blockIdx.x);
  const int64_t to = piece[0], from = piece[1], bytes = piece[2];
  const int64_t places = to | from | bytes;
  if (places % 16 == 0) {
    CopyPiece<uint4>(to, from, bytes);
  } else if (places % 4 == 0) {
    CopyPiece<uint32_t>(to, from, bytes);
  } else {
    CopyPiece<uint8_t>(to, from, bytes);
  }
}

}  // namespace

void LaunchCopyList(const int64_t* table, int64_t pieces, cudaStream_t stream) {
  if (pieces == 0) return;
  CopyPieces<<<static_cast<unsigned>(pieces), kThreads, 0, stream>>>(table);
}

}  // namespace phalanx::train
