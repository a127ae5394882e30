// An epoch that goes on from copies of state in memory of the nodes' daemons
// (worker/checkpoint/host_copy.h): what of them this rank finds, and how it takes them.
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/plan/copy_takers.h"
#include "core/plan/preparation.h"
#include "core/plan/shares.h"
#include "core/wire/layout_codec.h"
#include "spdlog/spdlog.h"
#include "worker/checkpoint/host_load.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kHostCopiesTimeout = absl::Seconds(30);

// Of whom this rank takes what does not train: of itself, and if it is the first of its node that
// has work, of ranks of the node that have none.
std::vector<int32_t> RanksToStandFor(const plan::Plan& plan, Rank self) {
  int32_t first = 0;
  for (const plan::NodeDevices& node : plan.layout.nodes) {
    const int32_t end = first + static_cast<int32_t>(node.devices.size());
    if (self.value < first || self.value >= end) {
      first = end;
      continue;
    }
    std::vector<int32_t> ranks = {self.value}, without_work;
    bool is_first = true;
    for (int32_t rank = first; rank < end; ++rank) {
      if (plan.PlacesOf(Rank{rank}).empty()) {
        if (rank != self.value) without_work.push_back(rank);
      } else if (rank < self.value) {
        is_first = false;
      }
    }
    if (is_first) ranks.insert(ranks.end(), without_work.begin(), without_work.end());
    return ranks;
  }
  return {self.value};
}

}  // namespace

absl::Status EpochRun::OfCopies(absl::Status status) {
  if (!absl::IsDataLoss(status) && !absl::IsFailedPrecondition(status)) return status;
  if (job::KindIn(status).has_value()) return status;
  return job::WithKind(job::FailureKind::kStateLost, std::move(status));
}

void EpochRun::Deliver(const v1::HostCopies& message, std::vector<UniqueFd> buffers) {
  const MutexLock lock(&mu_);
  if (message.done()) {
    (asked_of_this_ ? others_given_ : copies_given_) = true;
    given_changed_.SignalAll();
    return;
  }
  if (buffers.size() != 2) return;
  if (message.of_epoch() == epoch()) {
    for (UniqueFd& buffer : buffers) others_.push_back(std::move(buffer));
    return;
  }
  auto pair = checkpoint::HostCopyPair::Map({.store = order_.store(),
                                             .job = order_.assign().job(),
                                             .epoch = Epoch{message.of_epoch()},
                                             .rank = Rank{message.rank()}},
                                            message.bytes(),
                                            {std::move(buffers[0]), std::move(buffers[1])});
  if (!pair.ok()) {
    spdlog::warn("job={} epoch={} {}", order_.assign().job(), epoch(), pair.status().ToString());
    return;
  }
  copies_.push_back(*std::move(pair));
}

absl::Status EpochRun::FindCopies() {
  v1::ToDaemon message;
  v1::AskHostCopies& ask = *message.mutable_ask_host_copies();
  ask.set_epoch(epoch());
  if (order_.keeps()) {
    int32_t places = 0;
    for (const plan::NodeDevices& node : plan_.layout.nodes) {
      for (size_t i = 0; i < node.devices.size(); ++i) ask.add_ranks(places++);
    }
  } else {
    for (const Rank rank : plan::CopiesToTake(plan_, Rank{order_.rank()}))
      ask.add_ranks(rank.value);
  }
  RETURN_IF_ERROR(channel_.Send(message, kSendTimeout));
  v1::RankReport report;
  v1::RankCopies& found = *report.mutable_copies();
  std::vector<std::string> words;
  {
    const comm::Deadline deadline = comm::DeadlineIn(kHostCopiesTimeout);
    const MutexLock lock(&mu_);
    while (!copies_given_ && stopped_.ok()) {
      if (given_changed_.WaitUntil(&mu_, deadline) && !copies_given_)
        return absl::DeadlineExceededError("the daemon does not say what copies of state it has");
    }
    RETURN_IF_ERROR(stopped_);
    for (const checkpoint::HostCopyPair& pair : copies_) {
      v1::RankCopies::Pair& out = *found.add_pairs();
      out.set_rank(pair.rank().value);
      out.set_epoch(pair.epoch().value);
      std::vector<int64_t> steps;
      for (const checkpoint::HostCopyHeader& header : pair.Whole()) {
        const std::optional<train::Start> start = checkpoint::StartOf(header);
        v1::RankCopies::Copy& copy = *out.add_copies();
        *copy.mutable_start() = BeginsAt(start->decision, start->counts);
        copy.set_plan(header.plan);
        steps.push_back(start->decision.step);
      }
      words.push_back(absl::StrCat("rank ", pair.rank().value, " of epoch ", pair.epoch().value,
                                   steps.empty() ? ", none" : ", step ",
                                   absl::StrJoin(steps, " and ")));
    }
  }
  Log(absl::StrCat("finds copies in memory: ",
                   words.empty() ? "none" : absl::StrJoin(words, "; ")));
  return Report(std::move(report));
}

absl::StatusOr<plan::Plan> EpochRun::PlanOfCopies(const v1::CopiesSource& source) const {
  ASSIGN_OR_RETURN(plan::Layout layout, wire::FromProto(source.layout()));
  ASSIGN_OR_RETURN(plan::Plan before, plan::Expand(plan_.spec, std::move(layout)));
  if (before.digest == source.plan_digest()) return before;
  return OfCopies(absl::FailedPreconditionError(
      absl::StrCat("this rank's plan of epoch ", source.epoch(), " has digest ", before.digest,
                   ", the coordinator's ", source.plan_digest())));
}

absl::Status EpochRun::TakeCopies(const train::BufferOptions& buffers) {
  v1::CopiesSource source;
  std::vector<checkpoint::HostCopyPair> copies;
  {
    const MutexLock lock(&mu_);
    source = told_->copies();
    copies = std::exchange(copies_, {});
  }
  ASSIGN_OR_RETURN(const plan::Plan before, PlanOfCopies(source));
  // First: they are not to wait for what comes of this node.
  ASSIGN_OR_RETURN(const Inheritance inheritance, MeetKeepers(source, before));
  kept_.snapshot = nullptr;
  kept_.host_copy = nullptr;
  kept_.training = nullptr;  // two of them may not fit
  int64_t bytes = 0, mapped = 0;
  // Held since the end of the epoch before, or new: what it has stays.
  const checkpoint::FindMapping find = [&](int fd, int64_t size) {
    const checkpoint::PinnedMapping* mapping = kept_.pinning->Find(fd, size);
    bytes += size;
    if (mapping != nullptr) mapped += mapping->pinned();
    return mapping;
  };
  kept_.plan = nullptr;
  auto training = train::TrainingState::CreateNowhere(Rank{order_.rank()}, buffers);
  const std::string& began_with = order_.assign().checkpoint().path();
  const std::vector<std::string> folders = ReadFolders();
  std::set<int32_t> copied;
  for (const checkpoint::HostCopyPair& pair : copies) {
    if (pair.epoch().value != source.epoch()) continue;
    copied.insert(pair.rank().value);
    RETURN_IF_ERROR(OfCheckpoint(
        OfCopies(checkpoint::AddCopy(pair, start_.decision.step, before, began_with, *training,
                                     folders, stopping_.get_token(), find))));
  }
  RETURN_IF_ERROR(TakeInherited(source, before, inheritance, *training, copied));
  for (const int32_t rank : RanksToStandFor(plan_, Rank{order_.rank()})) {
    if (copied.contains(rank) || before.PlacesOf(Rank{rank}).empty()) continue;
    RETURN_IF_ERROR(OfCheckpoint(OfCopies(checkpoint::AddUntrained(
        before, Rank{rank}, began_with, *training, folders, stopping_.get_token()))));
  }
  training->Adopt(start_);
  kept_.training = std::move(training);
  LogPhase(absl::StrCat("has taken ", bytes, " bytes of copies, ", mapped, " of them pinned,"));
  return absl::OkStatus();
}

absl::Status EpochRun::TendOthers() {
  checkpoint::PinningThread& pinning = *kept_.pinning;
  const int64_t copied = kept_.training->decided().copied;
  if (!others_asked_ && copied > 0 && copied != train::kKeepsNoCopies) {
    // All ranks have whole copies, and those of epochs before go.
    others_asked_ = true;
    pinning.GiveBack(checkpoint::PinningThread::Use::kOthers, {});
    const std::vector<int32_t> ranks = plan::RanksToTakeOver(plan_, Rank{order_.rank()});
    if (ranks.empty()) return absl::OkStatus();
    {
      const MutexLock lock(&mu_);
      asked_of_this_ = true;
    }
    v1::ToDaemon message;
    v1::AskHostCopies& ask = *message.mutable_ask_host_copies();
    ask.set_epoch(epoch());
    ask.set_of_this(true);
    ask.mutable_ranks()->Add(ranks.begin(), ranks.end());
    return channel_.Send(message, kSendTimeout);
  }
  std::vector<UniqueFd> others;
  {
    const MutexLock lock(&mu_);
    if (std::exchange(others_given_, false)) others = std::exchange(others_, {});
  }
  if (!others.empty())
    pinning.Make(checkpoint::PinningThread::Use::kOthers, {.fds = std::move(others)});
  auto made = pinning.Take(checkpoint::PinningThread::Use::kOthers);
  if (!made.has_value()) return absl::OkStatus();
  // Without them a recovery takes longer, and that is all.
  if (!made->ok()) {
    Log(absl::StrCat("pins no copies of others: ", made->status().message()));
    return absl::OkStatus();
  }
  int64_t bytes = 0;
  for (const auto& mapping : **made) bytes += mapping->bytes() / 2;  // one of two buffers
  pinning.GiveBack(checkpoint::PinningThread::Use::kOthers, **std::move(made));
  if (order_.device_kind() == "gpu") device::ReserveMemory(plan::BytesToTakeOver(bytes));
  LogPhase("has pinned the copies that it would take over");
  return absl::OkStatus();
}

void EpochRun::TellCopiesWhole() {
  if (copies_whole_told_) return;
  const train::Decision& decided = kept_.training->decided();
  const bool keeps_copies = decided.copied != train::kKeepsNoCopies;
  const bool mirrored =
      plan::AllIsMirrored(plan_) && fill_ == nullptr && decided.step > filled_behind_;
  if (keeps_copies ? decided.copied < 1 : !mirrored) return;
  copies_whole_told_ = true;
  DropEarlierCopies();
  kept_.pinning->DropSpare(checkpoint::PinningThread::Use::kSecondHome);
  if (keeps_copies) {
    LogPhase("has whole copies, as all have");
  } else {
    kept_.pinning->DropSpare(checkpoint::PinningThread::Use::kOthers);
  }
}

void EpochRun::DropEarlierCopies() {
  v1::ToDaemon message;
  message.mutable_host_copies_whole()->set_epoch(epoch());
  report_status_.Update(channel_.Send(message, kSendTimeout));
}

}  // namespace phalanx::rank
