#include "worker/model/products.h"

#include <ATen/ATen.h>

#include <map>
#include <set>
#include <utility>

#include "spdlog/spdlog.h"
#include "worker/device/cuda_device.h"
#include "worker/model/products_cuda.h"

namespace phalanx::model {
namespace {

using device::kWithCuda;
using schedule::ProductKey;

thread_local schedule::SharedProductTable table_of_thread;

struct Count {
  int64_t times = 0;
  bool by_table = false;
};
thread_local std::map<ProductKey, Count> met_by_thread;
thread_local std::set<ProductKey> refused_to_thread;

// Whether the table has computed d.
bool ByTable(const at::Tensor& d, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
             bool add) {
  if constexpr (kWithCuda) {
    if (d.is_cuda()) return fused::MultiplyByTable(d, a, b, bias, add);
  }
  return false;
}

}  // namespace

void UseProductTable(schedule::SharedProductTable table) { table_of_thread = std::move(table); }

const schedule::ProductAlgorithm* AlgorithmFor(const ProductKey& key) {
  return table_of_thread == nullptr ? nullptr : table_of_thread->Find(key);
}

int64_t ProductLibrary() {
  if constexpr (kWithCuda) return fused::ProductLibrary();
  return 0;
}

at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if constexpr (kWithCuda) {
    if (a.is_cuda() && fused::HasAlgorithm(a, b, bias)) {
      at::Tensor d = at::empty({a.size(0), b.size(1)}, a.options());
      if (ByTable(d, a, b, bias, /*add=*/false)) return d;
    }
  }
  return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

void ProductInto(at::Tensor d, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if (ByTable(d, a, b, bias, /*add=*/false)) return;
  if (bias.defined()) {
    at::addmm_out(d, bias, a, b);
  } else {
    at::mm_out(d, a, b);
  }
}

void WideProductInto(at::Tensor d, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (ByTable(d, a, b, /*bias=*/{}, add)) return;
  if (add) {
    at::addmm_out(d, d, a, b, d.scalar_type());
  } else {
    at::mm_out(d, a, b, d.scalar_type());
  }
}

void TellOfRefusal(const ProductKey& key) {
  const bool full = refused_to_thread.size() >= kProductsMetMax;
  if (full || !refused_to_thread.insert(key).second) return;
  spdlog::warn(
      "cuBLASLt {} does not take the algorithm that the table of products has for {}; the product "
      "is computed as without the table",
      ProductLibrary(), schedule::ToString(key));
}

std::vector<MetProduct> ProductsMet() {
  std::vector<MetProduct> all;
  for (const auto& [key, count] : met_by_thread) all.push_back({key, count.times, count.by_table});
  return all;
}

void NoteProduct(const ProductKey& key, bool by_table) {
  auto met = met_by_thread.find(key);
  if (met == met_by_thread.end()) {
    if (met_by_thread.size() >= kProductsMetMax) return;
    met = met_by_thread.emplace(key, Count{}).first;
  }
  ++met->second.times;
  met->second.by_table = by_table;
}

}  // namespace phalanx::model
