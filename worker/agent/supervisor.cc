#include "worker/agent/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/posix/activity.h"
#include "core/posix/process_usage.h"
#include "core/wire/fault_codec.h"
#include "spdlog/spdlog.h"
#include "worker/agent/rank_environment.h"
#include "worker/agent/translate.h"

namespace phalanx::agent {
namespace {

constexpr size_t kChannelReadBytes = 64 << 10;
// Of one process before the others have their turn.
constexpr size_t kTurnBytes = 1 << 20;
// What an ended process, or a grandchild that still holds its pipes, may leave to be read.
constexpr size_t kLastWordsBytes = 64 << 20;
constexpr size_t kOutgoingBytesMax = 64 << 20;
constexpr size_t kLogTailBytes = 4 << 10;
constexpr int kLastWaitMilliseconds = 2000;
constexpr absl::Duration kOrphanPatience = absl::Milliseconds(100);  // with all of them

// False: there is no descriptor left.
bool Duplicate(const std::array<int, 2>& fds, std::vector<UniqueFd>* duplicates) {
  for (const int fd : fds) {
    duplicates->emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!duplicates->back().is_open()) return false;
  }
  return true;
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

Supervisor::Supervisor(const SupervisorOptions& options, LogActivity& activity)
    : options_(options), activity_(activity) {}

Supervisor::~Supervisor() {
  for (auto& [number, process] : processes_) kill(-process.spawned.pid, SIGKILL);
  if (check_.has_value()) {
    kill(-check_->spawned.pid, SIGKILL);
    pollfd gone{check_->spawned.pidfd.get(), POLLIN, 0};
    if (poll(&gone, 1, kLastWaitMilliseconds) == 1) ReapCheck();
  }
  for (size_t left = left_.size(); left-- > 0;) {
    pollfd gone{left_[left].spawned.pidfd.get(), POLLIN, 0};
    if (poll(&gone, 1, 0) == 1) ReapLeft(left);
  }
  while (!processes_.empty()) {
    // A process inside a wedged driver does not die of SIGKILL; the daemon's end must not wait for
    // it.
    pollfd gone{processes_.begin()->second.spawned.pidfd.get(), POLLIN, 0};
    if (poll(&gone, 1, kLastWaitMilliseconds) == 1) {
      Reap(processes_.begin()->first);
    } else {
      processes_.erase(processes_.begin());
    }
  }
}

ProcessStarted Supervisor::Carry(const StartProcess& order) {
  absl::StatusOr<JobFolders> folders = FoldersOf(options_.folders, order.assign->document.owner);
  if (!folders.ok()) return {order.process, folders.status()};
  if (!folders->read.empty() && folders->write.empty()) {
    return {order.process, absl::FailedPreconditionError(
                               "jobs write nothing on this node: it has no --write-folder")};
  }
  const absl::StatusOr<RankVariables> environment =
      RankEnvironment(order.assign->document.text, folders->secrets);
  if (!environment.ok()) return {order.process, environment.status()};
  absl::StatusOr<Spawned> spawned =
      SpawnRank(options_.program, environment->all, {}, environment->has_secrets);
  if (!spawned.ok()) return {order.process, spawned.status()};
  Process process;
  process.spawned = *std::move(spawned);
  process.watch = std::make_unique<DeathWatch>(*std::move(process.spawned.life));
  process.job = order.job;
  process.folders = *std::move(folders);
  process.device = order.device;
  process.rank = order.rank;
  process.epoch = order.epoch;
  OpenLog(process, order.store, order.epoch, order.rank);
  activity_.ProcessBegan(order.job);
  spdlog::info("{} epoch={} rank={} device={} started pid={}", ToString(order.job),
               order.epoch.value, order.rank, order.device, process.spawned.pid);
  processes_.emplace(order.process, std::move(process));
  return {order.process, absl::OkStatus()};
}

std::vector<int64_t> Supervisor::ResidentBytes(int32_t devices) const {
  std::vector<int64_t> bytes(static_cast<size_t>(std::max(devices, 0)), 0);
  for (const auto& [number, process] : processes_) {
    if (process.device >= 0 && process.device < devices)
      bytes[static_cast<size_t>(process.device)] += ResidentBytesOf(process.spawned.pid);
  }
  return bytes;
}

template <typename Order>
bool Supervisor::Fill(const Order& order, Process& process, v1::RunEpoch& run) {
  if (!run.mutable_assign()->ParseFromString(order.assign->payload)) {
    FailChannel(order.process, process, "the assignment is no Assign message");
    return false;
  }
  run.set_rank(order.rank);
  process.rank = order.rank;
  run.set_device_index(order.device);
  run.set_device_kind(options_.device_kind);
  run.set_data_index(order.index_path);
  run.set_validation_index(order.validation_index_path);
  run.set_address(options_.address);
  run.set_threads(options_.threads);
  run.set_store(order.store);
  const std::vector<std::string> readable = ReadableFolders(process.folders);
  const std::vector<std::string>& writable = process.folders.write;
  *run.mutable_read_folders() = {readable.begin(), readable.end()};
  *run.mutable_write_folders() = {writable.begin(), writable.end()};
  return true;
}

void Supervisor::Carry(const SendRunEpoch& order) {
  const auto found = processes_.find(order.process);
  if (found == processes_.end()) return;
  ReadOutput(order.process, found->second,
             kTurnBytes);  // what it printed so far belongs to the epoch before
  OpenLog(found->second, order.store, order.assign->epoch, order.rank);
  found->second.epoch = order.assign->epoch;
  found->second.assigned = true;
  v1::ToRank message;
  message.mutable_run()->set_beside(order.beside);
  if (!Fill(order, found->second, *message.mutable_run())) return;
  if (order.keeps) {  // whatever has become of the node's devices
    message.mutable_run()->set_keeps(true);
    message.mutable_run()->set_device_kind("cpu");
  }
  Send(order.process, message);
}

void Supervisor::Carry(const SendWarmUp& order) {
  const auto found = processes_.find(order.process);
  if (found == processes_.end()) return;
  v1::ToRank message;
  v1::RunEpoch& warm_up = *message.mutable_warm_up();
  if (!Fill(order, found->second, warm_up)) return;
  // What it says meanwhile is of that one.
  warm_up.mutable_assign()->set_epoch(found->second.epoch.value);
  Send(order.process, message);
}

void Supervisor::Carry(const SendBeginEpoch& order) {
  v1::ToRank message;
  if (message.mutable_begin()->ParseFromString(order.payload)) Send(order.process, message);
}

void Supervisor::Carry(const SendRendezvous& order) {
  v1::ToRank message;
  if (message.mutable_rendezvous()->ParseFromString(order.payload)) Send(order.process, message);
}

void Supervisor::Carry(const SendPublish& order) {
  v1::ToRank message;
  if (message.mutable_publish()->ParseFromString(order.payload)) Send(order.process, message);
}

void Supervisor::Carry(const SendWriteIncident& order) {
  const auto found = processes_.find(order.process);
  v1::ToRank message;
  v1::WriteIncident& incident = *message.mutable_write_incident();
  if (found == processes_.end() || !incident.ParseFromString(order.payload)) return;
  const std::vector<std::string>& writable = found->second.folders.write;
  *incident.mutable_folders() = {writable.begin(), writable.end()};
  Send(order.process, message);
}

void Supervisor::Carry(const SendWish& order) {
  v1::ToRank message;
  if (message.mutable_wish()->ParseFromString(order.payload)) Send(order.process, message);
}

void Supervisor::Carry(const SendPrepareStandby& order) {
  v1::ToRank message;
  if (message.mutable_prepare_standby()->ParseFromString(order.payload))
    Send(order.process, message);
}

void Supervisor::Carry(const SendFault& order) {
  v1::ToRank message;
  wire::ToProto(order.fault, message.mutable_fault());
  Send(order.process, message);
}

void Supervisor::Carry(const SendStopEpoch& order) {
  v1::ToRank message;
  message.mutable_stop()->set_epoch(order.epoch.value);
  Send(order.process, message);
}

void Supervisor::Carry(const SendQuit& order) {
  v1::ToRank message;
  message.mutable_quit()->set_reason(order.reason);
  Send(order.process, message);
}

void Supervisor::Carry(const TerminateProcess& order) {
  const auto found = processes_.find(order.process);
  if (found != processes_.end()) kill(-found->second.spawned.pid, SIGTERM);
}

void Supervisor::Carry(const KillProcess& order) {
  const auto found = processes_.find(order.process);
  if (found != processes_.end()) kill(-found->second.spawned.pid, SIGKILL);
}

void Supervisor::Send(ProcessNumber number, const google::protobuf::MessageLite& message,
                      std::vector<UniqueFd> descriptors) {
  const auto found = processes_.find(number);
  if (found == processes_.end() || !found->second.spawned.channel.is_open()) return;
  Process& process = found->second;
  if (!descriptors.empty())
    process.attachments.push_back({process.outgoing.size(), std::move(descriptors)});
  const absl::Status framed = channel::AppendFrame(message, &process.outgoing);
  if (!framed.ok()) return FailChannel(number, process, std::string(framed.message()));
  Flush(number, process);
  if (process.outgoing.size() > kOutgoingBytesMax) {
    FailChannel(number, process, "the rank does not read");
  }
}

void Supervisor::Flush(ProcessNumber number, Process& process) {
  size_t sent = 0;
  while (sent < process.outgoing.size()) {
    // Descriptors travel with the first byte of their frame, so what is before it goes alone.
    std::vector<int> descriptors;
    size_t end = process.outgoing.size();
    for (const Process::Attachment& attachment : process.attachments) {
      if (attachment.at > sent) {
        end = attachment.at;
        break;
      }
      for (const UniqueFd& fd : attachment.descriptors) descriptors.push_back(fd.get());
    }
    const ssize_t n = channel::SendSome(
        process.spawned.channel.get(), absl::string_view(process.outgoing).substr(sent, end - sent),
        descriptors);
    if (n > 0) {
      if (!descriptors.empty()) process.attachments.pop_front();
      sent += static_cast<size_t>(n);
    } else if (n < 0 && WouldBlock()) {
      break;
    } else if (n == 0 || errno != EINTR) {
      // What it wrote before it closed is still to be read: ReadChannel will find the end.
      process.outgoing.clear();
      process.attachments.clear();
      if (!process.channel_failed) {
        process.channel_failed = true;
        events_.push_back(ChannelFailed{number, "cannot write to it"});
      }
      return;
    }
  }
  process.outgoing.erase(0, sent);
  for (Process::Attachment& attachment : process.attachments) attachment.at -= sent;
}

void Supervisor::GiveHostMemory(ProcessNumber number, const Process& process,
                                const v1::AskHostMemory& asked) {
  v1::ToRank message;
  v1::HostMemory& answer = *message.mutable_host_memory();
  answer.set_epoch(asked.epoch());
  answer.set_bytes(asked.bytes());
  std::vector<UniqueFd> descriptors;
  const auto buffers = host_memory_.BuffersOf(process.job, Epoch{asked.epoch()}, process.rank,
                                              asked.bytes(), asked.beside());
  if (!buffers.ok()) {
    answer.set_error(std::string(buffers.status().message()));
  } else if (!Duplicate(*buffers, &descriptors)) {
    answer.set_error(absl::StrCat("no file descriptor left: ", strerror(errno)));
    descriptors.clear();
  }
  Send(number, message, std::move(descriptors));
}

// What cannot be given is not there.
void Supervisor::GiveHostCopies(ProcessNumber number, const Process& process,
                                const v1::AskHostCopies& asked) {
  v1::ToRank message;
  v1::HostCopies& answer = *message.mutable_host_copies();
  answer.set_epoch(asked.epoch());
  const std::vector<int32_t> ranks(asked.ranks().begin(), asked.ranks().end());
  const Epoch epoch{asked.epoch()};
  for (const auto& pair : asked.of_this() ? host_memory_.PairsOf(process.job, epoch, ranks)
                                          : host_memory_.PairsBefore(process.job, epoch, ranks)) {
    std::vector<UniqueFd> descriptors;
    if (!Duplicate(pair.fds, &descriptors)) continue;
    answer.set_rank(pair.rank);
    answer.set_of_epoch(pair.epoch.value);
    answer.set_bytes(pair.bytes);
    Send(number, message, std::move(descriptors));
  }
  answer.Clear();
  answer.set_epoch(asked.epoch());
  answer.set_done(true);
  Send(number, message);
}

void Supervisor::FailChannel(ProcessNumber number, Process& process, std::string reason) {
  process.spawned.channel.reset();
  process.outgoing.clear();
  process.attachments.clear();
  if (std::exchange(process.channel_failed, true)) return;
  events_.push_back(ChannelFailed{number, std::move(reason)});
}

void Supervisor::AddTo(std::vector<pollfd>& fds) const {
  if (check_.has_value()) {
    fds.push_back({check_->spawned.pidfd.get(), POLLIN, 0});
    if (check_->spawned.output.is_open()) fds.push_back({check_->spawned.output.get(), POLLIN, 0});
  }
  for (const Check& left : left_) fds.push_back({left.spawned.pidfd.get(), POLLIN, 0});
  for (const auto& [number, process] : processes_) {
    const Spawned& spawned = process.spawned;
    fds.push_back({spawned.pidfd.get(), POLLIN, 0});
    if (!process.died) fds.push_back({process.watch->fd(), POLLIN, 0});
    if (spawned.channel.is_open()) {
      const short out = process.outgoing.empty() ? 0 : POLLOUT;
      fds.push_back({spawned.channel.get(), static_cast<short>(POLLIN | out), 0});
    }
    if (spawned.output.is_open()) fds.push_back({spawned.output.get(), POLLIN, 0});
  }
}

std::vector<Event> Supervisor::HandleReady(const std::vector<pollfd>& fds) {
  const auto ready = [&fds](int fd) -> short {
    if (fd < 0) return 0;
    for (const pollfd& entry : fds) {
      if (entry.fd == fd) return entry.revents;
    }
    return 0;
  };
  if (check_.has_value()) {
    if (ready(check_->spawned.output.get()) != 0) ReadCheck();
    if (ready(check_->spawned.pidfd.get()) != 0) ReapCheck();
  }
  for (size_t left = left_.size(); left-- > 0;) {
    if (ready(left_[left].spawned.pidfd.get()) != 0) ReapLeft(left);
  }
  std::vector<ProcessNumber> ended;
  for (auto& [number, process] : processes_) {
    const short channel = ready(process.spawned.channel.get());
    const bool output = ready(process.spawned.output.get()) != 0;
    if (ready(process.spawned.pidfd.get()) != 0) {
      ended.push_back(number);
      continue;
    }
    if (ready(process.watch->fd()) != 0) TellDeath(number, process);
    if ((channel & POLLOUT) != 0) Flush(number, process);
    if ((channel & ~POLLOUT) != 0) ReadChannel(number, process, kTurnBytes);
    if (output) ReadOutput(number, process, kTurnBytes);
  }
  for (const ProcessNumber number : ended) Reap(number);
  return std::exchange(events_, {});
}

std::vector<Event> Supervisor::LookAtBeats() {
  std::vector<Event> events;
  for (auto& [number, process] : processes_) {
    const uint64_t beats = process.watch->beats();
    if (std::exchange(process.beats, beats) == beats) continue;
    const uint64_t work = process.watch->work();
    const bool same = std::exchange(process.work, work) == work;
    events.push_back(ProcessRan{.process = number,
                                .stands_still = same && ShowsWork(work),
                                .waits = same && ShowsNeed(work)});
  }
  return events;
}

bool Supervisor::ReadChannel(ProcessNumber number, Process& process, size_t bytes_max) {
  char bytes[kChannelReadBytes];
  for (size_t total = 0; total < bytes_max;) {
    if (!process.spawned.channel.is_open()) return true;
    const ssize_t n = recv(process.spawned.channel.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && WouldBlock()) return true;
    if (n <= 0) {
      FailChannel(number, process, n == 0 ? "closed by the rank" : strerror(errno));
      return true;
    }
    total += static_cast<size_t>(n);
    process.decoder.Append({bytes, static_cast<size_t>(n)});
    while (true) {
      absl::StatusOr<std::optional<std::string>> frame = process.decoder.Next();
      if (!frame.ok()) {
        FailChannel(number, process, std::string(frame.status().message()));
        return true;
      }
      if (!frame->has_value()) break;
      Deliver(number, process, **frame);
    }
  }
  return false;
}

void Supervisor::Deliver(ProcessNumber number, Process& process, const std::string& frame) {
  v1::ToDaemon message;
  if (!message.ParseFromString(frame)) {
    return FailChannel(number, process, "a frame is no ToDaemon message");
  }
  switch (message.message_case()) {
    case v1::ToDaemon::kAskHostMemory:
      return GiveHostMemory(number, process, message.ask_host_memory());
    case v1::ToDaemon::kAskHostCopies:
      return GiveHostCopies(number, process, message.ask_host_copies());
    case v1::ToDaemon::kHostCopiesWhole:
      return host_memory_.FreeBefore(process.job, Epoch{message.host_copies_whole().epoch()});
    case v1::ToDaemon::kStrangers:
      strangers_ += std::max<int64_t>(message.strangers().refused(), 0);
      return;
    default:
      break;
  }
  if (message.has_hello()) process.watch->Begin();
  for (Event& event : EventsOf(number, message)) events_.push_back(std::move(event));
}

// What it said before is told first.
void Supervisor::TellDeath(ProcessNumber number, Process& process) {
  if (std::exchange(process.died, true)) return;
  ReadChannel(number, process, kLastWordsBytes);
  events_.push_back(ProcessDied{number});
}

void Supervisor::Reap(ProcessNumber number) {
  const auto found = processes_.find(number);
  Process& process = found->second;
  // Before it is reaped its process group cannot be another's.
  kill(-process.spawned.pid, SIGKILL);
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(process.spawned.pid), &info, WEXITED) != 0 &&
         errno == EINTR) {
  }
  ReadChannel(number, process, kLastWordsBytes);
  ReadOutput(number, process, kLastWordsBytes);
  TellDropped(number, process, /*last=*/true);
  ProcessExited exited{.process = number};
  if (info.si_code == CLD_EXITED) {
    exited.exit_code = info.si_status;
  } else {
    exited.signal = info.si_status;
  }
  if (process.log != nullptr) exited.log_tail = process.log->Tail(kLogTailBytes);
  const JobId job = process.job;
  processes_.erase(found);
  if (options_.end_orphans) EndOrphans();
  activity_.ProcessEnded(job);
  events_.push_back(std::move(exited));
}

void Supervisor::EndOrphans() const {
  const absl::Time patience = absl::Now() + kOrphanPatience;
  std::set<pid_t> ranks;
  if (check_.has_value()) ranks.insert(check_->spawned.pid);
  for (const auto& [number, process] : processes_) ranks.insert(process.spawned.pid);
  std::error_code error;
  for (std::filesystem::directory_iterator task("/proc/self/task", error), end;
       !error && task != end; task.increment(error)) {
    std::ifstream children(task->path() / "children");
    for (pid_t pid; children >> pid;) {
      if (ranks.contains(pid) || ranks.contains(getpgid(pid))) continue;
      kill(pid, SIGKILL);
      const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      pollfd gone{process.get(), POLLIN, 0};
      // One whose end takes long is found again behind the next rank's.
      const absl::Duration left = std::max(patience - absl::Now(), absl::ZeroDuration());
      poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
      waitpid(pid, nullptr, WNOHANG);
    }
  }
}

}  // namespace phalanx::agent
