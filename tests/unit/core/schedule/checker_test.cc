#include "core/schedule/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::NoArchitecture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two encoders (ranks 0 and 1) feed a language model of two stages (ranks 2 and 3). Link 0 is
// inside the language model, link 1 and 2 come from the encoders. Three microbatches.
plan::Plan TwoEncoders() {
  return PlanOf(AJob()
                    .Module("vision", NoArchitecture())
                    .Module("audio", NoArchitecture())
                    .Module("language", NoArchitecture(), {.pp = 2})
                    .Edge("vision", "language")
                    .Edge("audio", "language")
                    .Batch(3, 1));
}

size_t Find(const Program& program, const Instruction& what) {
  for (size_t i = 0; i < program.size(); ++i) {
    Instruction untimed = program[i];
    untimed.ticket = 0;
    if (untimed == what) return i;
  }
  ADD_FAILURE() << "no " << ToString(what);
  return 0;
}
Instruction Pass(Op op, int32_t module, int32_t microbatch) {
  return {.op = op, .module = module, .microbatch = microbatch};
}
Instruction MessageOf(Op op, int32_t link, int32_t microbatch) {
  return {.op = op, .link = link, .microbatch = microbatch};
}

void Erase(Program& program, const Instruction& what) {
  program.erase(program.begin() + static_cast<int64_t>(Find(program, what)));
}
// Exchanges two instructions, tickets included.
void Swap(Program& program, const Instruction& a, const Instruction& b) {
  std::swap(program[Find(program, a)], program[Find(program, b)]);
}
void MoveToFront(Program& program, const Instruction& what) {
  const auto at = program.begin() + static_cast<int64_t>(Find(program, what));
  std::rotate(program.begin(), at, at + 1);
}
void MoveToEnd(Program& program, const Instruction& what) {
  const auto at = program.begin() + static_cast<int64_t>(Find(program, what));
  std::rotate(at, at + 1, program.end());
}
int64_t& Ticket(Program& program, const Instruction& what) {
  return program[Find(program, what)].ticket;
}

struct Broken {
  const char* name;
  std::function<void(std::vector<Program>&)> change;
  std::vector<const char*> says;  // all of them, in the message
};

std::vector<Broken> BrokenPasses() {
  return {
      {"forward missing",
       [](auto& p) { Erase(p[0], Pass(Op::kForward, 0, 1)); },
       {"rank 0: no Forward(module 0, chunk 0, microbatch 1)"}},
      {"forward twice",
       [](auto& p) { p[3].insert(p[3].begin() + 2, p[3][1]); },
       {"rank 3: Forward(module 2, chunk 0, microbatch 0) stands twice, at 1 and 2"}},
      {"backward missing",
       [](auto& p) { Erase(p[2], Pass(Op::kBackwardInput, 2, 2)); },
       {"rank 2: no BackwardInput(module 2, chunk 0, microbatch 2)"}},
      {"weight gradient missing",
       [](auto& p) { Erase(p[1], Pass(Op::kBackwardWeight, 1, 0)); },
       {"rank 1: no BackwardWeight(module 1, chunk 0, microbatch 0)"}},
      {"backward before forward",
       [](auto& p) { Swap(p[3], Pass(Op::kForward, 2, 0), Pass(Op::kBackwardInput, 2, 0)); },
       {"rank 3: BackwardInput(module 2, chunk 0, microbatch 0) stands before "
        "Forward(module 2, chunk 0, microbatch 0)"}},
      {"weight gradient before the input's",
       [](auto& p) { Swap(p[0], Pass(Op::kBackwardInput, 0, 1), Pass(Op::kBackwardWeight, 0, 1)); },
       {"rank 0: BackwardWeight(module 0, chunk 0, microbatch 1) stands before "
        "BackwardInput(module 0, chunk 0, microbatch 1)"}},
  };
}

std::vector<Broken> BrokenMessages() {
  return {
      {"send missing",
       [](auto& p) { Erase(p[0], MessageOf(Op::kSendForward, 1, 1)); },
       {"rank 0: no SendForward(link 1, microbatch 1)", "deadlock with unbuffered sends",
        "rank 2 at ReceiveForward(link 1, microbatch 1) waits for rank 0, whose program does not "
        "have the other end"}},
      {"receive missing",
       [](auto& p) { Erase(p[2], MessageOf(Op::kReceiveBackward, 0, 0)); },
       {"rank 2: no ReceiveBackward(link 0, microbatch 0)",
        "rank 3 at SendBackward(link 0, microbatch 0) waits for rank 2"}},
      {"send twice",
       [](auto& p) {
         p[1].insert(p[1].begin() + 2, p[1][Find(p[1], MessageOf(Op::kSendForward, 2, 0))]);
       },
       {"rank 1: SendForward(link 2, microbatch 0) stands twice"}},
      {"sent before it is computed",
       [](auto& p) { MoveToFront(p[1], MessageOf(Op::kSendForward, 2, 0)); },
       {"rank 1: SendForward(link 2, microbatch 0) stands before "
        "Forward(module 1, chunk 0, microbatch 0)"}},
      {"used before it arrived",
       [](auto& p) { Swap(p[3], MessageOf(Op::kReceiveForward, 0, 1), Pass(Op::kForward, 2, 1)); },
       {"rank 3: Forward(module 2, chunk 0, microbatch 1) stands before "
        "ReceiveForward(link 0, microbatch 1)"}},
      {"gradient used before it arrived",
       [](auto& p) {
         Swap(p[0], MessageOf(Op::kReceiveBackward, 1, 0), Pass(Op::kBackwardInput, 0, 0));
       },
       {"rank 0: BackwardInput(module 0, chunk 0, microbatch 0) stands before "
        "ReceiveBackward(link 1, microbatch 0)"}},
      {"swapped receives",
       [](auto& p) {
         Swap(p[2], MessageOf(Op::kReceiveBackward, 0, 0), MessageOf(Op::kReceiveBackward, 0, 1));
       },
       {"rank 2: ReceiveBackward(link 0, microbatch 0) with ticket",
        "rank 2 at ReceiveBackward(link 0, microbatch 1) waits for rank 3, which is at "
        "SendBackward(link 0, microbatch 0)"}},
  };
}

std::vector<Broken> BrokenEnds() {
  return {
      {"record missing",
       [](auto& p) { Erase(p[2], {.op = Op::kRecord}); },
       {"rank 2: no Record", "rank 0 at Record waits for rank 2"}},
      {"decision missing",
       [](auto& p) { Erase(p[3], {.op = Op::kDecide}); },
       {"rank 3: no Decide"}},
      {"decision before the record",
       [](auto& p) { Swap(p[1], {.op = Op::kRecord}, {.op = Op::kDecide}); },
       {"rank 1: Decide stands before Record"}},
      {"reduction missing",
       [](auto& p) { Erase(p[0], {.op = Op::kReduce, .module = 0}); },
       {"rank 0: no Reduce(module 0, chunk 0)"}},
      {"reduction before the last backward",
       [](auto& p) {
         Swap(p[0], {.op = Op::kReduce, .module = 0}, Pass(Op::kBackwardWeight, 0, 2));
       },
       {"rank 0: Reduce(module 0, chunk 0) stands before "
        "BackwardWeight(module 0, chunk 0, microbatch 2)"}},
      {"optimizer before the decision",
       [](auto& p) { Swap(p[2], {.op = Op::kOptimize, .module = 2}, {.op = Op::kDecide}); },
       {"rank 2: Optimize(module 2, chunk 0) stands before Decide"}},
      {"gather missing",
       [](auto& p) { Erase(p[3], {.op = Op::kGather, .module = 2}); },
       {"rank 3: no Gather(module 2, chunk 0)"}},
  };
}

std::vector<Broken> BrokenTickets() {
  return {
      {"tickets fall",
       [](auto& p) {
         std::swap(Ticket(p[0], MessageOf(Op::kSendForward, 1, 0)),
                   Ticket(p[0], MessageOf(Op::kSendForward, 1, 1)));
       },
       {"rank 0: SendForward(link 1, microbatch 1) with ticket",
        "stands behind SendForward(link 1, microbatch 0)"}},
      {"ends disagree on a ticket",
       [](auto& p) { Ticket(p[3], MessageOf(Op::kReceiveForward, 0, 2)) += 1000; },
       {"rank 3: ReceiveForward(link 0, microbatch 2) has ticket", "; rank 2 gives it "}},
      {"one ticket for two operations",
       [](auto& p) {
         const int64_t ticket = Ticket(p[0], MessageOf(Op::kSendForward, 1, 0));
         Ticket(p[1], MessageOf(Op::kSendForward, 2, 0)) = ticket;
         Ticket(p[2], MessageOf(Op::kReceiveForward, 2, 0)) = ticket;
       },
       {"is that of both SendForward(link 1, microbatch 0) and SendForward(link 2, microbatch 0)"}},
      {"no ticket",
       [](auto& p) { Ticket(p[2], {.op = Op::kRecord}) = 0; },
       {"rank 2: Record has no ticket"}},
      {"ticket below that of what it needs",
       [](auto& p) {
         for (int32_t m = 0; m < 3; ++m) {
           Ticket(p[2], MessageOf(Op::kSendForward, 0, m)) = m - 10;
           Ticket(p[3], MessageOf(Op::kReceiveForward, 0, m)) = m - 10;
         }
       },
       {"rank 2: SendForward(link 0, microbatch 0) with ticket -10 needs an operation with "
        "ticket"}},
  };
}

std::vector<Broken> BrokenWholes() {
  return {
      {"a link of other ranks",
       [](auto& p) { p[0].push_back(MessageOf(Op::kSendForward, 0, 0)); },
       {"rank 0: SendForward(link 0, microbatch 0) is no business of this rank"}},
      {"a microbatch too many",
       [](auto& p) { p[3].insert(p[3].begin(), Pass(Op::kForward, 2, 3)); },
       {"rank 3: Forward(module 2, chunk 0, microbatch 3) is no business of this rank"}},
      {"deadlock of crossed orders",
       [](auto& p) {  // rank 2 wants microbatch 1 of rank 0 first, rank 0 sends 0 first
         Swap(p[2], MessageOf(Op::kReceiveForward, 1, 0), MessageOf(Op::kReceiveForward, 1, 1));
       },
       {"deadlock with unbuffered sends",
        "rank 0 at SendForward(link 1, microbatch 0) waits for rank 2, which is at "
        "ReceiveForward(link 1, microbatch 1)",
        "rank 2 at ReceiveForward(link 1, microbatch 1) waits for rank 0"}},
      {"collective that one rank reaches too late",
       [](auto& p) { MoveToEnd(p[1], {.op = Op::kRecord}); },
       {"rank 1: Decide stands before Record"}},
      {"program missing", [](auto& p) { p.pop_back(); }, {"3 programs for the 4 ranks"}},
  };
}

TEST(CheckerTest, CheckStep_BrokenPrograms_AreRejectedNamingRanksAndInstructions) {
  const plan::Plan plan = TwoEncoders();
  int32_t rejected = 0;
  for (const auto& list :
       {BrokenPasses(), BrokenMessages(), BrokenEnds(), BrokenTickets(), BrokenWholes()}) {
    for (const Broken& broken : list) {
      std::vector<Program> programs = Programs(plan);
      broken.change(programs);
      const absl::Status status = CheckStep(plan, programs).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << broken.name << ": " << status;
      for (const char* says : broken.says) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(says)) << broken.name;
      }
      ++rejected;
    }
  }
  EXPECT_GE(rejected, 20);
}

absl::Status CheckBroken(const plan::Plan& plan,
                         const std::function<void(std::vector<Program>&)>& change) {
  std::vector<Program> programs = Programs(plan);
  EXPECT_TRUE(CheckStep(plan, programs).ok());
  change(programs);
  return CheckStep(plan, programs).status();
}

TEST(CheckerTest, CheckStep_GradientForAFrozenPart_IsRejected) {
  // Link 0 is inside the language model, link 1 comes from the frozen encoder.
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", NoArchitecture(), {.frozen = true})
                                     .Module("language", NoArchitecture(), {.pp = 2})
                                     .Edge("vision", "language")
                                     .Batch(3, 1));
  EXPECT_THAT(
      std::string(
          CheckBroken(plan, [](auto& p) { p[1].push_back(MessageOf(Op::kSendBackward, 1, 0)); })
              .message()),
      HasSubstr("rank 1: SendBackward(link 1, microbatch 0) carries a gradient to a part "
                "that has no backward pass"));
  EXPECT_THAT(
      std::string(CheckBroken(plan, [](auto& p) { p[0].push_back(Pass(Op::kBackwardInput, 0, 0)); })
                      .message()),
      HasSubstr("rank 0: BackwardInput(module 0, chunk 0, microbatch 0): the part does not "
                "train that"));
  EXPECT_THAT(
      std::string(CheckBroken(plan,
                              [](auto& p) {
                                p[0].push_back({.op = Op::kReduce, .module = 0, .ticket = 1000});
                              })
                      .message()),
      HasSubstr("rank 0: Reduce(module 0, chunk 0): the part does not train that"));
}

TEST(CheckerTest, CheckStep_TensorGroupInTwoOrders_IsADeadlock) {
  // The encoder's tensor group {0, 1} joins both stages of the language model.
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", NoArchitecture(), {.tp = 2})
                                     .Module("language", NoArchitecture(), {.pp = 2, .offset = 0})
                                     .Edge("vision", "language")
                                     .Batch(4, 1));
  const absl::Status status = CheckBroken(plan, [](auto& p) {
    // Rank 1 runs a backward of the encoder before the forward that rank 0 starts with.
    const auto at = [&p](const Instruction& pass) {
      return p[1].begin() + static_cast<int64_t>(Find(p[1], pass));
    };
    const auto forward = at(Pass(Op::kForward, 0, 2));
    const auto backward = at(Pass(Op::kBackwardInput, 0, 0));
    ASSERT_LT(forward, backward);
    std::rotate(forward, backward, at(Pass(Op::kBackwardWeight, 0, 0)) + 1);
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("rank 0 at Forward(module 0, chunk 0, microbatch 2) waits for rank 1 of its "
                "tensor group, which is at"));
}

// A vision encoder of two stages on the two ranks of a language model whose embedding is tied: rank
// 0 has its first part, rank 1 its last. Link 2 goes from the encoder to the language model.
plan::Plan TiedAcrossRanks() {
  job::Architecture tied = NoArchitecture();
  tied.tied_head = true;
  return PlanOf(AJob()
                    .Module("vision", NoArchitecture(), {.pp = 2})
                    .Module("language", tied, {.pp = 2, .offset = 0})
                    .Edge("vision", "language")
                    .Batch(2, 1));
}

TEST(CheckerTest, CheckStep_WeightPassBehindTheFoldOfATiedEmbedding_IsRejected) {
  const absl::Status status = CheckBroken(TiedAcrossRanks(), [](auto& p) {
    const size_t weights = Find(p[0], Pass(Op::kBackwardWeight, 1, 1));
    const size_t fold = Find(p[0], {.op = Op::kFold, .module = 1});
    std::rotate(p[0].begin() + static_cast<int64_t>(weights),
                p[0].begin() + static_cast<int64_t>(weights) + 1,
                p[0].begin() + static_cast<int64_t>(fold) + 1);
  });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0: Fold(module 1) stands before "
                        "BackwardWeight(module 1, chunk 0, microbatch 1)"));
}

TEST(CheckerTest, CheckStep_TiedEmbeddingThatIsNotFoldedOrSpread_IsRejected) {
  for (Op op : {Op::kFold, Op::kSpread}) {
    const absl::Status status =
        CheckBroken(TiedAcrossRanks(), [op](auto& p) { Erase(p[1], {.op = op, .module = 1}); });
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 1: no " + ToString({.op = op, .module = 1})));
  }
}

TEST(CheckerTest, CheckStep_EmbeddingReducedBeforeItsFold_IsRejected) {
  const absl::Status status = CheckBroken(TiedAcrossRanks(), [](auto& p) {
    Swap(p[0], {.op = Op::kFold, .module = 1}, {.op = Op::kReduce, .module = 1});
  });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0: Reduce(module 1, chunk 0) stands before Fold(module 1)"));
}

TEST(CheckerTest, CheckStep_TiedEndsThatWaitForEachOther_AreADeadlock) {
  const absl::Status status = CheckBroken(TiedAcrossRanks(), [](auto& p) {
    // Rank 0 folds before it sends the gradient that rank 1's encoder stage waits for.
    const Instruction fold = {.op = Op::kFold, .module = 1};
    const Instruction send = MessageOf(Op::kSendBackward, 2, 1);
    const Instruction weights = Pass(Op::kBackwardWeight, 1, 1);
    // The encoder's reduction comes behind it then, in the order of tickets too.
    const int64_t folds = p[0][Find(p[0], fold)].ticket;
    const int64_t reduces = p[0][Find(p[0], {.op = Op::kReduce, .module = 0})].ticket;
    for (Program& program : p) {
      for (Instruction& instruction : program) {
        if (instruction.ticket != folds && instruction.ticket != reduces) continue;
        instruction.ticket = folds + reduces - instruction.ticket;
      }
    }
    std::rotate(p[0].begin() + static_cast<int64_t>(Find(p[0], weights)) + 1,
                p[0].begin() + static_cast<int64_t>(Find(p[0], fold)),
                p[0].begin() + static_cast<int64_t>(Find(p[0], fold)) + 1);
    std::rotate(p[0].begin() + static_cast<int64_t>(Find(p[0], send)),
                p[0].begin() + static_cast<int64_t>(Find(p[0], send)) + 1,
                p[0].begin() + static_cast<int64_t>(Find(p[0], fold)) + 1);
  });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 at Fold(module 1) waits for rank 1, which has the other "
                        "end of an embedding and is at ReceiveBackward(link 2, microbatch 1)"));
}

TEST(CheckerTest, CheckStep_PassMissingInATensorGroup_NamesWhoHasIt) {
  const plan::Plan plan =
      PlanOf(AJob().Module("language", NoArchitecture(), {.tp = 2}).Batch(2, 1));
  const absl::Status status =
      CheckBroken(plan, [](auto& p) { Erase(p[1], Pass(Op::kForward, 0, 1)); });
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("rank 0 at Forward(module 0, chunk 0, microbatch 1) waits for rank 1, whose "
                "program does not have the pass"));
}

TEST(CheckerTest, CheckStep_ChunksInTheWrongOrder_AreRejected) {
  const plan::Plan plan = ChainUnder(job::ScheduleName::kInterleaved, 2, 2, 2);
  const absl::Status forward = CheckBroken(plan, [](auto& p) {
    Instruction first = Pass(Op::kForward, 0, 0), second = first;
    second.chunk = 1;
    Swap(p[0], first, second);
  });
  EXPECT_THAT(std::string(forward.message()),
              HasSubstr("rank 0: Forward(module 0, chunk 1, microbatch 0) stands before "
                        "ReceiveForward(link 1, microbatch 0)"));
  const absl::Status unknown = CheckBroken(plan, [](auto& p) { p[0].front().chunk = 2; });
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("is no business of this rank"));
}

TEST(CheckerTest, CheckStep_DelayedWeightPass_KeepsItsActivation) {
  const plan::Plan plan = Chain(1, 3);
  std::vector<Program> programs = Programs(plan);
  // All weight passes behind everything else.
  const auto end = programs[0].begin() + 9;
  std::stable_partition(programs[0].begin(), end,
                        [](const Instruction& i) { return i.op != Op::kBackwardWeight; });
  const auto report = CheckStep(plan, programs);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->live_activations_max, ElementsAre(3));
  Swap(programs[0], Pass(Op::kBackwardInput, 0, 2), Pass(Op::kBackwardWeight, 0, 2));
  EXPECT_THAT(std::string(CheckStep(plan, programs).status().message()),
              HasSubstr("BackwardWeight(module 0, chunk 0, microbatch 2) stands before "
                        "BackwardInput(module 0, chunk 0, microbatch 2)"));
}

TEST(CheckerTest, CheckStep_AnyOneInstructionMissing_IsRejected) {
  for (const NamedPlan& graph : Graphs()) {
    const std::vector<Program> right = Programs(graph.plan);
    for (size_t rank = 0; rank < right.size(); ++rank) {
      if (rank > 0 && right[rank] == right[rank - 1]) continue;  // another rank of the same part
      for (size_t i = 0; i < right[rank].size(); ++i) {
        std::vector<Program> programs = right;
        programs[rank].erase(programs[rank].begin() + static_cast<int64_t>(i));
        EXPECT_FALSE(CheckStep(graph.plan, programs).ok())
            << graph.name << " rank " << rank << " without " << ToString(right[rank][i]);
      }
    }
  }
}

TEST(CheckerTest, CheckStep_AnyTwoMessagesOfACommunicatorSwapped_AreRejected) {
  for (const NamedPlan& graph : Graphs()) {
    const std::vector<Program> right = Programs(graph.plan);
    for (size_t rank = 0; rank < right.size(); ++rank) {
      if (rank > 0 && right[rank] == right[rank - 1]) continue;
      int64_t before[2] = {-1, -1};
      for (size_t i = 0; i < right[rank].size(); ++i) {
        const Instruction& instruction = right[rank][i];
        if (!IsMessage(instruction.op)) continue;
        int64_t& last = before[IsBackwardMessage(instruction.op) ? 1 : 0];
        if (last >= 0 && right[rank][static_cast<size_t>(last)].ticket != instruction.ticket) {
          std::vector<Program> programs = right;
          std::swap(programs[rank][static_cast<size_t>(last)], programs[rank][i]);
          EXPECT_FALSE(CheckStep(graph.plan, programs).ok())
              << graph.name << " rank " << rank << ": " << ToString(instruction);
        }
        last = static_cast<int64_t>(i);
      }
    }
  }
}

TEST(CheckerTest, CheckStep_RightPrograms_ReportsLiveActivations) {
  const plan::Plan plan = TwoEncoders();
  const auto report = CheckStep(plan, Programs(plan));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->live_activations_max, ElementsAre(3, 3, 2, 1));
}

TEST(CheckerTest, CheckStep_AllForwardFirst_IsRightButKeepsMoreAlive) {
  const plan::Plan plan = Chain(1, 4);
  std::vector<Program> programs = Programs(plan);
  std::stable_sort(programs[0].begin(), programs[0].end(),
                   [](const Instruction& a, const Instruction& b) {
                     return a.op == Op::kForward && b.op != Op::kForward;
                   });
  const auto report = CheckStep(plan, programs);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->live_activations_max, ElementsAre(4));
}

TEST(CheckerTest, CheckStep_CollectivesInAnotherOrder_IsADeadlockOfTheGroup) {
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", NoArchitecture(), {.dp = 2})
                                     .Module("language", NoArchitecture(), {.dp = 2, .offset = 0})
                                     .Edge("vision", "language")
                                     .Batch(4, 1));
  std::vector<Program> programs = Programs(plan);
  ASSERT_TRUE(CheckStep(plan, programs).ok());
  // Rank 1 reduces its modules in the other order.
  const size_t vision = Find(programs[1], {.op = Op::kReduce, .module = 0});
  const size_t language = Find(programs[1], {.op = Op::kReduce, .module = 1});
  std::swap(programs[1][vision], programs[1][language]);
  const absl::Status status = CheckStep(plan, programs).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("deadlock with unbuffered sends"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 at Reduce"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("waits for rank 1, which is at Reduce"));
}

}  // namespace
}  // namespace phalanx::schedule
