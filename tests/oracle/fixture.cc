#include "tests/oracle/fixture.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/support/paths.h"

namespace phalanx::oracle {

NamedTensors ReadFixture(const std::string& name) {
  std::ifstream file(tests::SourceDir() + "/tests/oracle/fixtures/" + name, std::ios::binary);
  if (!file) ADD_FAILURE() << "no fixture " << name;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::string line;
  while (std::getline(file, line) && !line.empty()) {
    std::istringstream words(line);
    std::string tensor, type;
    words >> tensor >> type;
    std::vector<int64_t> shape;
    for (int64_t dim; words >> dim;) shape.push_back(dim);
    tensors.emplace_back(tensor, at::empty(shape, type == "i64" ? at::kLong : at::kFloat));
  }
  NamedTensors result;
  for (auto& [tensor, values] : tensors) {
    file.read(static_cast<char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
    result[tensor] = values;
  }
  if (!file) ADD_FAILURE() << "fixture " << name << " is truncated";
  return result;
}

NamedTensors Select(const NamedTensors& fixture, const std::string& prefix,
                    const std::string& module) {
  NamedTensors result;
  for (const auto& [name, tensor] : fixture) {
    if (name.rfind(prefix, 0) != 0) continue;
    result[module + "/" + name.substr(prefix.size())] =
        tensor.dim() > 2 ? tensor.flatten(1) : tensor;
  }
  return result;
}

}  // namespace phalanx::oracle
