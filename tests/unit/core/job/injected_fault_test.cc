// Faults on demand: how flags name them, and what is wrong with them.
#include "core/job/injected_fault.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Lines(const std::vector<Violation>& violations) {
  std::vector<std::string> lines;
  for (const Violation& violation : violations) lines.push_back(ToString(violation));
  return lines;
}
std::vector<std::string> FaultsIn(const FaultText& text) {
  return Lines(ViolationsOf(ParseFault(text).status()));
}

TEST(ParseFaultTest, KindAlone_IsAtOnce) {
  for (const char* word :
       {"kill", "stop", "hang", "exit", "nan", "oom", "partition", "mute", "throw"}) {
    const auto fault = ParseFault({.rank = "3", .fault = word});
    ASSERT_TRUE(fault.ok()) << fault.status();
    EXPECT_EQ(ToString(fault->kind), word);
    EXPECT_EQ(fault->rank, 3);
    EXPECT_TRUE(fault->at_once());
    EXPECT_EQ(Describe(*fault), word);
  }
}

TEST(ParseFaultTest, All_IsReadAndSaidAgain) {
  const auto fault = ParseFault(
      {.rank = "0", .fault = "stop", .at_step = "20", .phase = "backward", .duration = "2s"});
  ASSERT_TRUE(fault.ok()) << fault.status();
  EXPECT_EQ(*fault, (InjectedFault{.kind = FaultKind::kStop,
                                   .at_step = 20,
                                   .phase = FaultPhase::kBackward,
                                   .duration = absl::Seconds(2)}));
  EXPECT_FALSE(fault->at_once());
  EXPECT_EQ(Describe(*fault), "stop in backward of step 20 for 2s");
  EXPECT_EQ(Describe(*ParseFault({.rank = "0", .fault = "xid:79", .at_step = "7"})),
            "xid:79 in step 7");
  EXPECT_EQ(Describe(*ParseFault({.rank = "0", .fault = "slow:2.5", .duration = "1m"})),
            "slow:2.5 for 1m");
  EXPECT_EQ(Describe(*ParseFault({.rank = "0", .fault = "oom", .phase = "gather"})),
            "oom in gather");
}

TEST(ParseFaultTest, EveryPhase_HasItsWord) {
  for (int phase = 1; phase <= 9; ++phase) {
    const std::string word(ToString(static_cast<FaultPhase>(phase)));
    const auto fault = ParseFault({.rank = "1", .fault = "kill", .phase = word});
    ASSERT_TRUE(fault.ok()) << fault.status();
    EXPECT_EQ(static_cast<int>(fault->phase), phase);
  }
}

TEST(ParseFaultTest, Wrong_IsToldAllAtOnceWithFlagValueAndRule) {
  EXPECT_THAT(
      FaultsIn({.rank = "x", .fault = "sleep", .at_step = "0", .phase = "lunch", .duration = "2"}),
      ElementsAre("--rank: x: must be a rank such as 3",
                  "--fault: sleep: must be kill, stop, hang, exit, xid:N, nan, slow:FACTOR, oom, "
                  "partition, mute or throw",
                  "--at-step: 0: must be a step from 1 on",
                  "--phase: lunch: must be one of forward, backward, reduce, mirror, record, "
                  "optimizer, gather, checkpoint, recovery",
                  "--for: 2: must be a duration such as 2s or 500ms"));
}

TEST(ParseFaultTest, Numbers_AreWithinTheirRange) {
  const std::string kinds =
      ": must be kill, stop, hang, exit, xid:N, nan, slow:FACTOR, oom, partition, mute or throw";
  for (const std::string fault : {"xid", "slow", "kill:1", "nan:", ""}) {
    const std::string value = fault.empty() ? "" : ": " + fault;
    EXPECT_THAT(FaultsIn({.rank = "1", .fault = fault}), ElementsAre("--fault" + value + kinds));
  }
  for (const std::string fault : {"xid:", "xid:0", "xid:-4", "xid:7x", "xid:99999999999"}) {
    EXPECT_THAT(FaultsIn({.rank = "1", .fault = fault}),
                ElementsAre("--fault: " + fault + ": the number must be in [1, 1000000]"));
  }
  for (const std::string fault : {"slow:", "slow:1", "slow:-2", "slow:.nan", "slow:.inf"}) {
    EXPECT_THAT(
        FaultsIn({.rank = "1", .fault = fault}),
        ElementsAre("--fault: " + fault + ": the factor must be over 1 and at most 1000000"));
  }
  EXPECT_THAT(FaultsIn({.rank = "-1", .fault = "kill"}),
              ElementsAre("--rank: -1: must be a rank such as 3"));
}

TEST(ParseFaultTest, WhatAKindDoesNotTake_IsRefused) {
  EXPECT_THAT(FaultsIn({.rank = "1", .fault = "kill", .duration = "2s"}),
              ElementsAre("--for: 2s: kill is for good; only stop, hang, slow and partition end"));
  const std::string of_a_decision =
      ": nan is of what a step is decided by and takes forward, backward, reduce or record alone";
  EXPECT_THAT(FaultsIn({.rank = "1", .fault = "nan", .phase = "gather", .duration = "1s"}),
              ElementsAre("--phase: gather" + of_a_decision,
                          "--for: 1s: nan is for good; only stop, hang, slow and partition end"));
  for (const std::string phase : {"optimizer", "mirror", "checkpoint", "recovery"}) {
    EXPECT_THAT(FaultsIn({.rank = "1", .fault = "nan", .phase = phase}),
                ElementsAre("--phase: " + phase + of_a_decision));
  }
  for (const std::string phase : {"forward", "backward", "reduce", "record"})
    EXPECT_THAT(FaultsIn({.rank = "1", .fault = "nan", .phase = phase}), IsEmpty());
  for (const std::string phase : {"forward", "checkpoint", "recovery"})
    EXPECT_THAT(FaultsIn({.rank = "1", .fault = "slow:2", .phase = phase}), IsEmpty());
  for (const std::string phase : {"checkpoint", "recovery"}) {
    EXPECT_THAT(FaultsIn({.rank = "1", .fault = "mute", .phase = phase}),
                ElementsAre("--phase: " + phase +
                            ": mute is of a message of a step and takes a phase of one alone"));
  }
  for (const std::string phase : {"forward", "backward", "reduce", "record", "gather"})
    EXPECT_THAT(FaultsIn({.rank = "1", .fault = "mute", .phase = phase}), IsEmpty());
  EXPECT_THAT(
      FaultsIn({.rank = "1", .fault = "throw", .phase = "checkpoint"}),
      ElementsAre("--phase: checkpoint: throw is of the thread that trains, which writes no "
                  "checkpoint"));
  EXPECT_THAT(FaultsIn({.rank = "1", .fault = "throw", .phase = "recovery"}), IsEmpty());
  EXPECT_THAT(FaultsIn({.rank = "1", .fault = "mute", .duration = "1s"}),
              ElementsAre("--for: 1s: mute is for good; only stop, hang, slow and partition end"));
  EXPECT_THAT(FaultsIn({.rank = "1", .fault = "stop", .duration = "0s"}),
              ElementsAre("--for: 0s: must be over 0 and at most 24h"));
  EXPECT_THAT(FaultsIn({.rank = "1", .fault = "stop", .duration = "25h"}),
              ElementsAre("--for: 25h: must be over 0 and at most 24h"));
}

TEST(ParseFaultTest, LongValue_IsCut) {
  const std::vector<std::string> lines = FaultsIn({.rank = "1", .fault = std::string(10'000, 'k')});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_LT(lines[0].size(), 300u);
}

TEST(CheckFaultTest, Message_IsCheckedAsFlagsAre) {
  EXPECT_THAT(Lines(CheckFault({.kind = FaultKind::kKill}, kFaultMessage)), IsEmpty());
  EXPECT_THAT(Lines(CheckFault({.rank = -1,
                                .at_step = -3,
                                .phase = static_cast<FaultPhase>(77),
                                .duration = -absl::Seconds(1)},
                               kFaultMessage)),
              ElementsAre("fault.rank: -1: must be 0 or more",
                          "fault.kind: 0: must be kill, stop, hang, exit, xid:N, nan, slow:FACTOR, "
                          "oom, partition, mute or throw",
                          "fault.at_step: -3: must be 1 or more",
                          "fault.phase: 77: must be one of forward, backward, reduce, mirror, "
                          "record, optimizer, gather, checkpoint, recovery",
                          "fault.duration: -1s: must be over 0 and at most 24h"));
  EXPECT_THAT(Lines(CheckFault({.kind = FaultKind::kSlow, .factor = std::nan("")}, kFaultMessage)),
              ElementsAre("fault.kind: slow:.nan: the factor must be over 1 and at most 1000000"));
}

}  // namespace
}  // namespace phalanx::job
