#include "tests/oracle/checkpoint/written_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/digest.h"
#include "core/base/mutex.h"
#include "core/checkpoint_io/checkpoints.h"
#include "worker/checkpoint/loader.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/comm/communicator.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

constexpr char kStore[] = "00c0ffee00c0ffee";
constexpr int64_t kJob = 7;
constexpr std::chrono::seconds kPatience{60};

// What the ranks of a run have in common.
class Run {
 public:
  Run(const plan::Plan& plan, const DataShape& data, const RunOptions& options)
      : plan_(plan),
        data_(data),
        options_(options),
        specs_(plan::Communicators(plan)),
        world_(plan.world),
        barrier_(WithWork(plan)) {
    if (options_.load.empty()) return;
    auto manifest = checkpoint::ReadManifestOf(options_.load);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    if (manifest.ok()) from_ = *std::move(manifest);
  }

  WrittenRun Train() {
    std::vector<std::jthread> threads;
    bool first = true;
    for (int32_t rank = 0; rank < plan_.world; ++rank) {
      if (plan_.PlacesOf(Rank{rank}).empty()) continue;
      threads.emplace_back(
          [this, rank, lead = std::exchange(first, false)] { TrainRank(Rank{rank}, lead); });
    }
    threads.clear();
    return std::move(result_);
  }

 private:
  static int32_t WithWork(const plan::Plan& plan) {
    int32_t count = 0;
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      count += plan.PlacesOf(Rank{rank}).empty() ? 0 : 1;
    }
    return count;
  }

  // nullptr: it could not be loaded.
  std::unique_ptr<train::TrainingState> MakeState(Rank rank) {
    const train::BufferOptions buffers{.compute = train::ComputeType(plan_.spec.compute)};
    if (options_.load.empty()) return *train::TrainingState::Create(plan_, rank, buffers);
    auto state = *train::TrainingState::CreateEmpty(plan_, rank, buffers);
    absl::Status loaded = absl::InternalError("no manifest");
    if (from_.has_value())
      loaded = checkpoint::Load(options_.load, *from_, plan_, *state, /*threads=*/2, {});
    const MutexLock lock(&mu_);
    result_.loaded.push_back(loaded);
    return loaded.ok() ? std::move(state) : nullptr;
  }

  void OnWritten(const checkpoint::Written& written) {
    const MutexLock lock(&mu_);
    if (!written.part.ok()) {
      result_.failed.push_back(written.part.status());
      ++failed_[written.name];
    } else if (written.part->has_value()) {
      parts_[written.name].push_back(**written.part);
    }
  }

  // What a coordinator and the rank that it chose do.
  void PublishWritten(const checkpoint::CheckpointName& name, const train::Decision& decision,
                      const train::Counts& counts) {
    const MutexLock lock(&mu_);
    if (failed_[name] > 0 || parts_[name].empty()) return;
    std::vector<checkpoint::PartFile>& parts = parts_[name];
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.file < b.file; });
    const auto published = checkpoint::Publish(
        {.directory = options_.directory,
         .manifest = checkpoint::ManifestOf(plan_, kStore, kJob, decision, counts),
         .parts_digest = checkpoint::DigestOf(parts),
         .keep = 2,
         .in_use = options_.load});
    if (published.ok()) {
      result_.published.push_back(published->path);
    } else {
      result_.failed.push_back(published.status());
    }
  }

  // The others need not wait for this rank.
  void Leave(Rank rank, const absl::Status& why) {
    ADD_FAILURE() << "rank " << rank.value << ": " << why;
    world_.Abort(why);
    barrier_.arrive_and_drop();
  }

  void TrainRank(Rank rank, bool lead) {
    const std::unique_ptr<train::TrainingState> state = MakeState(rank);
    if (state == nullptr) stopped_ = true;
    barrier_.arrive_and_wait();
    if (stopped_) return;
    comm::Communicators communicators = world_.Connect(specs_, rank);
    const std::unique_ptr<train::SampleSource> source = MakeData(data_);
    const std::unique_ptr<checkpoint::Snapshot> snapshot =
        *checkpoint::Snapshot::Create(plan_, *state);
    std::function<absl::Status(int64_t)> before_block;
    if (options_.before_block != nullptr)
      before_block = [this](int64_t) { return options_.before_block(); };
    checkpoint::Writer writer(
        *snapshot,
        {.directory = options_.directory,
         .store = kStore,
         .job = kJob,
         .rank = rank.value,
         .before_block = before_block},
        [this](const checkpoint::Written& written) { OnWritten(written); },
        [](const checkpoint::CheckpointName&, const absl::StatusOr<checkpoint::Published>&) {});
    train::TrainerOptions trainer_options;
    if (from_.has_value()) trainer_options.start = checkpoint::StartOf(*from_);
    train::TrainerCallbacks callbacks;
    std::optional<std::pair<train::Decision, train::Counts>> begun;
    callbacks.on_settled = [&]() -> absl::Status {
      const int64_t step = state->decided().step;
      const auto& at = options_.write_at;
      if (std::find(at.begin(), at.end(), step) == at.end()) return absl::OkStatus();
      if (writer.Begin({.step = step, .epoch = 1})) {
        begun = {state->decided(), state->counts()};
        return absl::OkStatus();
      }
      const MutexLock lock(&mu_);
      ++result_.left_out;
      return absl::OkStatus();
    };
    auto trainer = train::Trainer::Create(plan_, rank, communicators, *source, *state,
                                          trainer_options, std::move(callbacks));
    const absl::Status prepared = trainer.ok() ? (*trainer)->Prepare() : trainer.status();
    if (!prepared.ok()) return Leave(rank, prepared);
    for (int64_t step = state->decided().step + 1; step <= plan_.spec.steps; ++step) {
      const auto decision = (*trainer)->RunOne(step);
      if (!decision.ok()) return Leave(rank, decision.status());
      {
        const MutexLock lock(&mu_);
        for (const auto& part : state->parts()) held_.push_back(HeldBy(*part));
      }
      barrier_.arrive_and_wait();
      if (lead) {
        const MutexLock lock(&mu_);
        result_.steps.push_back(PutTogether(plan_, *decision, held_));
        held_.clear();
        if (options_.on_step != nullptr) options_.on_step(step);
      }
      // A disk that may be slow is not waited for but behind the last step.
      const bool waited = step == plan_.spec.steps || options_.before_block == nullptr;
      if (waited) {
        EXPECT_TRUE(writer.AwaitWritten(std::chrono::steady_clock::now() + kPatience));
      }
      barrier_.arrive_and_wait();
      if (lead && waited && begun.has_value()) {
        PublishWritten({.step = begun->first.step, .epoch = 1}, begun->first, begun->second);
      }
      if (waited) begun.reset();
    }
  }

  const plan::Plan& plan_;
  const DataShape& data_;
  const RunOptions& options_;
  const std::vector<plan::CommunicatorSpec> specs_;
  comm::InProcessWorld world_;
  std::barrier<> barrier_;
  std::optional<checkpoint::Manifest> from_;
  std::atomic<bool> stopped_ = false;
  Mutex mu_;
  WrittenRun result_;
  std::vector<HeldPart> held_;
  std::map<checkpoint::CheckpointName, std::vector<checkpoint::PartFile>> parts_;
  std::map<checkpoint::CheckpointName, int32_t> failed_;
};

}  // namespace

WrittenRun TrainAndWrite(const plan::Plan& plan, const DataShape& data, const RunOptions& options) {
  at::set_num_threads(1);  // ranks are threads already, and tensors are tiny
  return Run(plan, data, options).Train();
}

plan::Plan PlanFor(const job::JobSpec& spec, const plan::RankList& lost) {
  auto plan = PlanWithout(spec, lost);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  plan->layout.data_digest = Digest("data");
  ExpectProven(*plan);
  return *std::move(plan);
}

}  // namespace phalanx::oracle
