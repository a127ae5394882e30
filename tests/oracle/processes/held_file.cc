#include "tests/oracle/processes/held_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>
#include <type_traits>
#include <utility>

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
      WriteTensor(file, part.weights);
      Write(file, part.states.size());
      for (const HeldState& state : part.states) {
        for (const at::Tensor* tensor :
             {&state.gradients, &state.master, &state.first_moment, &state.second_moment})
          WriteTensor(file, *tensor);
      }
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
      part.weights = ReadTensor(file);
      part.states.resize(Read<size_t>(file));
      for (HeldState& state : part.states) {
        for (at::Tensor* tensor :
             {&state.gradients, &state.master, &state.first_moment, &state.second_moment})
          *tensor = ReadTensor(file);
      }
    }
  }
  return steps;
}

std::vector<TrainedStep> PutTogetherHeld(const plan::Plan& plan, int64_t steps,
                                         const std::vector<std::string>& paths) {
  std::vector<std::vector<HeldPart>> parts(static_cast<size_t>(steps));
  std::vector<train::Decision> decisions(parts.size());
  for (size_t rank = 0; rank < paths.size(); ++rank) {
    std::vector<HeldStep> held = ReadHeld(paths[rank]);
    if (held.size() != parts.size()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " wrote " +
                               std::to_string(held.size()) + " steps");
    }
    for (size_t step = 0; step < held.size(); ++step) {
      if (rank == 0) decisions[step] = held[step].decision;
      EXPECT_EQ(held[step].decision.loss, decisions[step].loss) << "ranks decide alike, to the bit";
      EXPECT_EQ(held[step].decision.gradient_norm, decisions[step].gradient_norm);
      for (HeldPart& part : held[step].parts) parts[step].push_back(std::move(part));
    }
  }
  std::vector<TrainedStep> result;
  for (size_t step = 0; step < parts.size(); ++step)
    result.push_back(PutTogether(plan, decisions[step], parts[step]));
  return result;
}

}  // namespace phalanx::oracle
