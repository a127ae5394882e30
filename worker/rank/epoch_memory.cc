// Host memory of an epoch, for second homes and checkpoints.
//
// Where training goes on behind a loss or a return, memory that is not there yet is made beside it,
// from its first decided step on: until then nothing is pinned or let go (pinning_thread.h).
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/path.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "spdlog/spdlog.h"
#include "worker/rank/epoch_run.h"

namespace phalanx::rank {
namespace {

using Use = checkpoint::PinningThread::Use;

constexpr absl::Duration kHostMemoryTimeout = absl::Seconds(30);
constexpr std::chrono::minutes kLastPart{2};  // for a checkpoint to be written that others wait for
constexpr std::chrono::milliseconds kLookInterval{50};

}  // namespace

void EpochRun::GiveMemoryBack() {
  auto second_home = checkpoint::HostCopy::TakeMemory(std::move(kept_.host_copy));
  if (!second_home.empty()) kept_.pinning->GiveBack(Use::kSecondHome, std::move(second_home));
  if (auto memory = checkpoint::Snapshot::TakeMemory(std::move(kept_.snapshot))) {
    checkpoint::Mappings mappings;
    mappings.push_back(std::move(memory));
    kept_.pinning->GiveBack(Use::kCheckpoint, std::move(mappings));
  }
}

void EpochRun::HoldMemory() {
  if (kept_.pinning == nullptr) return;
  kept_.pinning->Hold();
  kept_.pinning->Cancel(Use::kSecondHome);
  kept_.pinning->Cancel(Use::kCheckpoint);
  kept_.pinning->Cancel(Use::kOthers);  // what there is of it is of use
}

void EpochRun::Deliver(const v1::HostMemory& message, std::vector<UniqueFd> buffers) {
  const MutexLock lock(&mu_);
  if (!message.error().empty()) {
    given_ = absl::ResourceExhaustedError(message.error());
  } else {
    given_ = std::move(buffers);
  }
  given_changed_.SignalAll();
}

absl::Status EpochRun::AskHostMemory(int64_t bytes, bool beside) {
  v1::ToDaemon message;
  message.mutable_ask_host_memory()->set_epoch(epoch());
  message.mutable_ask_host_memory()->set_bytes(bytes);
  message.mutable_ask_host_memory()->set_beside(beside);
  asked_until_ = comm::DeadlineIn(kHostMemoryTimeout);
  return channel_.Send(message, kSendTimeout);
}

absl::StatusOr<std::vector<UniqueFd>> EpochRun::TakeGiven() {
  // A refusal is taken, too: another question may follow.
  ASSIGN_OR_RETURN(std::vector<UniqueFd> given, *std::exchange(given_, std::nullopt));
  if (given.size() == 2) return given;
  return absl::InternalError(absl::StrCat("the daemon gave ", given.size(), " buffers, not 2"));
}

absl::StatusOr<std::vector<UniqueFd>> EpochRun::AwaitHostMemory() {
  const MutexLock lock(&mu_);
  while (!given_.has_value() && stopped_.ok()) {
    if (given_changed_.WaitUntil(&mu_, *asked_until_) && !given_.has_value())
      return absl::DeadlineExceededError("the daemon gives no host memory");
  }
  asked_until_.reset();
  RETURN_IF_ERROR(stopped_);
  return TakeGiven();
}

absl::Status EpochRun::KeepHostCopy() {
  kept_.training->set_copied(nullptr);  // an epoch before may have been without what it needed
  const int64_t bytes = checkpoint::HostCopy::BytesNeeded(plan_, *kept_.training);
  if (bytes == 0) return absl::OkStatus();
  if (goes_on()) {
    kept_.training->set_copied([] { return train::kCopiesNotYet; });  // until it is there
    return absl::OkStatus();
  }
  DropEarlierCopies();  // they are not of this training
  kept_.pinning->AwaitRoom(Use::kSecondHome, bytes);
  RETURN_IF_ERROR(AskHostMemory(bytes, /*beside=*/false));
  absl::StatusOr<std::vector<UniqueFd>> given = AwaitHostMemory();
  if (!given.ok()) return DoWithoutHostCopy(given.status());
  kept_.pinning->Make(Use::kSecondHome, {.fds = *std::move(given), .bytes = bytes});
  return UseHostCopy(kept_.pinning->Await(Use::kSecondHome));
}

absl::Status EpochRun::UseHostCopy(absl::StatusOr<checkpoint::Mappings> made) {
  if (!made.ok()) return DoWithoutHostCopy(made.status());
  kept_.host_copy = checkpoint::HostCopy::Create(
      plan_, *kept_.training,
      {.store = order_.store(), .job = order_.assign().job(), .rank = Rank{order_.rank()}},
      *std::move(made));
  kept_.host_copy->Use();
  return absl::OkStatus();
}

absl::Status EpochRun::DoWithoutHostCopy(const absl::Status& kept) {
  if (!absl::IsResourceExhausted(kept)) return kept;
  if (plan_.spec.recovery.state_home != job::StateHome::kAuto)
    return job::WithKind(job::FailureKind::kOutOfMemory, kept);
  // The job did not ask for it: it trains without a second home.
  kept_.training->set_copied([] { return train::kCopiesNotYet; });
  return TellNoSecondHome(kept.message());
}

absl::Status EpochRun::TellNoSecondHome(absl::string_view why) {
  TellSafe(std::string(why));
  v1::RankReport report;
  report.mutable_event()->set_type("NoSecondHome");
  report.mutable_event()->set_message(absl::StrCat(
      why, ": losing the only home of any state costs the steps since the last checkpoint"));
  return Report(std::move(report));
}

void EpochRun::TellSafe(const std::string& why_not) {
  if (std::exchange(safe_told_, true) || epoch() == 1) return;
  v1::RankReport report;
  report.mutable_safe()->set_why_not(why_not);
  report_status_.Update(Report(std::move(report)));
}

void EpochRun::TellMemoryLate() {
  if (std::exchange(memory_late_told_, true)) return;
  const std::string why = absl::StrCat("the daemon has given no host memory for a second home in ",
                                       absl::FormatDuration(kHostMemoryTimeout));
  Log(absl::StrCat(why, "; training goes on without it until it does"));
  v1::RankReport report;
  report.mutable_event()->set_type("NoSecondHome");
  report.mutable_event()->set_message(absl::StrCat(
      why,
      ": until it does, losing the only home of any state costs the steps since the last "
      "checkpoint"));
  report_status_.Update(Report(std::move(report)));
}

absl::Status EpochRun::TendMemory() {
  checkpoint::PinningThread& pinning = *kept_.pinning;
  if (!std::exchange(settled_, true)) {
    LogPhase("has decided its first step");
    LogMemory();
    pinning.Release();
    if (goes_on() && kept_.host_copy == nullptr)
      to_ask_ = checkpoint::HostCopy::BytesNeeded(plan_, *kept_.training);
  }
  // Copies of before may be needed until those of this epoch are whole, and fast: what has them
  // goes only where the node has no room beside it.
  if (to_ask_ > 0 && (asks_beside_ || pinning.MakeRoom(Use::kSecondHome, to_ask_)))
    RETURN_IF_ERROR(AskHostMemory(std::exchange(to_ask_, 0), asks_beside_));
  if (asked_until_.has_value()) {
    std::optional<absl::StatusOr<std::vector<UniqueFd>>> given;
    {
      const MutexLock lock(&mu_);
      if (given_.has_value()) {
        given = TakeGiven();
      }
    }
    // No message is lost on the way: it answers when it runs again.
    if (!given.has_value() && std::chrono::steady_clock::now() > *asked_until_) {
      asked_until_ = comm::DeadlineIn(kHostMemoryTimeout);
      TellMemoryLate();
    }
    if (given.has_value()) {
      asked_until_.reset();
      const int64_t bytes = checkpoint::HostCopy::BytesNeeded(plan_, *kept_.training);
      if (!given->ok()) {
        if (!absl::IsResourceExhausted(given->status()) || !std::exchange(asks_beside_, false))
          return DoWithoutHostCopy(given->status());
        to_ask_ = bytes;
        return absl::OkStatus();
      }
      pinning.Make(Use::kSecondHome, {.fds = **std::move(given), .bytes = bytes});
    }
  }
  if (auto made = pinning.Take(Use::kSecondHome)) {
    RETURN_IF_ERROR(UseHostCopy(*std::move(made)));
    LogPhase("has the memory for its second home");
  }
  if (checkpoints_later_ && HasWoundDown()) {
    const absl::Status made = MakeCheckpoints(/*now=*/false);
    if (!made.ok()) TellNoCheckpoint("any step of this rank", made);
  }
  if (auto made = pinning.Take(Use::kCheckpoint)) {
    const absl::Status begun =
        made->ok() ? BeginCheckpoints(std::move((**made)[0])) : made->status();
    if (!begun.ok()) TellNoCheckpoint("any step of this rank", begun);
  }
  return absl::OkStatus();
}

void EpochRun::WindDown() {
  std::unique_ptr<CheckpointRun> run;
  {
    const MutexLock lock(&mu_);
    run = std::move(checkpoints_);
  }
  if (run == nullptr) return;
  // What it writes nobody would publish, and where a disk is slow nobody could wait for it.
  run->Leave();
  kept_.snapshot->Detach();
  kept_.winding_down =
      Kept::WindingDown{.snapshot = std::move(kept_.snapshot), .run = std::move(run)};
}

bool EpochRun::HasWoundDown() {
  if (!kept_.winding_down.has_value()) return true;
  if (!kept_.winding_down->run->ended()) return false;
  kept_.winding_down->run = nullptr;
  if (auto memory = checkpoint::Snapshot::TakeMemory(std::move(kept_.winding_down->snapshot))) {
    checkpoint::Mappings mappings;
    mappings.push_back(std::move(memory));
    kept_.pinning->GiveBack(Use::kCheckpoint, std::move(mappings));
  }
  kept_.winding_down.reset();
  return true;
}

absl::Status EpochRun::AwaitWoundDown() {
  const auto give_up = std::chrono::steady_clock::now() + kLastPart;
  const MutexLock lock(&mu_);
  while (stopped_.ok() && !HasWoundDown()) {
    if (std::chrono::steady_clock::now() > give_up)
      return absl::DeadlineExceededError("one of an epoch before is still being written");
    given_changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kLookInterval);
  }
  return stopped_;
}

absl::StatusOr<bool> EpochRun::AwaitLastPart() {
  const auto give_up = std::chrono::steady_clock::now() + kLastPart;
  while (checkpoints_ != nullptr && std::chrono::steady_clock::now() < give_up) {
    if (checkpoints_->AwaitWritten(std::chrono::steady_clock::now() + kLookInterval)) return true;
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(stopped_);
  }
  return checkpoints_ == nullptr;
}

absl::Status EpochRun::MakeCheckpoints(bool now) {
  if (!plan_.spec.checkpoint.has_value() || checkpoints_ != nullptr) return absl::OkStatus();
  if (now) RETURN_IF_ERROR(AwaitWoundDown());
  checkpoints_later_ = !HasWoundDown();
  if (checkpoints_later_) {
    // No rank begins a checkpoint while one says so.
    kept_.training->set_writing([] { return true; });
    return absl::OkStatus();
  }
  checkpoint::PinningThread& pinning = *kept_.pinning;
  const int64_t bytes = checkpoint::Snapshot::BytesNeeded(plan_, *kept_.training);
  if (bytes == 0) return BeginCheckpoints(nullptr);
  if (auto memory = pinning.TakeBack(Use::kCheckpoint, bytes))
    return BeginCheckpoints(std::move(memory));
  if (!pinning.making(Use::kCheckpoint)) pinning.Make(Use::kCheckpoint, {.bytes = bytes});
  if (!now && (goes_on() || settled_)) {
    kept_.training->set_writing([] { return true; });
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(checkpoint::Mappings made, pinning.Await(Use::kCheckpoint));
  return BeginCheckpoints(std::move(made[0]));
}

absl::Status EpochRun::BeginCheckpoints(std::unique_ptr<checkpoint::PinnedMapping> memory) {
  if (kept_.snapshot == nullptr)
    kept_.snapshot = checkpoint::Snapshot::Create(plan_, *kept_.training, std::move(memory));
  auto checkpoints = std::make_unique<CheckpointRun>(
      plan_, *kept_.training, *kept_.snapshot,
      CheckpointOptions{.directory = ResolvePath(order_.assign().document().directory(),
                                                 plan_.spec.checkpoint->directory),
                        .store = store_,
                        .job = order_.assign().job(),
                        .rank = Rank{order_.rank()},
                        .in_use = order_.assign().checkpoint().path(),
                        .folders = WriteFolders(),
                        .reporter = reporter_,
                        .faults = &faults_.points},
      [&channel = channel_, whose = whose()](v1::RankReport report) {
        const absl::Status sent = SendReport(channel, whose, std::move(report));
        if (!sent.ok()) spdlog::warn("could not tell the daemon: {}", sent.ToString());
      });
  kept_.training->set_writing([run = checkpoints.get()] { return run->writing(); });
  const MutexLock lock(&mu_);
  checkpoints_ = std::move(checkpoints);
  return absl::OkStatus();
}

}  // namespace phalanx::rank
