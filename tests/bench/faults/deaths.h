// tests/bench/faults/deaths.h: how soon the death of a process is known by the page of its life.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// kill -9 of a process that holds its page (worker/channel/life_page.h), `tries` times, from the
// call to a thread of this one knowing: of processes that hold little memory, and of such that hold
// 256 MiB, which the kernel takes back first; of both also until the process can be reaped, which
// is all that its parent knew without the page. Prints a line of JSON. Whether half of all deaths
// are known within a millisecond, which wants an idle machine, and none as anything else.
bool KnowDeaths(int64_t tries);

}  // namespace phalanx::e2e
