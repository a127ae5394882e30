// tests/sim/cluster/answers.h: what users and operators were answered, and what of it is to be
// there, whatever the coordinator has gone through since.
//
// Of one thing (whether a job is suspended, how a node is marked) what was there before and
// everything that was asked for since may hold; once one of these requests is answered, nothing
// that is older than it. A request whose answer is lost with its coordinator, or with the disk, may
// still hold. One that the machine refuses never does.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "coordinator/machine/coordinator.h"
#include "tests/sim/cluster/ledger.h"

namespace phalanx::sim {

// What may hold of one thing.
template <typename Value>
class MayBe {
 public:
  explicit MayBe(Value before) : values_{{coordinator::Token{}, std::move(before)}} {}

  // Tokens grow.
  void Ask(coordinator::Token token, Value value) { values_.emplace_back(token, std::move(value)); }
  void Answer(coordinator::Token token, bool done) {
    if (done) {
      while (values_.front().first < token) values_.pop_front();
    } else {
      std::erase_if(values_, [token](const auto& asked) { return asked.first == token; });
    }
  }
  bool Holds(const Value& value) const {
    return std::any_of(values_.begin(), values_.end(),
                       [&value](const auto& asked) { return asked.second == value; });
  }
  const Value& newest() const { return values_.back().second; }

 private:
  std::deque<std::pair<coordinator::Token, Value>> values_;  // in the order in which they apply
};

class Answers {
 public:
  explicit Answers(Ledger& ledger) : ledger_(ledger) {}

  // Somebody asks.
  void Submit(coordinator::Token token, coordinator::JobRequestPtr request);
  void Cancel(coordinator::Token token, JobId job);
  void Suspend(coordinator::Token token, JobId job, bool suspended);
  void Delete(coordinator::Token token, JobId job);
  // `mark`: as MarkOf gives it; empty: none.
  void Mark(coordinator::Token token, const NodeName& node, std::string mark);
  void Reserve(coordinator::Token token, const NodeName& node, bool reserves);

  // Somebody who waits for it is answered. `job`: of a submit, which has become this one.
  void Answered(coordinator::Token token, bool done, JobId job = {});
  // Nobody waits for an answer any more.
  void Forget(coordinator::Token token) { asked_.erase(token); }
  void ForgetAll() { asked_.clear(); }

  // The job has ended, and the store alone knows it.
  void Archived(JobId job);

  // After every event.
  void Check(const coordinator::Coordinator& machine) const;

  static std::string MarkOf(const coordinator::Node& node);

  // Requests that were done, by what they ask for; suspensions and what ends them alike.
  struct Counts {
    int64_t submits = 0, cancels = 0, suspensions = 0, deletes = 0, marks = 0, reserves = 0;
    int64_t all() const { return submits + cancels + suspensions + deletes + marks + reserves; }
    Counts& operator+=(const Counts& other);
    std::string ToString() const;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Asked {
    int64_t Counts::*kind = nullptr;
    JobId job;
    NodeName node;
    coordinator::JobRequestPtr request;
  };
  void CheckJobs(const coordinator::Coordinator& machine) const;
  void CheckNodes(const coordinator::Coordinator& machine) const;

  Ledger& ledger_;
  Counts counts_;
  std::map<coordinator::Token, Asked> asked_;
  std::map<JobId, coordinator::JobRequestPtr> submitted_;  // of jobs that are not archived
  std::set<JobId> cancelled_;                              // likewise
  std::map<JobId, MayBe<bool>> suspended_;                 // likewise
  std::set<JobId> archived_;                               // deleted or not
  std::set<JobId> deleted_;
  std::map<NodeName, MayBe<std::string>> marks_;
  std::map<NodeName, MayBe<bool>> reserves_;
};

}  // namespace phalanx::sim
