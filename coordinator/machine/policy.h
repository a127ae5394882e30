// coordinator/machine/policy.h: what becomes of a job that something has happened to.
//
// One pure function over the closed list of failures (core/job/failure.h). The courses that this
// release can take: let the job fail, wait for what is missing, start an epoch anew that no rank
// has trained in, go on without what is lost, go back to a checkpoint, and go back to the queue
// before that. Whoever sees a failure
// names its cause; RemedyFor alone says what follows, and Coordinator::OnFailure carries it out.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "coordinator/machine/node_table.h"
#include "coordinator/machine/run.h"
#include "core/job/failure.h"

namespace phalanx::coordinator {

// From the job: how far recovery may go.
struct Policy {
  bool may_wait = true;
  bool may_recover = false;  // training may go on without a rank, from where it stands
  bool may_go_back = false;  // to a checkpoint, or to the beginning if nothing is decided yet
  // It is starting again: no rank of its epoch has trained, whatever is lost. One that has never
  // trained goes back to the queue only where no rank had started on a node that is away.
  bool may_queue = false;
  // It is starting, and there are devices for it on other nodes than the one that is named, or it
  // may wait.
  bool may_start_elsewhere = false;
  // It is starting, no rank is ready, and a node has come back to a coordinator with ranks of it:
  // what ranks say for each other before they are connected may have waited for that.
  bool may_start_anew = false;
};

// One failure. `node` is empty where it has none.
struct Loss {
  job::FailureKind kind;
  NodeName node;
};

enum class Course : uint8_t { kFail, kWait, kStartAnew, kRecover, kGoBack, kQueue };

struct Remedy {
  Course course = Course::kFail;
  std::string reason;  // one sentence
  friend bool operator==(const Remedy&, const Remedy&) = default;
};

// `run`: without teams before the job has one. `losses`: at least one, in the order in which they
// were found. The job fails if it must for one of them.
Remedy RemedyFor(const Policy& policy, const Run& run, absl::Span<const Loss> losses,
                 const NodeTable& cluster);

}  // namespace phalanx::coordinator
