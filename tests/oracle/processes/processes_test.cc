// Ranks in real processes over Gloo compute the step of the unsharded model: loss, every gradient
// and every parameter after each of 3 steps of 4 microbatches.
//
// The program is also the rank: "--rank CASE R CHANNEL OUTPUT" instead of GoogleTest's arguments.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tests/oracle/processes/rank_main.h"
#include "tests/oracle/processes/world.h"
#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"vision_dp2_language_tp2_pp2", {.dp = 2}, {.tp = 2, .pp = 2}},
      {"vision_tp2_dp2_language_tp4", {.tp = 2, .dp = 2}, {.tp = 4}},
  };
  return cases;
}

job::JobSpec ThreeSteps(const Case& c) {
  job::JobSpec spec = SpecOf(c, job::Precision::kFp64);
  spec.steps = 3;
  return spec;
}

class ProcessesTest : public testing::TestWithParam<Case> {};

TEST_P(ProcessesTest, Fp64_EqualsThePlainModel) {
  const job::JobSpec spec = ThreeSteps(GetParam());
  const std::vector<TrainedStep> plain = TrainPlain(spec, DataShapeOf(spec), spec.steps);
  ExpectSteps(TrainInProcesses(spec, "/proc/self/exe", GetParam().name), plain, spec, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ProcessesTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// The exit code of a rank.
int RankMain(const std::string& name, int32_t rank, int channel, const std::string& output) {
  for (const Case& c : Cases()) {
    if (c.name != name) continue;
    try {
      RunRank(ThreeSteps(c), rank, channel, output);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  return 2;
}

}  // namespace
}  // namespace phalanx::oracle

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--rank") {
    return phalanx::oracle::RankMain(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
