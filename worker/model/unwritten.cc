#include "worker/model/unwritten.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <iterator>
#include <map>

namespace phalanx::model {
namespace {

// By the address of their first byte; flat. They do not overlap.
using Marks = std::map<uintptr_t, at::Tensor>;

Marks& AllMarks() {
  thread_local Marks marks;
  return marks;
}

uintptr_t BeginOf(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
}

// Behind its last element.
uintptr_t EndOf(const at::Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    elements += (tensor.size(dim) - 1) * tensor.stride(dim);
  return BeginOf(tensor) + static_cast<uintptr_t>(elements) * tensor.element_size();
}

// The first one that ends behind `address`.
Marks::iterator FirstBehind(Marks& marks, uintptr_t address) {
  auto mark = marks.upper_bound(address);
  if (mark != marks.begin() && EndOf(std::prev(mark)->second) > address) --mark;
  return mark;
}

}  // namespace

void MarkUnwritten(const at::Tensor& gradient) {
  if (gradient.numel() > 0) AllMarks()[BeginOf(gradient)] = gradient.view({-1});
}

bool TakeUnwritten(const at::Tensor& gradient, bool may_write) {
  Marks& marks = AllMarks();
  if (marks.empty() || gradient.numel() == 0) return false;
  const uintptr_t begin = BeginOf(gradient), end = EndOf(gradient);
  for (auto mark = FirstBehind(marks, begin); mark != marks.end() && mark->first < end;) {
    const at::Tensor whole = mark->second;
    mark = marks.erase(mark);
    const bool within = BeginOf(whole) <= begin && end <= EndOf(whole);
    if (!may_write || !within || !gradient.is_contiguous()) {
      whole.zero_();
      continue;
    }
    const auto size = static_cast<uintptr_t>(whole.element_size());
    const auto before = static_cast<int64_t>((begin - BeginOf(whole)) / size);
    const auto behind = static_cast<int64_t>((EndOf(whole) - end) / size);
    if (before > 0) whole.narrow(0, 0, before).zero_();
    if (behind > 0) whole.narrow(0, whole.numel() - behind, behind).zero_();
    return true;  // no other mark is within
  }
  return false;
}

void ClearUnwritten(const at::Tensor& buffer) { TakeUnwritten(buffer, /*may_write=*/false); }

void ClearUnwritten() {
  for (const auto& [begin, gradient] : AllMarks()) gradient.zero_();
  AllMarks().clear();
}

void ForgetUnwritten() { AllMarks().clear(); }

}  // namespace phalanx::model
