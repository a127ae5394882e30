#include "core/wire/timeline_json.h"

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan/samples.h"
#include "core/wire/timeline_names.h"

namespace phalanx::wire {
namespace {

using Json = nlohmann::ordered_json;
using schedule::Instruction;
using schedule::TimedInstruction;
using schedule::TimedOperation;

constexpr const char* kThreads[] = {"compute", "forward messages", "backward messages",
                                    "collectives"};

int32_t ThreadOf(schedule::Op op) {
  if (schedule::IsForwardMessage(op)) return 1;
  if (schedule::IsBackwardMessage(op)) return 2;
  return schedule::IsCollective(op) ? 3 : 0;
}

double Microseconds(double seconds) { return seconds * 1e6; }

// Events a line each, in the order in which they are added.
class Trace {
 public:
  void Add(const Json& event) {
    absl::StrAppend(&events_, events_.empty() ? "" : ",\n", Dump(event));
  }
  std::string Finish(const Json& about) const {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":", Dump(about),
                        ",\"traceEvents\":[\n", events_, "\n]}\n");
  }

 private:
  // A job file may hold any bytes; what is not UTF-8 in them must not throw.
  static std::string Dump(const Json& json) {
    return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  }

  std::string events_;
};

int32_t ThreadOfStream(int32_t communicator) {
  return static_cast<int32_t>(std::size(kThreads)) + communicator;
}

// A thread for each communicator of a rank that has an operation, and the operations.
void AddOperations(const plan::Plan& plan, const std::vector<TimedOperation>& operations,
                   Trace* trace) {
  if (operations.empty()) return;
  const std::vector<plan::CommunicatorSpec> communicators = plan::Communicators(plan);
  std::set<std::pair<Rank, int32_t>> named;
  for (const TimedOperation& timed : operations) {
    if (timed.communicator < 0 || static_cast<size_t>(timed.communicator) >= communicators.size())
      continue;
    const int32_t thread = ThreadOfStream(timed.communicator);
    if (named.emplace(timed.rank, thread).second) {
      const std::string& name = communicators[static_cast<size_t>(timed.communicator)].name;
      trace->Add({{"ph", "M"},
                  {"name", "thread_name"},
                  {"pid", timed.rank.value},
                  {"tid", thread},
                  {"args", {{"name", absl::StrCat("stream of ", name)}}}});
      trace->Add({{"ph", "M"},
                  {"name", "thread_sort_index"},
                  {"pid", timed.rank.value},
                  {"tid", thread},
                  {"args", {{"sort_index", thread}}}});
    }
    trace->Add({{"ph", "X"},
                {"name", plan::OperationName(timed.operation)},
                {"cat", "communication"},
                {"pid", timed.rank.value},
                {"tid", thread},
                {"ts", Microseconds(timed.begin)},
                {"dur", Microseconds(timed.end - timed.begin)}});
  }
}

void AddNames(const plan::Plan& plan, Rank rank, Trace* trace) {
  const auto add = [&](const char* what, int32_t thread, Json args) {
    trace->Add({{"ph", "M"},
                {"name", what},
                {"pid", rank.value},
                {"tid", thread},
                {"args", std::move(args)}});
  };
  add("process_name", 0,
      {{"name", absl::StrCat("rank ", rank.value, ": ", PlacesTitle(plan, rank))}});
  add("process_sort_index", 0, {{"sort_index", rank.value}});
  for (int32_t thread = 0; thread < 4; ++thread) {
    add("thread_name", thread, {{"name", kThreads[thread]}});
    add("thread_sort_index", thread, {{"sort_index", thread}});
  }
}

Json InstructionJson(const plan::Plan& plan, const TimedInstruction& timed) {
  const Instruction& instruction = timed.instruction;
  Json args = Json::object();
  if (instruction.module >= 0) {
    args["module"] = plan.module_spec(instruction.module).name;
    args["chunk"] = instruction.chunk;
  }
  if (instruction.microbatch >= 0) args["microbatch"] = instruction.microbatch;
  if (instruction.link >= 0) args["link"] = instruction.link;
  return {{"ph", "X"},
          {"name", InstructionTitle(plan, instruction)},
          {"cat", schedule::OpName(instruction.op)},
          {"pid", timed.rank.value},
          {"tid", ThreadOf(instruction.op)},
          {"ts", Microseconds(timed.begin)},
          {"dur", Microseconds(timed.end - timed.begin)},
          {"args", std::move(args)}};
}

// Both ends of one message in the timeline.
struct Exchange {
  std::vector<const TimedInstruction*> sends, receives;
};
// Microbatch first: the samples of a microbatch are listed once for all its messages.
using MessageKey = std::tuple<int32_t, int32_t, bool>;  // microbatch, link, backward

std::map<MessageKey, Exchange> Exchanges(const std::vector<TimedInstruction>& timeline) {
  std::map<MessageKey, Exchange> exchanges;
  for (const TimedInstruction& timed : timeline) {
    const Instruction& instruction = timed.instruction;
    if (!schedule::IsMessage(instruction.op)) continue;
    Exchange& exchange = exchanges[{instruction.microbatch, instruction.link,
                                    schedule::IsBackwardMessage(instruction.op)}];
    (schedule::IsSend(instruction.op) ? exchange.sends : exchange.receives).push_back(&timed);
  }
  return exchanges;
}

// Sender and receiver of each flow.
std::vector<std::pair<const TimedInstruction*, const TimedInstruction*>> FlowsOf(
    const Exchange& exchange, const std::set<std::pair<Rank, Rank>>& peers) {
  std::vector<std::pair<const TimedInstruction*, const TimedInstruction*>> exact, all;
  if (peers.empty()) return all;  // no rows in this microbatch
  for (const TimedInstruction* send : exchange.sends) {
    for (const TimedInstruction* receive : exchange.receives) {
      all.emplace_back(send, receive);
      if (peers.contains({send->rank, receive->rank})) exact.emplace_back(send, receive);
    }
  }
  return exact.empty() ? all : exact;
}

void AddFlows(const plan::Plan& plan, const std::vector<TimedInstruction>& timeline, Trace* trace) {
  int64_t id = 0;
  int32_t listed = -1;
  plan::MicrobatchSamples samples;
  for (const auto& [key, exchange] : Exchanges(timeline)) {
    const auto [microbatch, link, backward] = key;
    if (microbatch != listed) {
      // Microbatches past the step's (validation) are full ones.
      samples = plan::SamplesOfMicrobatch(plan, microbatch < plan.microbatches ? microbatch : 0);
    }
    listed = microbatch;
    std::set<std::pair<Rank, Rank>> peers;
    for (const plan::LinkMessage& message : plan::LinkMessages(plan, link, samples)) {
      peers.insert(backward ? std::pair(message.to, message.from)
                            : std::pair(message.from, message.to));
    }
    for (const auto& [send, receive] : FlowsOf(exchange, peers)) {
      ++id;
      const auto add = [&, name = backward ? "gradient" : "activation"](
                           const char* phase, const TimedInstruction* end, double time) {
        Json event = {{"ph", phase},
                      {"id", id},
                      {"name", name},
                      {"cat", "message"},
                      {"pid", end->rank.value},
                      {"tid", ThreadOf(end->instruction.op)},
                      {"ts", Microseconds(time)}};
        if (*phase == 'f') event["bp"] = "e";  // ends in the slice around it, not in the next one
        trace->Add(event);
      };
      add("s", send, send->begin);
      add("f", receive, receive->end);
    }
  }
}

}  // namespace

std::string TraceJson(const plan::Plan& plan, const std::vector<TimedInstruction>& timeline,
                      int64_t step, const std::vector<TimedOperation>& operations) {
  Trace trace;
  std::set<Rank> ranks;
  for (const TimedInstruction& timed : timeline) ranks.insert(timed.rank);
  for (Rank rank : ranks) AddNames(plan, rank, &trace);
  for (const TimedInstruction& timed : timeline) trace.Add(InstructionJson(plan, timed));
  AddFlows(plan, timeline, &trace);
  AddOperations(plan, operations, &trace);
  Json about = {{"job", plan.spec.name}, {"plan", plan.digest}};
  if (step > 0) about["step"] = step;
  return trace.Finish(about);
}

}  // namespace phalanx::wire
