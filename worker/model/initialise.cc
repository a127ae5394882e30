#include <ATen/ATen.h>
#include <c10/util/BFloat16.h>
#include <c10/util/TypeCast.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "worker/model/stage_io.h"

namespace phalanx::model {
namespace {

// Rows of one piece, small enough that threads share the work evenly.
struct Task {
  const plan::LocalMatrix* matrix = nullptr;
  const plan::Piece* piece = nullptr;
  int64_t first_row = 0, rows = 0;
};
constexpr int64_t kTaskElements = 1 << 16;

std::vector<Task> TasksOf(const plan::StageParameters& parameters) {
  std::vector<Task> tasks;
  for (const plan::LocalMatrix& matrix : parameters.matrices) {
    for (const plan::Piece& piece : matrix.pieces) {
      const int64_t step = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, matrix.cols));
      for (int64_t row = 0; row < piece.rows; row += step) {
        tasks.push_back({&matrix, &piece, row, std::min(step, piece.rows - row)});
      }
    }
  }
  return tasks;
}

template <typename T>
void Fill(const Task& task, uint64_t seed, const std::string& module,
          const plan::StageParameters& parameters, T* weights) {
  const plan::LocalMatrix& matrix = *task.matrix;
  const plan::Piece& piece = *task.piece;
  const plan::LogicalTensor& logical = parameters.logical[static_cast<size_t>(piece.logical)];
  const plan::InitialValues values(seed, module, logical);
  for (int64_t row = task.first_row; row < task.first_row + task.rows; ++row) {
    T* to = weights + matrix.offset + (piece.local_row + row) * matrix.cols;
    const int64_t logical_row = piece.logical_row + row;
    for (int64_t col = 0; col < matrix.cols; ++col) {
      to[col] = c10::convert<T>(values(matrix.transposed ? col * logical.cols + logical_row
                                                         : logical_row * logical.cols + col));
    }
  }
}

}  // namespace

void InitialiseWeights(const plan::Plan& plan, const plan::Place& place,
                       const plan::StageParameters& parameters, at::Tensor weights,
                       int32_t threads) {
  const std::vector<Task> tasks = TasksOf(parameters);
  const std::string& module = plan.module_spec(place.module).name;
  const bool direct = weights.device().is_cpu() && weights.is_contiguous();
  const at::Tensor host =
      direct ? weights : at::empty(weights.sizes(), weights.options().device(at::kCPU));
  host.zero_();
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < tasks.size(); i = next++) {
      AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, host.scalar_type(), "InitialiseWeights", [&] {
        Fill(tasks[i], plan.spec.seed, module, parameters, static_cast<scalar_t*>(host.data_ptr()));
      });
    }
  };
  {
    std::vector<std::jthread> others;
    for (int32_t i = 1; i < threads; ++i) others.emplace_back(run);
    run();
  }
  if (!direct) weights.copy_(host);
}

}  // namespace phalanx::model
