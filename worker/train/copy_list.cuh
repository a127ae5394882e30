// worker/train/copy_list.cuh: the launch of the CUDA kernel behind copy_list.h, without LibTorch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace phalanx::train {

// Piece i is table[3 i + 2] bytes, from address table[3 i + 1] to table[3 i]; `table` in device
// memory. Pieces that are written overlap nothing. Enqueues on `stream` and returns.
void LaunchCopyList(const int64_t* table, int64_t pieces, cudaStream_t stream);

}  // namespace phalanx::train
