#include "worker/train/begin_gradients.h"

#include <ATen/ATen.h>

#include <vector>

#include "worker/model/unwritten.h"

namespace phalanx::train {

void BeginGradients(PartState& part) {
  const at::Tensor& gradients = part.gradients();
  if (!gradients.defined()) return;
  std::vector<at::Tensor> cleared;  // vectors and padding, between the matrices
  int64_t end = 0;
  const auto clear_up_to = [&](int64_t offset) {
    if (offset > end) cleared.push_back(gradients.narrow(0, end, offset - end));
  };
  for (const plan::LocalMatrix& matrix : part.parameters().matrices) {
    const int64_t elements = matrix.rows * matrix.cols;
    if (!matrix.trains || matrix.cols == 1 || elements == 0) continue;
    clear_up_to(matrix.offset);
    model::MarkUnwritten(gradients.narrow(0, matrix.offset, elements));
    end = matrix.offset + elements;
  }
  clear_up_to(gradients.numel());
  if (!cleared.empty()) at::_foreach_zero_(cleared);
}

}  // namespace phalanx::train
