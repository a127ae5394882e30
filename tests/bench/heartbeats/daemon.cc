#include "tests/bench/heartbeats/daemon.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/wire/session_codec.h"
#include "core/examine/examination.h"
#include "core/job/devices.h"
#include "core/job/node_check.h"
#include "tests/support/process.h"
#include "worker/agent/translate.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int32_t kNodesOfRack = 4;
constexpr uint64_t kEqualWork = 0x6a09e667f3bcc908;  // of all ranks: they do the same
constexpr double kStepSeconds = 0.8, kSecondsPerGflop = 0.0025;

v1::WorkerHello HelloOf(const Daemon::Machine& machine) {
  v1::WorkerHello hello;
  hello.set_node(NameOfNode(machine.number));
  hello.set_incarnation(static_cast<uint64_t>(machine.number) + 1);
  hello.set_protocol_version(kProtocolVersion);
  hello.set_device_kind(machine.device_kind);
  hello.set_devices(machine.devices);
  if (machine.device_kind == "gpu") {
    for (int32_t i = 0; i < machine.devices; ++i) hello.add_device_memory(140 * kGiB);
    (*hello.mutable_labels())[job::kFp8Label] = "yes";
  }
  hello.set_host_memory(1900 * kGiB + machine.number);
  auto& labels = *hello.mutable_labels();
  labels[job::kFailureDomainLabel] = absl::StrCat("rack-", machine.number / kNodesOfRack);
  labels["pool"] = "training";
  labels["zone"] = "west-1b";
  hello.set_version("1.4.0");
  hello.set_address(absl::StrCat("10.", machine.number / 65'536, ".", machine.number / 256 % 256,
                                 ".", machine.number % 256));
  return hello;
}

// A machine without trouble, but for folders and limits that somebody may look after.
examine::MachineFacts FactsOf(const Daemon::Machine& machine) {
  examine::MachineFacts facts{
      .gpu_files = machine.devices,
      .driver = {.found = true, .version = "580.159.04"},
      .gpus = machine.devices,
      .nccl = {.found = true, .version = "2.28.9"},
      .clock_synchronised = true,
      .shared_memory_bytes = 64 * kGiB,
      .limits = {.open_files = 1'048'576,
                 .locked_bytes = 8 << 20,
                 .file_bytes = examine::kUnlimited,
                 .processes = examine::kUnlimited},
      .ports_first = 32'768,
      .ports_last = 60'999,
      .host = NameOfNode(machine.number),
  };
  facts.folders = {
      {.path = "/mnt/shards", .is_written = false, .on_network = true},
      {.path = "/mnt/runs", .on_network = true, .free_bytes = (900 + machine.number % 100) * kGiB},
      {.path = "/scratch", .free_bytes = (3000 + machine.number % 100) * kGiB}};
  return facts;
}

v1::MachineExamination ExaminationOf(const Daemon::Machine& machine) {
  return agent::MessageOf(
      examine::ExamineNode(
          FactsOf(machine),
          {.gpus = machine.device_kind == "gpu" ? machine.devices : 0, .has_address = true}),
      absl::Now(), absl::Milliseconds(12));
}

job::NodeCheck CheckOf(const Daemon::Machine& machine) {
  job::NodeCheck check{.number = 1};
  for (int32_t i = 0; i < machine.devices; ++i) {
    check.devices.push_back({.device = i,
                             .verdict = job::CheckVerdict::kPassed,
                             .time = absl::Now(),
                             .memory_bytes = kGiB,
                             .operations_per_second = 6.9e14 + i,
                             .to_bytes_per_second = 5.5e10 + i,
                             .from_bytes_per_second = 5.4e10 + i,
                             .peer_bytes_per_second = 3.8e11 + i,
                             .peer = i == 0 ? 1 : 0});
  }
  check.loopback = {.bytes_per_second = 6.1e9, .round_trip_seconds = 21e-6};
  return check;
}

agent::RankWork WorkOf(int32_t rank) {
  // Machines of one kind differ by about a hundredth.
  const double pace = 1 + 0.001 * static_cast<double>(rank % 11);
  return {.rank = rank,
          .seconds = kStepSeconds * pace,
          .equal = kEqualWork,
          .seconds_per_gflop = kSecondsPerGflop * pace,
          .like = kEqualWork};
}

// Of the node, those with work.
std::vector<int32_t> RanksOf(const v1::Layout& layout, const std::string& node) {
  const auto without_work = [&layout](int32_t rank) {
    return std::binary_search(layout.lost().begin(), layout.lost().end(), rank) ||
           std::binary_search(layout.idle().begin(), layout.idle().end(), rank);
  };
  std::vector<int32_t> ranks;
  int32_t rank = 0;
  for (const auto& devices : layout.placement().nodes()) {
    const bool own = devices.node() == node;
    for (int i = 0; i < devices.devices_size(); ++i, ++rank) {
      if (own && !without_work(rank)) ranks.push_back(rank);
    }
  }
  return ranks;
}

std::unique_ptr<v1::WorkerService::Stub> ConnectWorker(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::WorkerService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

}  // namespace

Daemon::Daemon(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
               const Machine& machine, Told told)
    : machine_(machine),
      node_(NameOfNode(machine.number)),
      told_(std::move(told)),
      stub_(ConnectWorker(address, credentials)) {
  stub_->async()->OpenSession(&context_, this);
  AddHold();  // for writes that no reaction begins
  StartRead(&response_);
  v1::OpenSessionRequest request;
  *request.mutable_hello() = HelloOf(machine_);
  {
    MutexLock lock(&mu_);
    Send(std::move(request));
  }
  StartCall();
}

Daemon::~Daemon() {
  Leave();
  AwaitDone();
}

void Daemon::Leave() {
  bool held = false;
  {
    MutexLock lock(&mu_);
    leaving_ = true;
    held = std::exchange(held_, false);
  }
  context_.TryCancel();
  if (held) RemoveHold();
}

void Daemon::AwaitDone() {
  MutexLock lock(&mu_);
  while (!done_) changed_.Wait(&mu_);
}

void Daemon::AwaitWelcome() {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
  {
    MutexLock lock(&mu_);
    bool late = false;
    while (!welcomed_ && !ended_ && !late) late = changed_.WaitUntil(&mu_, end);
    if (welcomed_) return;
  }
  Leave();
  AwaitDone();
  MutexLock lock(&mu_);
  support::Require(false, absl::StrCat(node_, " is not let in: ", status_.error_message()));
}

bool Daemon::ended() const {
  MutexLock lock(&mu_);
  return ended_;
}

void Daemon::Heartbeat(int64_t number) {
  MutexLock lock(&mu_);
  agent::SendHeartbeat heartbeat;
  for (auto& [job, here] : ranks_) {
    if (here.ranks.empty()) continue;
    heartbeat.progress.push_back(
        {.job = JobId{job}, .epoch = Epoch{here.epoch}, .step = ++here.step});
    for (const int32_t rank : here.ranks) heartbeat.progress.back().work.push_back(WorkOf(rank));
  }
  const int64_t before = heartbeats_++;
  if (before == 1) heartbeat.check = std::make_shared<const job::NodeCheck>(CheckOf(machine_));
  std::vector<int32_t> temperatures;
  std::vector<int64_t> used_memory;
  for (int32_t i = 0; i < machine_.devices; ++i) {
    if (machine_.device_kind == "gpu")
      temperatures.push_back(60 + static_cast<int32_t>((before + i) % 12));
    used_memory.push_back(kUsedMemoryAtLeast + (i == 0 ? number : machine_.number + i));
  }
  v1::OpenSessionRequest request = agent::MessageOf(heartbeat, {}, temperatures, used_memory);
  if (before == 0) *request.mutable_heartbeat()->mutable_examination() = ExaminationOf(machine_);
  Send(std::move(request));
}

void Daemon::Step(int64_t job, int64_t step) {
  MutexLock lock(&mu_);
  const auto here = ranks_.find(job);
  if (here == ranks_.end() || here->second.ranks.empty() || here->second.ranks.front() != 0) return;
  v1::RankReport report;
  v1::StepReport& said = *report.mutable_step();
  said.set_step(step);
  said.set_epoch(here->second.epoch);
  said.set_loss(5.0 / static_cast<double>(step));
  said.set_gradient_norm(1.5);
  said.set_learning_rate(3e-4);
  said.set_tokens(262'144);
  said.set_counted_tokens(114'688);
  said.set_seconds(kStepSeconds);
  Report(job, here->second.epoch, 0, std::move(report));
}

void Daemon::Succeed(int64_t job, int64_t step) {
  MutexLock lock(&mu_);
  const auto here = ranks_.find(job);
  if (here == ranks_.end()) return;
  for (const int32_t rank : here->second.ranks) {
    v1::RankReport succeeded, exited;
    succeeded.mutable_succeeded()->set_step(step);
    exited.mutable_exited();
    Report(job, here->second.epoch, rank, std::move(succeeded));
    Report(job, here->second.epoch, rank, std::move(exited));
  }
  ranks_.erase(here);
}

bool Daemon::Has(int64_t job, int32_t rank) const {
  MutexLock lock(&mu_);
  const auto here = ranks_.find(job);
  return here != ranks_.end() &&
         std::binary_search(here->second.ranks.begin(), here->second.ranks.end(), rank);
}

void Daemon::Kill(int64_t job, int32_t rank) {
  MutexLock lock(&mu_);
  const auto here = ranks_.find(job);
  if (here == ranks_.end() || std::erase(here->second.ranks, rank) == 0) return;
  v1::RankReport exited;
  exited.mutable_exited()->set_signal(9);
  Report(job, here->second.epoch, rank, std::move(exited));
}

void Daemon::OnReadDone(bool ok) {
  if (!ok) {
    MutexLock lock(&mu_);
    ended_ = true;
    return changed_.SignalAll();
  }
  if (response_.has_welcome()) {
    MutexLock lock(&mu_);
    welcomed_ = true;
    changed_.SignalAll();
  } else if (response_.has_command()) {
    if (told_ != nullptr) told_(node_, response_.command());
    CarryOut(response_.command());
  }
  StartRead(&response_);
}

void Daemon::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  outbox_.pop_front();
  if (!ok) leaving_ = true;
  if (leaving_) return outbox_.clear();
  if (!outbox_.empty()) StartWrite(&outbox_.front());
}

void Daemon::OnDone(const grpc::Status& status) {
  MutexLock lock(&mu_);
  status_ = status;
  ended_ = done_ = true;
  changed_.SignalAll();
}

void Daemon::CarryOut(const v1::Command& command) {
  v1::OpenSessionRequest answer;
  v1::CommandResult& result = *answer.mutable_command_result();
  result.set_command_number(command.command_number());
  if (command.has_prepare_data()) result.set_data_digest("data");
  MutexLock lock(&mu_);
  if (command.has_stop()) StopRanks(command.stop());
  Send(std::move(answer));
  if (command.has_assign()) StartRanks(command.assign());
}

void Daemon::StartRanks(const v1::Assign& assign) {
  Ranks& here = ranks_[assign.job()];
  here.epoch = assign.epoch();
  here.ranks = RanksOf(assign.layout(), node_);
  if (assign.goes_on()) return;  // they are ready once it has begun
  for (const int32_t rank : here.ranks) {
    v1::RankReport report;
    report.mutable_ready()->set_connected(1.5);
    report.mutable_ready()->set_state(2.5);
    report.mutable_ready()->set_ready(4);
    Report(assign.job(), here.epoch, rank, std::move(report));
  }
}

void Daemon::StopRanks(const v1::Stop& stop) {
  const auto here = ranks_.find(stop.job());
  if (here == ranks_.end() || here->second.epoch > stop.epoch()) return;
  for (const int32_t rank : here->second.ranks) {
    v1::RankReport report;
    report.mutable_exited()->set_signal(15);
    report.mutable_exited()->set_expected(true);
    Report(stop.job(), here->second.epoch, rank, std::move(report));
  }
  ranks_.erase(here);
}

void Daemon::Report(int64_t job, int64_t epoch, int32_t rank, v1::RankReport report) {
  report.set_job(job);
  report.set_epoch(epoch);
  report.set_rank(rank);
  v1::OpenSessionRequest request;
  *request.mutable_rank_report() = std::move(report);
  Send(std::move(request));
}

void Daemon::Send(v1::OpenSessionRequest request) {
  if (leaving_) return;
  outbox_.push_back(std::move(request));
  if (outbox_.size() == 1) StartWrite(&outbox_.front());
}

std::string NameOfNode(int64_t number) { return absl::StrCat("node-", number); }

}  // namespace phalanx::coordinator
