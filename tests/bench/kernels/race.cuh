// tests/bench/kernels/race.cuh: two kernels for the same job, in one run and in turn (ours, theirs,
// theirs, ours, ...).
//
// "cold": 10 warm-up calls, then the median of 30, L2 emptied before each by reads (lines that are
// still to be written back would be paid by who comes next). "kept up": calls without pause from a
// graph, over inputs and outputs that do not fit in L2 together. The best of all rounds.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace phalanx::bench {

using Bf16 = __nv_bfloat16;
// Of set i.
using Run = std::function<void(int)>;

extern cudaStream_t stream;  // of all calls; who races makes it

void Check(cudaError_t error);  // ends the program

// About normal. Of Bf16 and float; never freed: a case takes a few GB.
template <typename T = Bf16>
T* Random(size_t count);
std::vector<Bf16*> Sets(int sets, size_t count);
int SetsOf(double bytes);  // that do not fit in L2 together

struct Job {
  std::string name;
  double bytes;
  Run ours, theirs;                       // empty: they have none
  const Bf16 *our_result, *their_result;  // of set 0; null: they are laid out differently
};

// Prints a line of times.
void Race(const Job& job);

// Prints a line of JSON of all races so far: {"races", "slower" (names), "slowest" (ratio, name)}.
// False: in one of them ours takes more than 5 % longer, cold or kept up.
bool TellRaces();

}  // namespace phalanx::bench
