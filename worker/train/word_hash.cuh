// worker/train/word_hash.cuh: launch of the CUDA kernel behind hashes of messages, without
// LibTorch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace phalanx::train {

// Adds to *sum, which wraps, the hash of `bytes` bytes: each word of eight is mixed with its place
// and scrambled, and so is each byte of what is left behind the last word. `data` begins at an
// 8-byte boundary. Enqueues on `stream`; errors show up at the next CUDA call.
void LaunchWordHash(const void* data, int64_t bytes, int64_t* sum, cudaStream_t stream);

}  // namespace phalanx::train
