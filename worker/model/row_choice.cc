#include "worker/model/row_choice.h"

#include <ATen/ATen.h>

#include "worker/model/kernels.h"

namespace phalanx::model {

at::Tensor RowChoice::Take(const at::Tensor& from) const {
  return all() ? from : TakeRows(from, rows, {});
}

at::Tensor RowChoice::TakeFromPart(const at::Tensor& part, int64_t first) const {
  const at::Tensor offset = rows - first;
  const at::Tensor here = at::logical_and(offset.ge(0), offset.lt(part.size(0)));
  return TakeRows(part, offset.clamp(0, part.size(0) - 1), here);
}

at::Tensor RowChoice::PutBack(const at::Tensor& taken) const {
  return all() ? taken : TakeRows(taken, place, chosen);
}

}  // namespace phalanx::model
