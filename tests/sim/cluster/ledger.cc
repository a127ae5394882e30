#include "tests/sim/cluster/ledger.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::sim {

using coordinator::EpochStart;
using coordinator::StepDecision;

uint64_t HashOf(const StepDecision& decision) {
  uint64_t hash =
      Mix64(static_cast<uint64_t>(decision.step) * 4 + static_cast<uint64_t>(decision.verdict));
  for (const double value : {decision.loss, decision.gradient_norm, decision.gradient_scale,
                             decision.counted_tokens, decision.corrupt_samples}) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = Mix64(hash ^ bits);
  }
  return hash;
}

uint64_t BitsAfter(uint64_t bits, const StepDecision& decision) {
  return Mix64(bits ^ HashOf(decision));
}

void Ledger::Violate(std::string what) {
  timeline_.Note("VIOLATION: $4", 0, 0, 0, 0, what);
  violations_.push_back(std::move(what));
}

uint64_t Ledger::BitsAt(const Job& job, int64_t step) {
  const auto found = job.steps.find(step);
  return found == job.steps.end() ? 0 : found->second.bits;
}

void Ledger::OnStandbyMade(JobId id, const std::string& set, int32_t rank, uint64_t process) {
  if (forgotten_.contains(id)) return;
  Job& job = jobs_[id];
  const auto [made, first] = job.standby.try_emplace(set);
  made->second[rank] = process;
  if (!first) return;
  job.standby_order.push_back(set);
  // Those of the epoch that runs are the newest, and far fewer.
  if (job.standby_order.size() <= kLastKept) return;
  job.standby.erase(job.standby_order.front());
  job.standby_order.erase(job.standby_order.begin());
}

void Ledger::OnConnects(JobId id, Epoch epoch, const std::string& set) {
  auto& [last, how] = jobs_[id].connects;
  if (epoch > last) {
    last = epoch;
    how = set;
  }
  if (epoch == last && how != set) {
    Violate(absl::StrCat(ToString(id), " epoch ", epoch.value,
                         ": some ranks make their communicators and others have them"));
  }
}

void Ledger::OnStandbyUsed(JobId id, const std::string& set, const std::set<int32_t>& ranks,
                           int32_t rank, uint64_t process) {
  // A node that is away when its job ends may hear of an epoch late.
  if (forgotten_.contains(id)) return;
  const auto& sets = jobs_[id].standby;
  const auto found = sets.find(set);
  const std::map<int32_t, uint64_t> makers =
      found == sets.end() ? std::map<int32_t, uint64_t>() : found->second;
  std::set<int32_t> made;
  for (const auto& [maker, by] : makers) made.insert(maker);
  if (made != ranks)
    return Violate(absl::StrCat(ToString(id), ": ", set, " was not made by its members"));
  // Another one has taken the place of the one that made it, which it says.
  if (process == 0) return;
  ++standby_used_;
  if (makers.at(rank) != process)
    Violate(absl::StrCat(ToString(id), ": rank ", rank, " has ", set, " and has not made it"));
}

Instant Ledger::progress_at(JobId job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? absl::InfinitePast() : found->second.progress_at;
}

int64_t Ledger::last_decided(JobId job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? 0 : found->second.last();
}

void Ledger::OnStored(const coordinator::JournalRecord& record, bool reaches_last_copies) {
  NoteProgress(record.job);
  Job& job = jobs_[record.job];
  if (const auto* began = std::get_if<coordinator::EpochBegan>(&record.body)) {
    ++epochs_gone_on_;
    Begin(record.job, began->epoch, began->start, began->copies_epoch, reaches_last_copies);
  } else if (const auto* reached = std::get_if<coordinator::StepReached>(&record.body)) {
    job.told_stored = std::max(job.told_stored, reached->step.step);
  } else if (const auto* planned = std::get_if<coordinator::EpochPlanned>(&record.body)) {
    // One without a digest of its data has no ranks; one that goes on is still to begin.
    const Epoch epoch = planned->layout->epoch;
    if (planned->layout->data_digest.empty() || planned->state_epoch != Epoch{0}) return;
    if (epoch == job.epoch) return;
    // Of steps that nobody was told of, and no state is left, nobody knows.
    if (job.last() > 0 && (job.told > 0 || !job.holders.empty())) {
      Violate(absl::StrCat(ToString(record.job), " epoch ", epoch.value, " throws ", job.last(),
                           " steps away"));
    }
    job.copies.reset();  // they are of another training
    Begin(record.job, epoch, {});
  }
}

void Ledger::OnCopyMemoryGone(JobId id, Epoch epoch) {
  if (forgotten_.contains(id)) return;
  Job& job = jobs_[id];
  job.copies_gone.insert(epoch);
  if (job.copies.has_value() && job.copies->epoch == epoch) job.copies.reset();
}

void Ledger::OnMirrored(JobId id, Epoch epoch) {
  if (forgotten_.contains(id)) return;
  const Job& job = jobs_[id];
  if (job.copies.has_value() && job.copies->epoch < epoch) OnCopyMemoryGone(id, job.copies->epoch);
}

void Ledger::OnCopied(JobId id, Epoch epoch, int64_t step, int64_t every) {
  if (forgotten_.contains(id)) return;
  Job& job = jobs_[id];
  if (epoch < job.epoch || job.copies_gone.contains(epoch)) return;
  if (job.copies.has_value() && job.copies->epoch == epoch && job.copies->step >= step) return;
  job.copies = {.epoch = epoch, .step = step, .every = every};
}

std::set<size_t> Ledger::NodesWithCopies(JobId id) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || !found->second.copies.has_value()) return {};
  return found->second.copy_nodes.at(found->second.copies->epoch);
}

// They are of the newest step of which all had whole ones, or of one that only they have known to
// be so; and of the promised age. Not where those cannot be had.
void Ledger::CheckCopies(JobId id, Job& job, Epoch epoch, int64_t step, Epoch copies,
                         bool reaches_last_copies) {
  ++epochs_from_copies_;
  steps_of_copies_ += job.last() - step;
  job.seen = std::max(job.last(), job.seen);
  job.back_epoch = epoch;
  job.told = std::min(job.told, step);
  job.told_stored = std::min(job.told_stored, step);
  if (!reaches_last_copies || job.copies_gone.contains(copies) || !job.copies.has_value()) return;
  const std::string name =
      absl::StrCat(ToString(id), " goes back to copies of epoch ", copies.value, " of step ", step);
  if (step < job.copies->step) {
    Violate(absl::StrCat(name, "; all ranks have whole ones of step ", job.copies->step,
                         " of epoch ", job.copies->epoch.value));
  }
  if (job.copies->epoch == job.epoch && job.last() - step > job.copies->every + 1)
    Violate(absl::StrCat(name, "; the last one is ", job.last()));
}

void Ledger::Begin(JobId id, Epoch epoch, const EpochStart& start, Epoch copies,
                   bool reaches_last_copies) {
  Job& job = jobs_[id];
  ++epochs_begun_;
  const std::string name = absl::StrCat(ToString(id), " epoch ", epoch.value);
  if (epoch <= job.epoch) Violate(absl::StrCat(name, " begins after ", job.epoch.value));
  const int64_t step = start.step();
  timeline_.Note("ledger: job $0 epoch $1 begins behind step $2 of $3", id.value, epoch.value, step,
                 job.last());
  // Until one is done again, steps that were gone back before are decided: ranks that have not come
  // to their copies yet know them.
  while (step > job.last() && job.gone_back.contains(job.last() + 1))
    job.steps.insert(job.gone_back.extract(job.last() + 1));
  if (step > job.last())
    Violate(absl::StrCat(name, " begins behind step ", step, "; the last one is ", job.last()));
  if (copies != Epoch{}) CheckCopies(id, job, epoch, step, copies, reaches_last_copies);
  if (step < job.told)
    Violate(absl::StrCat(name, " begins behind step ", step, "; users know of ", job.told));
  const auto known = job.steps.find(step);
  if (known != job.steps.end() && step > 0) {
    if (known->second.decision != HashOf(*start.decision))
      Violate(absl::StrCat(name, " begins behind another decision of step ", step));
    if (known->second.updates != start.updates ||
        known->second.skipped_in_a_row != start.skipped_in_a_row) {
      Violate(absl::StrCat(name, " begins with ", start.updates, " updates of ",
                           known->second.updates));
    }
  }
  steps_given_up_ += job.last() - step;
  const auto given_up = job.steps.upper_bound(step);
  if (copies != Epoch{}) job.gone_back.insert(given_up, job.steps.end());
  // Copies of later steps are of none that the job will do: a node has made them while nobody heard
  // of it, or they could not be had.
  if (job.copies.has_value() && job.copies->step > step) job.copies.reset();
  job.steps.erase(given_up, job.steps.end());
  job.epoch = epoch;
  job.begin = step;
}

void Ledger::OnTold(JobId id, const coordinator::StepReport& step) {
  Job& job = jobs_[id];
  // What users see of a job that has gone back is what it did last, until it does a step.
  if (step.epoch < job.back_epoch && step.step <= job.seen) return;
  if (step.step > job.last())
    Violate(absl::StrCat(ToString(id), ": users are told of step ", step.step, "; the last one is ",
                         job.last()));
  job.told = std::max(job.told, step.step);
}

void Ledger::OnSucceeded(JobId id, int64_t steps) {
  const Job& job = jobs_[id];
  if (job.last() != steps)
    Violate(
        absl::StrCat(ToString(id), " has succeeded after ", job.last(), " of ", steps, " steps"));
  const int64_t lines = job.last_line();
  if (lines != steps)
    Violate(absl::StrCat(ToString(id), " has succeeded with metrics up to step ", lines));
  for (const Line& line : job.lines) {
    const auto step = job.steps.find(line.step);
    if (step != job.steps.end() && step->second.decision != line.decision)
      Violate(absl::StrCat(ToString(id), " has metrics of another step ", line.step));
  }
}

void Ledger::OnDecided(JobId id, Epoch epoch, int32_t rank, const EpochStart& known) {
  if (forgotten_.contains(id)) return;
  Job& job = jobs_[id];
  const int64_t step = known.step();
  const uint64_t decision = HashOf(*known.decision);
  const std::string name =
      absl::StrCat(ToString(id), " epoch ", epoch.value, " rank ", rank, " step ", step);
  if (epoch < job.epoch) return;  // of no consequence unless it writes something
  if (epoch > job.epoch) return Violate(absl::StrCat(name, " is decided before the epoch begins"));
  job.progress_at = timeline_.now();
  const auto found = job.steps.find(step);
  if (found != job.steps.end()) {
    if (found->second.epoch != epoch)
      Violate(absl::StrCat(name, " was decided in epoch ", found->second.epoch.value));
    if (found->second.decision != decision) Violate(absl::StrCat(name, " is decided otherwise"));
    return;
  }
  if (step <= job.last()) return;  // before the epoch that came first
  if (step != job.last() + 1)
    Violate(absl::StrCat(name, " is decided; the last one was ", job.last()));
  const uint64_t before = BitsAt(job, step - 1);
  job.gone_back.clear();
  job.loses_ranks = false;
  ++steps_decided_;
  job.steps[step] = {.epoch = epoch,
                     .decision = decision,
                     .bits = BitsAfter(before, *known.decision),
                     .updates = known.updates,
                     .skipped_in_a_row = known.skipped_in_a_row};
}

void Ledger::OnStepBegins(JobId id, Epoch epoch, int32_t rank, int64_t step, int64_t applied,
                          uint64_t bits) {
  if (forgotten_.contains(id)) return;
  const Job& job = jobs_[id];
  if (epoch < job.epoch) return;
  const std::string name =
      absl::StrCat(ToString(id), " epoch ", epoch.value, " rank ", rank, " begins step ", step);
  if (epoch > job.epoch) return Violate(absl::StrCat(name, " before the epoch begins"));
  if (step <= job.begin) Violate(absl::StrCat(name, "; the epoch begins behind ", job.begin));
  if (applied != step - 1) Violate(absl::StrCat(name, " with state of step ", applied));
  if (bits != BitsAt(job, step - 1))
    Violate(absl::StrCat(name, " with state that is not that of step ", step - 1));
}

void Ledger::OnCoordinatorGone() {
  for (auto& [id, job] : jobs_) job.told = std::min(job.told, job.told_stored);
}

void Ledger::Forget(JobId job) {
  jobs_.erase(job);
  forgotten_.insert(job);
}

bool Ledger::LockMetrics(JobId job, uint64_t process) {
  if (forgotten_.contains(job)) return true;
  uint64_t& holder = jobs_[job].metrics_holder;
  if (holder != 0 && holder != process) return false;
  holder = process;
  return true;
}

void Ledger::UnlockMetrics(JobId job, uint64_t process) {
  const auto found = jobs_.find(job);
  if (found != jobs_.end() && found->second.metrics_holder == process)
    found->second.metrics_holder = 0;
}

bool Ledger::MarkMetrics(JobId job, int64_t fence) {
  if (forgotten_.contains(job)) return true;
  int64_t& mark = jobs_[job].metrics_fence;
  if (fence < mark) {
    ++metrics_refused_;
    return false;
  }
  mark = fence;
  return true;
}

int64_t Ledger::OpenMetrics(JobId id, Epoch epoch, int64_t first_step) {
  if (forgotten_.contains(id)) return first_step - 1;
  Job& job = jobs_[id];
  if (epoch < job.metrics_epoch) {
    Violate(absl::StrCat(ToString(id), " epoch ", epoch.value, " opens the metrics of epoch ",
                         job.metrics_epoch.value));
  }
  job.metrics_epoch = epoch;
  while (!job.lines.empty() && job.lines.back().step >= first_step) job.lines.pop_back();
  job.older_line = std::min(job.older_line, first_step - 1);
  return job.last_line();
}

// A node that is away when its job ends may train on for a while: nobody takes that over.
void Ledger::WriteMetrics(JobId id, Epoch epoch, const StepDecision& step) {
  if (forgotten_.contains(id)) return;
  Job& job = jobs_[id];
  const std::string name =
      absl::StrCat(ToString(id), " epoch ", epoch.value, " writes metrics of step ", step.step);
  if (epoch != job.metrics_epoch)
    Violate(absl::StrCat(name, "; epoch ", job.metrics_epoch.value, " has them"));
  const int64_t last = job.last_line();
  if (step.step != last + 1) Violate(absl::StrCat(name, " behind those of step ", last));
  const auto found = job.steps.find(step.step);
  if (epoch == job.epoch && found != job.steps.end() && found->second.decision != HashOf(step))
    Violate(absl::StrCat(name, " which was decided otherwise"));
  if (job.lines.size() == kLastKept) {
    job.older_line = job.lines.front().step;
    job.lines.erase(job.lines.begin());
  }
  job.lines.push_back({step.step, HashOf(step)});
}

}  // namespace phalanx::sim
