// worker/model/products.h: products of matrices, by the algorithms of a table (core/schedule/
// product_table.h) where it has one for their shape, else as ATen, or in FP8 cuBLASLt, chooses.
//
// The table is of the thread that multiplies. What a table does not decide is computed by the very
// calls that would be made without one. Nothing is ever timed here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/schedule/product_table.h"

namespace phalanx::model {

// From now on products of this thread take their algorithms from `table`; nullptr: none does.
void UseProductTable(schedule::SharedProductTable table);
// Of this thread; nullptr: there is none for the product.
const schedule::ProductAlgorithm* AlgorithmFor(const schedule::ProductKey& key);
// The version of cuBLASLt that this process computes with; 0 without CUDA. Thread-safe.
int64_t ProductLibrary();

// a b, of matrices that are or whose transposes are without gaps; `bias` [columns of b] is added to
// each row where it is defined. The first writes a tensor of its own, the second `d`.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});
void ProductInto(at::Tensor d, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& bias = {});
// d = a b, or d += a b, in d's fp32, of bf16 operands on CUDA.
void WideProductInto(at::Tensor d, const at::Tensor& a, const at::Tensor& b, bool add);

// Logs, once a product and thread, that the library does not take the table's algorithm for it.
void TellOfRefusal(const schedule::ProductKey& key);

// Products on CUDA that a table may have, as this thread has met them since it began: at most
// kProductsMetMax, ascending.
struct MetProduct {
  schedule::ProductKey key;
  int64_t count = 0;
  bool by_table = false;  // the last time
};
inline constexpr size_t kProductsMetMax = 1024;
std::vector<MetProduct> ProductsMet();
void NoteProduct(const schedule::ProductKey& key, bool by_table);

}  // namespace phalanx::model
