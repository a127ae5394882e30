#include "worker/train/rank_values.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/base/status.h"
#include "worker/train/await_work.h"

namespace phalanx::train {

absl::StatusOr<std::vector<std::vector<double>>> GatherOverRanks(
    Executor& executor, const std::vector<double>& values) {
  comm::Communicator* control = executor.control();
  if (control == nullptr || values.empty()) return std::vector<std::vector<double>>{values};
  const int64_t count = static_cast<int64_t>(values.size());
  at::Tensor mine = at::empty({count}, at::TensorOptions().dtype(at::kDouble));
  std::copy(values.begin(), values.end(), mine.mutable_data_ptr<double>());
  mine = mine.to(executor.options().device);
  at::Tensor all = at::empty({control->size(), count}, mine.options());
  RETURN_IF_ERROR(
      control->AllGather(mine.const_data_ptr(), all.mutable_data_ptr(), count, comm::DType::kFp64));
  RETURN_IF_ERROR(control->Join());
  RETURN_IF_ERROR(AwaitWork(executor, "the ranks' values are not gathered"));
  const at::Tensor host = all.cpu();
  std::vector<std::vector<double>> result;
  for (int64_t r = 0; r < control->size(); ++r) {
    const double* row = host.const_data_ptr<double>() + r * count;
    result.emplace_back(row, row + count);
  }
  return result;
}

absl::StatusOr<std::vector<double>> SumOverRanks(Executor& executor,
                                                 const std::vector<double>& values) {
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> all, GatherOverRanks(executor, values));
  std::vector<double> sums(values.size(), 0);
  for (const std::vector<double>& one : all) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += one[i];
  }
  return sums;
}

}  // namespace phalanx::train
