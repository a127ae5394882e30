// Any message of a worker's session: translated, and told to the coordinator's machine while a job
// of that worker trains.
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/session_codec.h"
#include "core/plan/derivation.h"
#include "phalanx/v1/worker_service.pb.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/messages.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::fuzz {
namespace {

using coordinator::CommandFinished;
using coordinator::RankReported;

std::string CheckHello(const coordinator::WorkerHello& hello) {
  const auto devices = static_cast<size_t>(hello.devices);
  if (hello.node.empty() || hello.node.size() > 253) return "a node without a proper name";
  if (hello.devices < 0 || hello.devices > coordinator::kDevicesMax) return "too many devices";
  if (!hello.device_memory.empty() && hello.device_memory.size() != devices)
    return "memory of other devices";
  if (!hello.device_names.empty() && hello.device_names.size() != devices)
    return "names of other devices";
  if (hello.incarnation.value == 0) return "no incarnation";
  if (hello.derivation < plan::kOldestDerivation) return "a derivation that nobody plans";
  return "";
}

// What is cut says how much is missing.
constexpr size_t kMissingBytesMax = 48;

bool TooLong(const std::string& text) {
  return text.size() > coordinator::kReportedTextBytesMax + kMissingBytesMax;
}

std::string CheckTexts(const coordinator::Event& event) {
  if (const auto* result = std::get_if<CommandFinished>(&event)) {
    if (TooLong(result->message)) return "message: too long";
    if (result->data_violations.size() > coordinator::kViolationsMax) return "too many violations";
    if (result->corrupt_messages.size() > coordinator::kCorruptNamedMax)
      return "too many corrupt samples";
  }
  const auto* reported = std::get_if<RankReported>(&event);
  if (reported == nullptr) return "";
  if (const auto* error = std::get_if<coordinator::RankError>(&reported->report))
    return TooLong(error->message) ? "error: too long" : "";
  if (const auto* told = std::get_if<coordinator::RankEvent>(&reported->report))
    return TooLong(told->message) || TooLong(told->type) ? "event: too long" : "";
  return "";
}

// The machine takes it, and all that it stores of it is read again.
std::string CheckTaken(coordinator::Harness& machine, const coordinator::Event& event) {
  machine.Feed(event);
  machine.Advance(absl::Seconds(1));
  uint64_t number = 0;
  for (const coordinator::JournalRecord& record : machine.records) {
    const std::string stored = coordinator::EncodeRecord(record, ++number);
    const auto again = coordinator::DecodeRecord(stored, number);
    if (!again.ok()) return absl::StrCat("stores what it cannot read: ", again.status().ToString());
    if (coordinator::EncodeRecord(*again, number) != stored)
      return "stores what it reads otherwise";
  }
  return "";
}

}  // namespace

std::string Check(absl::string_view bytes) {
  v1::OpenSessionRequest message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return "";
  coordinator::Harness machine;
  const coordinator::SessionId node = machine.Open("n", 3);
  machine.Run(node, coordinator::AJob("a", 3));
  if (message.has_hello()) {
    const auto hello = coordinator::HelloFromProto(message.hello());
    if (!hello.ok()) return hello.status().message().empty() ? "refused without a word" : "";
    if (std::string wrong = CheckHello(*hello); !wrong.empty()) return wrong;
    return CheckTaken(machine, coordinator::SessionOpened{coordinator::SessionId{9}, *hello});
  }
  const auto event = coordinator::EventFromProto(node, message);
  if (!event.has_value()) return "";
  if (std::string wrong = CheckTexts(*event); !wrong.empty()) return wrong;
  return CheckTaken(machine, *event);
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  Prng prng(1);
  for (int i = 0; i < 150; ++i) {
    v1::OpenSessionRequest message;
    Fill(message, prng);
    // Of the job that trains, or what is read of it is "no such job".
    if (message.has_rank_report()) {
      message.mutable_rank_report()->set_job(1);
      message.mutable_rank_report()->set_epoch(1);
      message.mutable_rank_report()->set_rank(static_cast<int32_t>(prng.Below(3)));
    }
    if (i % 5 == 0) {
      v1::WorkerHello& hello = *message.mutable_hello();
      Fill(hello, prng);
      hello.set_node("n");
      hello.set_device_kind("cpu");
      hello.set_protocol_version(coordinator::kProtocolVersion);
      hello.set_devices(3);
      hello.clear_device_memory();
      hello.clear_device_names();
      hello.clear_derivation();
    }
    corpus.push_back(message.SerializeAsString());
  }
  return corpus;
}

}  // namespace phalanx::fuzz
