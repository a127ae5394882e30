#include "worker/train/bound_program.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/plan/activations.h"

namespace phalanx::train {
namespace {

using schedule::Instruction;
using schedule::Op;

bool IsAtSource(Op op) { return op == Op::kSendForward || op == Op::kReceiveBackward; }

class Binder {
 public:
  Binder(const plan::Plan& plan, Rank rank, const BindingTables& tables,
         const std::vector<plan::MicrobatchSamples>& microbatches)
      : plan_(plan), rank_(rank), tables_(tables), microbatches_(microbatches) {}

  BoundProgram Run(const schedule::Program& program) {
    BoundProgram all;
    std::vector<BoundInstruction>& bound = all.instructions;
    bound.reserve(program.size());
    for (const Instruction& instruction : program) bound.push_back(BindOne(instruction));
    for (size_t i = 0; i < bound.size();) {
      size_t end = i + 1;
      while (schedule::IsMessage(program[i].op) && end < bound.size() &&
             schedule::IsMessage(program[end].op) && program[end].ticket == program[i].ticket) {
        ++end;
      }
      bound[i].exchange = static_cast<int32_t>(end - i);
      i = end;
    }
    CountSends(bound);
    FindPasses(bound);
    std::set<std::pair<int32_t, int32_t>> seen;
    for (auto one = bound.rbegin(); one != bound.rend(); ++one) {
      if (one->microbatch >= 0) one->last_use = seen.insert({one->part, one->microbatch}).second;
    }
    BindReductions(program, all);
    for (size_t i = 0; i < bound.size(); ++i) {
      if (bound[i].op == Op::kReduce) FindLastPass(program, i, all);
    }
    return all;
  }

 private:
  static bool TalksToOthers(const std::vector<BoundInstruction>& bound) {
    return std::any_of(bound.begin(), bound.end(), [](const BoundInstruction& instruction) {
      return std::any_of(
          instruction.messages.begin(), instruction.messages.end(),
          [](const BoundMessage& message) { return message.peer != BoundMessage::kSelf; });
    });
  }
  // The last backward pass before the reduction at `at`, if sums that begin in it stay in the order
  // of all reductions: a data communicator may serve several parts, and some of its ranks may have
  // no samples in that pass. Both ends of a tied embedding are folded first. Where others wait for
  // messages of this rank, sums stand where the checker has seen them, since on CPU they wait.
  void FindLastPass(const schedule::Program& program, size_t at, BoundProgram& all) const {
    const Instruction& reduce = program[at];
    if (all.ties.contains(reduce.module) || TalksToOthers(all.instructions)) return;
    if (!plan::BackwardIsOne(
            plan_, {reduce.module, plan_.PlaceOf(rank_, reduce.module)->pp, reduce.chunk}))
      return;
    for (size_t i = at; i-- > 0 && program[i].op != Op::kReduce;) {
      if (program[i].op != Op::kBackwardInput ||
          all.instructions[i].part != all.instructions[at].part)
        continue;
      all.instructions[i].completes = true;
      return;
    }
  }

  void BindReductions(const schedule::Program& program, BoundProgram& all) {
    for (const Instruction& instruction : program) {
      if (instruction.op == Op::kReduce) {
        const auto part =
            static_cast<size_t>(tables_.part_of.at({instruction.module, instruction.chunk}));
        const plan::Place& place = tables_.places[part];
        all.reductions.resize(tables_.places.size());
        all.reductions[part] = plan::ReductionOf(
            plan_, place, instruction.chunk, plan::ParametersOf(plan_, place, instruction.chunk));
      } else if (instruction.op == Op::kFold) {
        std::vector<plan::Copy>& ends = all.ties[instruction.module];
        for (plan::Copy& copy :
             plan::TiedCopies(plan_, *plan_.PlaceOf(rank_, instruction.module))) {
          if (plan_.RankOf(copy.lead) != rank_ && plan_.RankOf(copy.follower) != rank_) continue;
          ends.push_back(std::move(copy));
        }
      }
    }
  }

  static void CountSends(std::vector<BoundInstruction>& bound) {
    std::map<std::tuple<Op, int32_t, int32_t>, int32_t> sends;  // of direction, part, microbatch
    for (const BoundInstruction& one : bound) {
      if (schedule::IsSend(one.op) && !one.messages.empty())
        ++sends[{one.op, one.part, one.microbatch}];
    }
    for (BoundInstruction& one : bound) {
      if (one.op != Op::kForward && one.op != Op::kBackwardInput) continue;
      const Op send = one.op == Op::kForward ? Op::kSendForward : Op::kSendBackward;
      const auto found = sends.find({send, one.part, one.microbatch});
      if (found != sends.end()) one.sends = found->second;
    }
  }

  // A send needs the pass that makes what it sends. Whether a gradient comes, and of which shape,
  // is known from the forward pass on.
  static void FindPasses(std::vector<BoundInstruction>& bound) {
    std::map<std::tuple<Op, int32_t, int32_t>, size_t> passes;  // by part, microbatch
    for (size_t i = 0; i < bound.size(); ++i) {
      const BoundInstruction& one = bound[i];
      if (one.op == Op::kForward || one.op == Op::kBackwardInput)
        passes[{one.op, one.part, one.microbatch}] = i;
    }
    for (BoundInstruction& one : bound) {
      if (!schedule::IsMessage(one.op) || one.op == Op::kReceiveForward) continue;
      const Op pass = one.op == Op::kSendBackward ? Op::kBackwardInput : Op::kForward;
      const auto found = passes.find({pass, one.part, one.microbatch});
      if (found != passes.end()) one.behind = static_cast<int32_t>(found->second);
    }
  }

  BoundInstruction BindOne(const Instruction& instruction) {
    BoundInstruction bound{.op = instruction.op,
                           .module = instruction.module,
                           .microbatch = instruction.microbatch,
                           .link = instruction.link};
    if (schedule::IsMessage(instruction.op)) {
      const plan::Link& link = plan_.links[static_cast<size_t>(instruction.link)];
      const bool at_source = IsAtSource(instruction.op);
      const plan::PartId& end = at_source ? link.from : link.to;
      bound.module = end.module;
      bound.part = tables_.part_of.at({end.module, end.chunk});
      const std::vector<int32_t> links = at_source ? plan_.LinksOutOf(end) : plan_.LinksInto(end);
      bound.link_index = static_cast<int32_t>(
          std::find(links.begin(), links.end(), instruction.link) - links.begin());
    } else if (instruction.module >= 0 && !schedule::IsTie(instruction.op)) {
      bound.part = tables_.part_of.at({instruction.module, instruction.chunk});
    }
    if (instruction.microbatch < 0) return bound;
    const plan::Place& place = tables_.places[static_cast<size_t>(bound.part)];
    const auto m = static_cast<size_t>(instruction.microbatch);
    bound.lane = plan::LaneSamples(plan_, place.module, place.dp, microbatches_[m]);
    if (schedule::IsMessage(instruction.op)) bound.messages = MessagesOf(instruction);
    return bound;
  }

  // The list of a link in a microbatch depends on the sizes of lanes alone, of which there are few.
  const std::vector<plan::LinkMessage>& ListOf(int32_t link, size_t microbatch) {
    const plan::MicrobatchSamples& samples = microbatches_[microbatch];
    const auto [list, is_new] = lists_.try_emplace({link, samples.lane_first});
    if (is_new) list->second = plan::LinkMessages(plan_, link, samples);
    return list->second;
  }

  std::vector<BoundMessage> MessagesOf(const Instruction& instruction) {
    const std::vector<plan::LinkMessage>& list =
        ListOf(instruction.link, static_cast<size_t>(instruction.microbatch));
    const bool forward = schedule::IsForwardMessage(instruction.op);
    const bool at_source = IsAtSource(instruction.op);
    const auto& peers = forward ? tables_.forward_peers : tables_.backward_peers;
    std::vector<BoundMessage> messages;
    for (size_t i = 0; i < list.size(); ++i) {
      const plan::LinkMessage& message = list[i];
      if ((at_source ? message.from : message.to) != rank_) continue;
      const Rank other = at_source ? message.to : message.from;
      messages.push_back({.peer = other == rank_ ? BoundMessage::kSelf : peers.at(other),
                          .place = static_cast<int64_t>(i),
                          .of = message});
    }
    return messages;
  }

  const plan::Plan& plan_;
  const Rank rank_;
  const BindingTables& tables_;
  const std::vector<plan::MicrobatchSamples>& microbatches_;
  std::map<std::pair<int32_t, std::vector<int64_t>>, std::vector<plan::LinkMessage>> lists_;
};

}  // namespace

BoundProgram Bind(const plan::Plan& plan, Rank rank, const schedule::Program& program,
                  const BindingTables& tables,
                  const std::vector<plan::MicrobatchSamples>& microbatches) {
  return Binder(plan, rank, tables, microbatches).Run(program);
}

}  // namespace phalanx::train
