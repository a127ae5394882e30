// coordinator/machine/node_table.h: the nodes that have registered, their devices, and the choice
// of devices for a job.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/events.h"
#include "coordinator/machine/records.h"
#include "core/plan/derivation.h"
#include "core/plan/layout.h"

namespace phalanx::coordinator {

// A command that its worker has not answered. 0: not sent yet.
struct Outstanding {
  uint64_t number = 0;
  Command command;
};

// Another process that asks for the name of a node whose process may still live.
struct Newcomer {
  SessionOpened opened;
  Instant since;
};

struct Node {
  NodeName name;
  Incarnation incarnation;  // 0: not seen since this coordinator started
  SessionId session;        // 0: disconnected
  job::DeviceKind device_kind = job::DeviceKind::kCpu;
  std::vector<JobId> device_jobs;            // of each device, the job that has it; 0: free
  std::vector<int64_t> device_memory;        // bytes, as the worker says; 0, or no entry: unknown
  std::vector<std::string> device_names;     // as the worker says; "", or no entry: unknown
  int64_t host_memory = 0;                   // bytes for jobs, as the worker says; 0: unknown
  std::vector<int32_t> device_temperatures;  // as the last heartbeat's
  std::map<JobId, int64_t> charged;          // bytes of it, by jobs that have devices here
  std::map<std::string, std::string> labels;
  // The largest of layouts that its ranks carry out, as the worker says; before it has, the oldest.
  int32_t derivation = plan::kOldestDerivation;
  bool gives_copies = false;  // its worker carries out Assign::keepers
  std::string version;
  std::string address;                 // where others reach its ranks, as its worker says
  Instant last_heard;                  // while connected
  Instant disconnected_at;             // while not
  std::string refused;                 // why it may not connect as it is; empty: not known
  absl::Duration excused;              // of the time since then: this coordinator did not run
  bool draining = false;               // its worker is stopping
  std::optional<NodeMark> mark;        // what people have decided
  std::optional<NodeMark> shown_mark;  // once that is stored
  std::optional<ReserveMark> reserve, shown_reserve;  // likewise
  bool suspect = false;              // silent for long, and not heard nor lost since
  bool lost = false;                 // silent or away for longer than the heartbeat timeout
  std::set<int32_t> failed_devices;  // of this process, that are not to be used again
  std::shared_ptr<const job::NodeCheck> check;  // of this process or one before; nullptr: none came
  // By this process, the last one; nullptr: it has said nothing of it. Not stored.
  std::shared_ptr<const job::NodeExamination> examination;
  // Why it cannot prepare a job's data, and until when nothing new is placed on it for that; empty:
  // it can, as far as it is known.
  std::string unfit;
  Instant unfit_until = absl::InfiniteFuture();
  // Devices that failed their last check and that nobody has given another chance since. They
  // outlast the process: another one does not make them better.
  std::set<int32_t> failed_checks;
  NodeMarked stored;  // the last record of it
  uint64_t last_command_number = 0;
  std::vector<Outstanding> outstanding;  // in order of number
  std::vector<Incarnation> superseded;   // newest last, at most kSupersededMax
  std::optional<Newcomer> newcomer;      // while connected
  // Assignments that it runs and nobody here knows: until they are gone it gets nothing new.
  std::set<std::pair<JobId, Epoch>> foreign;
  // Jobs that have devices here and may have processes on others, which they gave back: until the
  // assignment of this epoch, or a stop, is answered nobody gets a device that is free.
  std::map<JobId, Epoch> leftovers;

  bool connected() const { return session.value != 0; }
  // Whence silence, or absence, is counted.
  Instant quiet_since() const { return (connected() ? last_heard : disconnected_at) + excused; }
  void Heard(Instant now) {
    last_heard = now;
    excused = absl::ZeroDuration();
  }
  bool Drains() const { return mark.has_value() && mark->drains; }
  // Nothing new is placed on it, for as long as anybody knows.
  bool TakesNothing() const { return draining || mark.has_value(); }
  // Whether anything new may be placed on it now.
  bool Schedulable() const {
    return connected() && !suspect && !TakesNothing() && foreign.empty() && unfit.empty();
  }
  // The same of jobs of the queue: of a node that is in reserve ranks come back to devices that
  // their jobs have, and jobs that lost a device get one, no job else.
  bool MayTakeJobs() const { return !TakesNothing() && !reserve.has_value(); }
  bool TakesJobs() const { return Schedulable() && !reserve.has_value(); }
  // A rank or a check.
  bool HasFailed(int32_t device) const;
  void NoteLeftovers(JobId job, Epoch epoch);
  // An assignment of the epoch, or a stop, is carried out. Whether free devices may be had since.
  bool EndLeftovers(JobId job, Epoch epoch);
  // Whether its worker, which has carried out commands up to that number, is still to carry out the
  // assignment of the epoch.
  bool IsOnItsWay(JobId job, Epoch epoch, uint64_t carried_out) const;
  // No job has it, nor may have a process on it, and it has not failed.
  bool IsFree(int32_t device) const;
  int32_t FreeDevices() const;
  // Free ones, and those that are once processes of before are gone.
  int32_t UnheldDevices() const;
  bool Idle() const;  // no job has a device of it
  NodeView View() const;
};

// NotFound, with as much of the name as an answer has room for.
absl::Status NoSuchNode(const NodeName& name);

// "drained by ops: new power supply"; who decided may not be known.
std::string ToString(const NodeMark& mark);
// "reserved by ops: spares of everybody".
std::string ToString(const ReserveMark& reserve);

inline constexpr size_t kSupersededMax = 64;

// Ordered by name: two coordinators that replay one store must place alike.
using NodeTable = std::map<NodeName, Node>;

// What there is on `placement` for `job`: of host memory what no other job is charged for. A node
// whose memory is known and all charged has a byte, not an unknown number of them.
plan::MemoryLimits LimitsOf(const NodeTable& nodes, const Placement& placement, JobId job);

// What it says that it fails together with; empty: it fails alone.
std::string FailureDomainOf(const Node& node);

// Same device kind, and every label that the job selects.
bool Matches(const Node& node, const JobRequest& request);

// Whether its ranks carry the layout out, as its worker says; they refuse one that they do not.
bool CarriesOut(const Node& node, const plan::Layout& layout);

// Of a new layout on `placement`: the newest that this coordinator plans and all ranks carry out.
int32_t DerivationFor(const NodeTable& nodes, const Placement& placement);

// The table of algorithms of products that all nodes of `placement` have, by their labels; empty:
// there is none. nullopt: none of them has been heard yet.
std::optional<std::string> ProductsFor(const NodeTable& nodes, const Placement& placement);
// What drivers call its devices, as far as they say.
std::set<std::string> DeviceNamesOf(const NodeTable& nodes, const Placement& placement);

// All devices that jobs may hope for of a node: that is here to stay, or has been away for a moment
// only, and is not in reserve; else none.
int64_t CapacityOf(const Node& node);
// The same of all nodes that match `request`.
int64_t CapacityFor(const NodeTable& nodes, const JobRequest& request);
int64_t CapacityWithout(const NodeTable& nodes, const JobRequest& request, const NodeName& without);

// Devices for all of `request` on free devices of matching nodes outside `closed`, or nothing.
// Fewest nodes: the largest are taken whole, and what remains goes to the node that it fills best.
// Each comes with its failure domain, which the choice does not look at.
std::optional<Placement> ChoosePlacement(const NodeTable& nodes, const std::set<NodeName>& closed,
                                         const JobRequest& request);

}  // namespace phalanx::coordinator
