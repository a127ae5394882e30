#include "tests/sim/cluster/answers.h"

#include "absl/strings/str_cat.h"

namespace phalanx::sim {

using coordinator::Coordinator;
using coordinator::Node;
using coordinator::Token;

Answers::Counts& Answers::Counts::operator+=(const Counts& other) {
  submits += other.submits, cancels += other.cancels, suspensions += other.suspensions;
  deletes += other.deletes, marks += other.marks, reserves += other.reserves;
  return *this;
}

std::string Answers::Counts::ToString() const {
  return absl::StrCat(submits, " submits, ", cancels, " cancels, ", suspensions,
                      " suspensions and resumptions, ", deletes, " deletes, ", marks,
                      " cordons, drains and uncordons, ", reserves, " changes of the reserve");
}

void Answers::Submit(Token token, coordinator::JobRequestPtr request) {
  asked_[token] = {.kind = &Counts::submits, .request = std::move(request)};
}

void Answers::Cancel(Token token, JobId job) {
  asked_[token] = {.kind = &Counts::cancels, .job = job};
}

void Answers::Suspend(Token token, JobId job, bool suspended) {
  asked_[token] = {.kind = &Counts::suspensions, .job = job};
  suspended_.try_emplace(job, false).first->second.Ask(token, suspended);
}

void Answers::Delete(Token token, JobId job) {
  asked_[token] = {.kind = &Counts::deletes, .job = job};
}

void Answers::Mark(Token token, const NodeName& node, std::string mark) {
  asked_[token] = {.kind = &Counts::marks, .node = node};
  marks_.try_emplace(node, "").first->second.Ask(token, std::move(mark));
}

void Answers::Reserve(Token token, const NodeName& node, bool reserves) {
  asked_[token] = {.kind = &Counts::reserves, .node = node};
  reserves_.try_emplace(node, false).first->second.Ask(token, reserves);
}

void Answers::Answered(Token token, bool done, JobId job) {
  const auto found = asked_.find(token);
  if (found == asked_.end()) return;
  const Asked asked = std::move(found->second);
  asked_.erase(found);
  if (done) ++(counts_.*asked.kind);
  if (asked.kind == &Counts::suspensions) {
    if (const auto job_of = suspended_.find(asked.job); job_of != suspended_.end())
      job_of->second.Answer(token, done);
  } else if (asked.kind == &Counts::marks) {
    marks_.at(asked.node).Answer(token, done);
  } else if (asked.kind == &Counts::reserves) {
    reserves_.at(asked.node).Answer(token, done);
  } else if (done && asked.kind == &Counts::deletes) {
    deleted_.insert(asked.job);
  } else if (done && asked.kind == &Counts::submits && !archived_.contains(job)) {
    submitted_.try_emplace(job, asked.request);
  } else if (done && asked.kind == &Counts::cancels && !archived_.contains(asked.job)) {
    cancelled_.insert(asked.job);
  }
}

void Answers::Archived(JobId job) {
  archived_.insert(job);
  submitted_.erase(job);
  cancelled_.erase(job);
  suspended_.erase(job);
}

std::string Answers::MarkOf(const Node& node) {
  if (!node.mark.has_value()) return "";
  return absl::StrCat(node.mark->drains ? "drained: " : "cordoned: ", node.mark->reason);
}

void Answers::Check(const Coordinator& machine) const {
  CheckJobs(machine);
  CheckNodes(machine);
}

void Answers::CheckJobs(const Coordinator& machine) const {
  const auto& jobs = machine.jobs();
  for (const auto& [id, request] : submitted_) {
    const auto job = jobs.find(id);
    if (job == jobs.end()) {
      ledger_.Violate(absl::StrCat(ToString(id), " was acknowledged and is gone"));
    } else if (const auto& has = job->second.state.request;
               has != request &&
               (has->name != request->name || has->document != request->document)) {
      ledger_.Violate(absl::StrCat(ToString(id), " was acknowledged and is another"));
    }
  }
  for (const JobId id : cancelled_) {
    const auto job = jobs.find(id);
    if (job == jobs.end() || !job->second.state.IsTerminal())
      ledger_.Violate(absl::StrCat(ToString(id), " was cancelled and goes on"));
  }
  for (const auto& [id, suspended] : suspended_) {
    const auto job = jobs.find(id);
    if (job == jobs.end() || job->second.state.IsTerminal()) continue;
    const bool is = job->second.state.suspended;
    const auto phase = job->second.state.phase;
    const bool leaves = phase == job::JobPhase::kRunning && job->second.state.ending.has_value();
    const bool waits = phase == job::JobPhase::kQueued && !job->second.planning.has_value();
    if (is && !leaves && !waits)
      ledger_.Violate(absl::StrCat(ToString(id), " is suspended and starts"));
    if (!suspended.Holds(is))
      ledger_.Violate(absl::StrCat(
          ToString(id), is ? " was resumed and is suspended" : " was suspended and is not"));
  }
  for (const auto& [id, job] : jobs) {
    if (deleted_.contains(id))
      ledger_.Violate(absl::StrCat(ToString(id), " was deleted and is there"));
  }
}

void Answers::CheckNodes(const Coordinator& machine) const {
  const auto find = [&machine](const NodeName& name) -> const Node* {
    const auto node = machine.nodes().find(name);
    return node == machine.nodes().end() ? nullptr : &node->second;
  };
  for (const auto& [name, mark] : marks_) {
    const Node* node = find(name);
    const std::string is = node == nullptr ? "" : MarkOf(*node);
    if (!mark.Holds(is)) {
      ledger_.Violate(
          absl::StrCat(name, " was marked \"", mark.newest(), "\" and is \"", is, "\""));
    }
  }
  for (const auto& [name, reserves] : reserves_) {
    const Node* node = find(name);
    const bool is = node != nullptr && node->reserve.has_value();
    if (!reserves.Holds(is)) {
      ledger_.Violate(absl::StrCat(
          name, is ? " was put into service and is in reserve" : " was reserved and is not"));
    }
  }
}

}  // namespace phalanx::sim
