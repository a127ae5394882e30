// coordinator/program/several.h: one of several coordinators over one store on etcd.
//
// It stands by while another one leads: it answers who does, and nothing else. When nobody leads it
// tries to, and serves. A leader that etcd has forgotten, or that etcd does not answer, stops
// serving at once, before its lease is over, and stands by again.
#pragma once

#include <signal.h>

#include "absl/status/status.h"
#include "coordinator/program/flags.h"

namespace phalanx::coordinator {

// Until one of `signals`, which every thread has blocked. Errors: with which nobody could ever
// serve here: an address that cannot be listened on, a store that is damaged or of a newer version.
absl::Status ServeAmongOthers(const Flags& flags, const Settings& settings, PlanFunction plan,
                              const sigset_t& signals);

}  // namespace phalanx::coordinator
