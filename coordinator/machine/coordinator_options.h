// coordinator/machine/coordinator_options.h: how long a coordinator waits for others, and how much
// it takes from them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "coordinator/machine/quotas.h"

namespace phalanx::coordinator {

struct CoordinatorOptions {
  uint64_t store = 0;  // identity of the store; 0: it has none
  // How often workers are told to say that they live.
  absl::Duration heartbeat_interval = absl::Seconds(3);
  // Silence, or absence, after which a node has lost its ranks.
  absl::Duration heartbeat_timeout = absl::Seconds(15);
  // Assigned until all ranks are ready: past it the job fails and names those that are not.
  absl::Duration start_timeout = absl::Minutes(10);
  // Without any progress of the nodes that prepare data: past it the job fails and names them.
  absl::Duration prepare_timeout = absl::Minutes(10);
  // A process that asks for the name of a connected node is refused once the node's own process is
  // heard so much later: what a dead one had sent has come in by then.
  absl::Duration name_grace = absl::Seconds(1);
  // What a cancelled or a failed job's ranks get to end in good order.
  absl::Duration cancel_grace = absl::Seconds(10);
  absl::Duration failure_grace = absl::Seconds(2);
  // How long a rank's report about a peer waits for better evidence.
  absl::Duration settle_delay = absl::Milliseconds(300);
  // How long the verdict on a rank that has died waits for how it ended, where nothing is won by
  // haste.
  absl::Duration exit_timeout = absl::Seconds(5);
  // Without a step, while all ranks stand in waits for each other or for their devices: then the
  // epoch is over. At least ten times as long as 99 of 100 of its steps took. Twice what a daemon
  // gives a process that stands still, which it can name; and TCP itself goes on after up to 6 s
  // where a link has dropped packets for 3.
  absl::Duration no_progress_timeout = absl::Seconds(10);
  // The same before an epoch has done some steps.
  absl::Duration no_progress_timeout_first = absl::Seconds(60);
  // For ranks that are left to leave an epoch in: who has not by then is lost, too. Two H100 were
  // quiet 3 to 25 ms behind the plan (docs/performance.md). But a rank gives its device 2 s to do
  // what it was given, once it has come out of its pass, and only then says that it has not: with
  // 2 s here it would be lost for its silence, and nobody would learn of the device.
  absl::Duration quiet_timeout = absl::Seconds(5);
  // For nodes without work to say which copies of state they have, whose daemons start a process
  // for that: then training goes back to what others have.
  absl::Duration keepers_timeout = absl::Seconds(30);
  // How much longer than start_timeout ranks have for each of the copies that one such node gives:
  // 150 GB at 500 MB/s.
  absl::Duration inherit_timeout = absl::Minutes(5);
  // Where they train on until all are connected for the next one: past it who came back stays out.
  // Longer than ranks try to connect and then wait for each other, a minute each.
  absl::Duration connect_timeout = absl::Seconds(150);
  // For ranks to make a set of standby communicators in, and until those that failed are tried
  // once more. Longer than ranks wait for each other and then connect, ten seconds each.
  absl::Duration standby_timeout = absl::Minutes(2);
  absl::Duration standby_retry_delay = absl::Minutes(1);
  // For two nodes to try whether they reach each other: the first listens for ten seconds.
  absl::Duration trial_timeout = absl::Seconds(15);
  // How long reports of ranks that are gone may follow their worker's return.
  absl::Duration report_grace = absl::Seconds(2);
  // For a rank to publish a checkpoint in: past it the job goes on, or ends, without.
  absl::Duration publish_timeout = absl::Minutes(2);
  // What a job has to end with a checkpoint in before its last step: past it it ends anyhow.
  absl::Duration end_grace = absl::Minutes(2);
  // Until a job that stayed on its devices, since its state could not be saved, is asked to leave
  // them once more: by nodes that drain and for larger priorities.
  absl::Duration save_retry_delay = absl::Minutes(2);
  // How long nothing new is placed on a node that could not prepare a job's data, where it does not
  // say before that it can.
  absl::Duration unfit_delay = absl::Minutes(1);
  // Rendezvous entries gather for so long before they are forwarded.
  absl::Duration rendezvous_delay = absl::Milliseconds(2);
  // Bytes of the rendezvous of one epoch; more than correct ranks ever say.
  size_t rendezvous_bytes_max = 256 << 20;
  // Progress is stored at most so often.
  absl::Duration step_record_interval = absl::Seconds(5);
  // A node that is away for so long is forgotten, and so are the ranks that it had of jobs that
  // have ended; one that holds a job that goes on is kept.
  absl::Duration node_forget_delay = absl::Hours(1);
  // Jobs that have not ended; past it a submit is refused.
  int64_t live_jobs_max = 10'000;
  // Bytes of the documents and labels of jobs that have not ended; past it a submit is refused.
  int64_t live_request_bytes_max = 512 << 20;
  // The same of one owner; in plaintext there is none.
  int64_t owner_request_bytes_max = 128 << 20;
  // Events that ranks may add to a job, and beside them corrupt samples that get an event each;
  // other events are dropped past it, corrupt samples still counted.
  int64_t rank_events_max = 10'000;
  // Events of a job that say that nodes of it are silent, or heard again; others are left out.
  int64_t silence_events_max = 100;
  // Events of a job that say that a device of it is slow, or is not any more; likewise.
  int64_t slow_events_max = 100;
  // How long a device has to be slow, or not any more, until samples are dealt by it, and how often
  // a job's are within how long.
  absl::Duration pace_delay = absl::Seconds(30);
  int64_t pace_changes_max = 4;
  absl::Duration pace_window = absl::Hours(1);
  // Bytes of what names the corrupt samples of a job; past it they are counted, not named.
  int64_t corrupt_bytes_max = 1 << 20;
  // What may wait for the store, and its bytes, before reports that can be spared are spared: steps
  // (only the newest is told when the store is back) and events of ranks (left out and counted).
  size_t held_max = 65'536;
  int64_t held_bytes_max = 64 << 20;
  // Faults are brought about on demand.
  bool allow_inject = false;
  // Plans that are ordered and not answered; while there are more no job leaves the queue. Each
  // carries its document. No plan takes more than some five seconds of a core, since documents are
  // bounded by their planning load (core/job/graph.h), so the number bounds the time too.
  size_t plans_max = 128;
  // Until others come (QuotasChanged).
  Quotas quotas;
  // Of device time that counts in the share of an owner: half of it after so long. Zero: among jobs
  // of one priority the older one goes first, whoever owns it.
  absl::Duration share_half_life = absl::Hours(7 * 24);
};

// Silence after which a node with a session is suspect: half of the timeout, and at least two and a
// half intervals, so that one heartbeat that is missed raises none. Infinite where the timeout
// leaves no time between.
absl::Duration SuspectDelay(const CoordinatorOptions& options);

}  // namespace phalanx::coordinator
