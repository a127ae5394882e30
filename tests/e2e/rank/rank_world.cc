#include "tests/e2e/rank/rank_world.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/checkpoint/manifest.h"
#include "core/schedule/choice.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "worker/agent/data_check.h"
#include "worker/agent/spawn.h"
#include "worker/channel/frame_socket.h"

namespace phalanx::e2e {
namespace {

constexpr int64_t kJob = 1;
constexpr char kNode[] = "here";

template <typename T>
T Value(absl::StatusOr<T> value) {
  support::Require(value.ok(), value.status().ToString());
  return *std::move(value);
}

plan::Cluster ClusterOf(int32_t world) {
  plan::Cluster cluster;
  for (int32_t rank = 0; rank < world; ++rank) cluster.devices.push_back({NodeName{kNode}, rank});
  return cluster;
}

job::JobSpec SpecOf(const v1::JobDocument& document) {
  return Value(wire::ReadJobFile(document.text(), job::Purpose::kSubmit)).spec;
}

}  // namespace

// One process and the threads that hear it.
class RankWorld::Rank {
 public:
  Rank(RankWorld& world, int32_t number)
      : spawned_(Value(agent::SpawnRank(tests::BinDir() + "/phalanx-rank"))),
        channel_(dup(spawned_.channel.get())),
        reader_([this, &world, number] {
          v1::ToDaemon message;
          while (channel_.Receive(&message, absl::InfiniteDuration()).ok())
            world.Take(number, message);
        }),
        talk_([this] { ReadTalk(); }) {
    spawned_.channel.reset();
  }
  ~Rank() {
    if (!reaped_) Kill();
    channel_.Shutdown();
  }

  pid_t pid() const { return spawned_.pid; }
  channel::FrameSocket& channel() { return channel_; }
  bool lives() const {
    pollfd gone{spawned_.pidfd.get(), POLLIN, 0};
    return !reaped_ && poll(&gone, 1, 0) == 0;
  }
  void Kill() {
    kill(-spawned_.pid, SIGKILL);
    Wait();
  }
  int Wait() {
    pollfd gone{spawned_.pidfd.get(), POLLIN, 0};
    const int patience = static_cast<int>(absl::ToInt64Milliseconds(support::kPatience));
    support::Require(poll(&gone, 1, patience) == 1, "a rank does not end");
    int status = 0;
    waitpid(spawned_.pid, &status, 0);
    reaped_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string talk() {
    const MutexLock lock(&mutex_);
    return said_;
  }
  void AwaitTalk(const std::string& text) {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
    const MutexLock lock(&mutex_);
    while (!absl::StrContains(said_, text)) {
      const bool expired = grown_.WaitUntil(&mutex_, deadline);
      support::Require(!expired, absl::StrCat("\"", text, "\" does not appear: ", said_));
    }
  }

 private:
  void ReadTalk() {
    pollfd entry{spawned_.output.get(), POLLIN, 0};
    char bytes[4096];
    while (poll(&entry, 1, -1) == 1) {
      const ssize_t n = read(entry.fd, bytes, sizeof(bytes));
      if (n <= 0) return;
      const MutexLock lock(&mutex_);
      said_.append(bytes, static_cast<size_t>(n));
      grown_.SignalAll();
    }
  }

  agent::Spawned spawned_;
  channel::FrameSocket channel_;
  bool reaped_ = false;
  Mutex mutex_;
  CondVar grown_;
  std::string said_ ABSL_GUARDED_BY(mutex_);
  // Last: they end with the process, and are joined before what they read goes.
  std::jthread reader_, talk_;
};

RankWorld::RankWorld(const DataFolder& data, const JobOptions& options)
    : document_(Document(data, options)) {
  data::ReadProgress progress;
  data_ = agent::CheckData({document_.text(), document_.directory()}, /*choose_checkpoint=*/false,
                           support::MakeFolder("rank-indexes"), progress);
  support::Require(data_.status.ok(), data_.status.ToString());
  const int32_t world = SpecOf(document_).World();
  for (int32_t rank = 0; rank < world; ++rank)
    ranks_.push_back(std::make_unique<Rank>(*this, rank));
}

RankWorld::~RankWorld() = default;

v1::Assign RankWorld::MakeAssign(int64_t epoch) const {
  v1::Assign assign;
  assign.set_job(kJob);
  assign.set_epoch(epoch);
  *assign.mutable_document() = document_;
  plan::Plan plan = Value(schedule::PlanJob(SpecOf(document_), ClusterOf(size()), Epoch{epoch}));
  plan.layout.data_digest = data_.digest;
  wire::ToProto(plan.layout, assign.mutable_layout());
  assign.set_plan_digest(plan.digest);
  return assign;
}

v1::RunEpoch RankWorld::MakeRun(int64_t epoch) const {
  v1::RunEpoch run;
  *run.mutable_assign() = MakeAssign(epoch);
  run.set_device_kind("cpu");
  run.set_data_index(data_.index_path);
  run.set_validation_index(data_.validation_index_path);
  run.set_address("127.0.0.1");
  run.set_threads(1);
  run.set_store(1);
  return run;
}

void RankWorld::WarmUp(int32_t rank) {
  v1::ToRank order;
  *order.mutable_warm_up() = MakeRun(epoch_);
  order.mutable_warm_up()->set_rank(rank);
  order.mutable_warm_up()->set_device_index(rank);
  const MutexLock lock(&passing_);
  const absl::Status sent =
      ranks_[static_cast<size_t>(rank)]->channel().Send(order, support::kPatience);
  support::Require(sent.ok(), sent.ToString());
}

void RankWorld::Begin(const std::optional<v1::EpochBegins>& begins,
                      const std::function<void(v1::RunEpoch&)>& alter) {
  ++epoch_;
  {
    const MutexLock lock(&mutex_);
    said_ = {.epoch = epoch_};
  }
  v1::ToRank order;
  v1::RunEpoch& run = *order.mutable_run();
  run = MakeRun(epoch_);
  run.mutable_assign()->set_goes_on(begins.has_value());
  if (alter != nullptr) alter(run);
  // As from a daemon, what ranks announce comes behind the order.
  const MutexLock lock(&passing_);
  for (int32_t rank = 0; rank < size(); ++rank) {
    run.set_rank(rank);
    run.set_device_index(rank);
    const absl::Status sent =
        ranks_[static_cast<size_t>(rank)]->channel().Send(order, support::kPatience);
    support::Require(sent.ok(), sent.ToString());
  }
  if (begins.has_value()) TellBegin(*begins);
}

void RankWorld::TellBegin(const v1::EpochBegins& begins) {
  v1::ToRank begin;
  begin.mutable_begin()->set_job(kJob);
  begin.mutable_begin()->set_epoch(epoch_);
  *begin.mutable_begin()->mutable_begins() = begins;
  for (const auto& rank : ranks_) {
    const absl::Status sent = rank->channel().Send(begin, support::kPatience);
    support::Require(sent.ok(), sent.ToString());
  }
}

void RankWorld::OrderBeside(int32_t rank, const std::function<void(v1::RunEpoch&)>& alter) {
  v1::ToRank order, announced;
  v1::RunEpoch& run = *order.mutable_run();
  run = MakeRun(epoch_ + 1);
  run.mutable_assign()->set_goes_on(true);
  run.mutable_assign()->set_beside(true);
  run.set_beside(true);
  run.set_rank(rank);
  run.set_device_index(rank);
  if (alter != nullptr) alter(run);
  const MutexLock lock(&passing_);
  *announced.mutable_rendezvous() = announced_[epoch_ + 1];
  for (const v1::ToRank* message : {&order, &announced}) {
    const absl::Status sent =
        ranks_[static_cast<size_t>(rank)]->channel().Send(*message, support::kPatience);
    support::Require(sent.ok(), sent.ToString());
  }
}

void RankWorld::PrepareStandby(const std::string& set) {
  v1::Assign assign = MakeAssign(epoch_ + 1);
  v1::ToRank order;
  v1::PrepareStandby& wanted = *order.mutable_prepare_standby();
  wanted.set_job(kJob);
  wanted.set_epoch(epoch_);
  wanted.set_set(set);
  *wanted.mutable_layout() = std::move(*assign.mutable_layout());
  wanted.set_plan_digest(assign.plan_digest());
  const MutexLock lock(&passing_);
  for (const auto& rank : ranks_) {
    const absl::Status sent = rank->channel().Send(order, support::kPatience);
    support::Require(sent.ok(), sent.ToString());
  }
}

void RankWorld::GoOver(const v1::EpochBegins& begins) {
  ++epoch_;
  {
    const MutexLock lock(&mutex_);
    said_ = {.epoch = epoch_};
  }
  TellBegin(begins);
}

void RankWorld::Take(int32_t rank, const v1::ToDaemon& message) {
  const v1::RankReport& report = message.report();
  if (message.has_ask_host_memory()) GiveHostMemory(rank, message.ask_host_memory());
  if (report.has_rendezvous()) {
    v1::ToRank passed;
    const MutexLock lock(&passing_);
    v1::Rendezvous& announced = announced_[report.epoch()];
    announced.set_job(kJob);
    announced.set_epoch(report.epoch());
    (*announced.mutable_entries())[report.rendezvous().key()] = report.rendezvous().value();
    *passed.mutable_rendezvous() = announced;
    // A rank that is gone needs no word.
    for (const auto& other : ranks_)
      other->channel().Send(passed, support::kPatience).IgnoreError();
  }
  const MutexLock lock(&mutex_);
  ++said_.messages;
  if (report.has_ready()) said_.ready[rank] = true;
  if (report.has_standby()) said_.standby[rank] = report.standby();
  if (report.has_rendezvous() && report.epoch() == said_.epoch)
    said_.keys.insert(report.rendezvous().key());
  if (report.has_step()) said_.steps.push_back(report.step());
  if (report.has_quiet()) said_.quiet[rank] = report.quiet();
  if (report.has_error()) said_.errors[rank] = report.error();
  if (report.has_succeeded()) said_.succeeded[rank] = report.succeeded();
  if (report.has_event()) said_.events.push_back(report.event());
  if (report.has_checkpoint_part())
    said_.parts[report.checkpoint_part().step()][rank] = report.checkpoint_part();
  if (report.has_checkpoint_published()) said_.published.push_back(report.checkpoint_published());
  if (message.has_stopped()) said_.stopped[rank] = true;
  if (message.has_warmed()) said_.warmed[rank] = true;
  if (message.has_ask_host_memory()) said_.host_bytes[rank] = message.ask_host_memory().bytes();
  changed_.SignalAll();
}

void RankWorld::GiveHostMemory(int32_t rank, const v1::AskHostMemory& asked) {
  v1::ToRank message;
  message.mutable_host_memory()->set_epoch(asked.epoch());
  message.mutable_host_memory()->set_bytes(asked.bytes());
  std::array<int, 2> given = {-1, -1};
  absl::Span<const int> buffers;
  const MutexLock lock(&passing_);
  const auto made = host_memory_.BuffersOf(JobId{kJob}, Epoch{asked.epoch()}, rank, asked.bytes());
  if (made.ok()) {
    given = *made;
    buffers = given;
  } else {
    message.mutable_host_memory()->set_error(std::string(made.status().message()));
  }
  std::string frame;
  support::Require(channel::AppendFrame(message, &frame).ok(), "a frame");
  // So little that the socket takes it whole.
  const ssize_t sent =
      channel::SendSome(ranks_[static_cast<size_t>(rank)]->channel().fd(), frame, buffers);
  support::Require(sent == static_cast<ssize_t>(frame.size()), "cannot give host memory");
}

void RankWorld::RefuseHostMemory() {
  const MutexLock lock(&passing_);
  host_memory_ = agent::HostMemory([] { return int64_t{1}; });
}

std::vector<checkpoint::HostCopyHeader> RankWorld::HostCopies(int32_t rank, int64_t bytes) {
  const MutexLock lock(&passing_);
  std::vector<checkpoint::HostCopyHeader> copies;
  const auto pairs = host_memory_.PairsBefore(JobId{kJob}, Epoch{INT64_MAX}, {rank});
  support::Require(!pairs.empty(), "no buffers of a rank");
  for (const int fd : pairs.back().fds) {
    std::vector<std::byte> buffer(static_cast<size_t>(bytes));
    support::Require(pread(fd, buffer.data(), buffer.size(), 0) == bytes, "cannot read a buffer");
    const auto header = checkpoint::ReadHostCopyHeader(buffer);
    if (header.ok()) copies.push_back(*header);
  }
  return copies;
}

std::string RankWorld::Describe() const {
  constexpr size_t kShown = 600;
  std::string text = "ranks do not say what is waited for";
  for (int32_t rank = 0; rank < size(); ++rank) {
    const std::string log = Log(rank);
    absl::StrAppend(&text, "\nrank ", rank, lives(rank) ? " lives: ..." : " has ended: ...",
                    log.substr(log.size() - std::min(log.size(), kShown)));
  }
  return text;
}

RankWorld::Said RankWorld::Await(const std::function<bool(const Said&)>& enough) {
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
  const MutexLock lock(&mutex_);
  while (!enough(said_)) {
    const bool expired = changed_.WaitUntil(&mutex_, deadline);
    support::Require(!expired || enough(said_), absl::StrCat("epoch ", epoch_, ": ", Describe()));
  }
  return said_;
}

void RankWorld::Publish(int32_t rank, int64_t step) {
  std::vector<checkpoint::PartFile> parts;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [number, part] : said_.parts[step]) {
      if (part.file().empty()) continue;
      parts.push_back({.file = part.file(),
                       .bytes = part.bytes(),
                       .header_bytes = part.header_bytes(),
                       .entries = part.entries(),
                       .digest = part.digest()});
    }
  }
  v1::ToRank order;
  v1::PublishCheckpoint& publish = *order.mutable_publish();
  publish.set_job(kJob);
  publish.set_epoch(epoch_);
  publish.set_rank(rank);
  publish.set_step(step);
  publish.set_parts_digest(checkpoint::DigestOf(parts));
  const absl::Status sent =
      ranks_[static_cast<size_t>(rank)]->channel().Send(order, support::kPatience);
  support::Require(sent.ok(), sent.ToString());
}

void RankWorld::Wish(int32_t rank) {
  v1::ToRank order;
  order.mutable_wish()->set_job(kJob);
  order.mutable_wish()->set_epoch(epoch_);
  const absl::Status sent =
      ranks_[static_cast<size_t>(rank)]->channel().Send(order, support::kPatience);
  support::Require(sent.ok(), sent.ToString());
}

RankWorld::Said RankWorld::Stop() {
  v1::ToRank order;
  order.mutable_stop()->set_epoch(epoch_);
  for (const auto& rank : ranks_) {
    const absl::Status sent = rank->channel().Send(order, support::kPatience);
    support::Require(sent.ok(), sent.ToString());
  }
  return Await([this](const Said& said) { return said.stopped.size() == ranks_.size(); });
}

pid_t RankWorld::pid(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]->pid(); }
bool RankWorld::lives(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]->lives(); }
void RankWorld::Kill(int32_t rank) { ranks_[static_cast<size_t>(rank)]->Kill(); }
void RankWorld::Restart(int32_t rank) {
  // In its place: Take passes announcements on to whoever is there.
  ranks_[static_cast<size_t>(rank)] = std::make_unique<Rank>(*this, rank);
}

int RankWorld::Quit(int32_t rank) {
  v1::ToRank order;
  order.mutable_quit()->set_reason("the test is over");
  const absl::Status sent =
      ranks_[static_cast<size_t>(rank)]->channel().Send(order, support::kPatience);
  support::Require(sent.ok(), sent.ToString());
  return ranks_[static_cast<size_t>(rank)]->Wait();
}

std::string RankWorld::Log(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]->talk(); }
void RankWorld::AwaitLog(int32_t rank, const std::string& text) const {
  ranks_[static_cast<size_t>(rank)]->AwaitTalk(text);
}

RankWorld::Footprint RankWorld::Now() const {
  Footprint sum;
  for (const auto& rank : ranks_) {
    const std::string folder = absl::StrCat("/proc/", rank->pid());
    sum.descriptors += std::distance(std::filesystem::directory_iterator(folder + "/fd"), {});
    sum.threads += std::distance(std::filesystem::directory_iterator(folder + "/task"), {});
    int64_t pages = 0;
    std::ifstream(folder + "/statm") >> pages >> pages;
    sum.resident_bytes += pages * sysconf(_SC_PAGESIZE);
  }
  return sum;
}

}  // namespace phalanx::e2e
