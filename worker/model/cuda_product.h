// worker/model/cuda_product.h: products of matrices on CUDA, by cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/schedule/product_table.h"
#include "worker/model/cuda_kernels.h"

struct cublasLtContext;

namespace phalanx::model::cuda {

// Pointers are to device memory, aligned to 16 bytes, as is each row of a matrix.
struct Product {
  schedule::ProductKey key;
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;                          // bf16, where the key has one
  const float *a_scale = nullptr, *b_scale = nullptr;  // FP8: what 1 stands for
  // Which of the key's sizes counts rows of a microbatch; nullptr: none does.
  int64_t schedule::ProductKey::*rows = nullptr;
};

// Shapes that a thread knows, some 2 KB each; at the bound it forgets all of them. A model of one
// size has a few dozen for each number of rows, and of those there are few (ShapeRows).
inline constexpr size_t kDescribedMax = 4096;

// Microbatches have any number of rows. Products of so many, at least 1, take the algorithm of the
// least number that is none smaller and of which there are only four for each power of two, of 16
// rows on; so their shapes are few, whatever the microbatches.
int64_t ShapeRows(int64_t rows);

// Enqueues it. `algorithm`: of a table; nullptr: the library's first choice for the shape (with
// ShapeRows), asked for once a thread as long as it knows the shape, so equal operands give equal
// bits. `workspace` has algorithm->workspace_bytes, or kProductWorkspaceBytes, at 16 bytes. Returns
// 0 or a cublasStatus_t.
int Multiply(cublasLtContext* handle, const Product& product,
             const schedule::ProductAlgorithm* algorithm, void* workspace, Stream stream);
// Whether the library of this process carries the algorithm out for such a product; it remembers
// what it has found as Multiply does.
bool Takes(cublasLtContext* handle, const Product& product,
           const schedule::ProductAlgorithm& algorithm);

// What the library proposes for such a product, best first by its own estimate, at most so many:
// algorithms whose sums are always added up in one order. Empty: none, or it answers with an error.
std::vector<schedule::ProductAlgorithm> Candidates(cublasLtContext* handle, const Product& product,
                                                   int most);

// cublasLtGetVersion().
int64_t ProductLibrary();

}  // namespace phalanx::model::cuda
