#include "tests/oracle/processes/held_file.h"

#include <fstream>
#include <stdexcept>
#include <type_traits>

namespace phalanx::oracle {
namespace {

template <typename T>
void Write(std::ofstream& file, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T Read(std::ifstream& file) {
  T value;
  file.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

void WriteTensor(std::ofstream& file, const at::Tensor& tensor) {
  Write(file, tensor.numel());
  file.write(static_cast<const char*>(tensor.const_data_ptr()),
             static_cast<std::streamsize>(tensor.nbytes()));
}

at::Tensor ReadTensor(std::ifstream& file) {
  at::Tensor tensor = at::empty({Read<int64_t>(file)}, at::kDouble);
  file.read(static_cast<char*>(tensor.mutable_data_ptr()),
            static_cast<std::streamsize>(tensor.nbytes()));
  return tensor;
}

}  // namespace

void WriteHeld(const std::string& path, const std::vector<HeldStep>& steps) {
  std::ofstream file(path, std::ios::binary);
  Write(file, steps.size());
  for (const HeldStep& step : steps) {
    Write(file, step.decision);
    Write(file, step.parts.size());
    for (const HeldPart& part : step.parts) {
      Write(file, part.place);
      Write(file, part.chunk);
      for (const at::Tensor* tensor :
           {&part.gradients, &part.first_moment, &part.second_moment, &part.weights})
        WriteTensor(file, *tensor);
    }
  }
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

std::vector<HeldStep> ReadHeld(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
  std::vector<HeldStep> steps(Read<size_t>(file));
  for (HeldStep& step : steps) {
    step.decision = Read<train::Decision>(file);
    step.parts.resize(Read<size_t>(file));
    for (HeldPart& part : step.parts) {
      part.place = Read<plan::Place>(file);
      part.chunk = Read<int32_t>(file);
      for (at::Tensor* tensor :
           {&part.gradients, &part.first_moment, &part.second_moment, &part.weights})
        *tensor = ReadTensor(file);
    }
  }
  return steps;
}

}  // namespace phalanx::oracle
