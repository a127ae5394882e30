// worker/comm/gloo_transport.h: the transport of CPU ranks in processes: Gloo's unbound buffers.
//
// Gloo's own collectives ignore a dead peer until their timeout, and closing its pairs wakes
// nobody, so only its mesh of connections and its tagged messages are used. A watcher thread keeps
// one receive open on every connection. A peer that leaves in order completes it; a peer that dies
// breaks it, and the watcher then fails the whole transport with that peer's rank. Between ranks of
// one host the messages themselves go through shared memory: over TCP each takes four system calls
// and wakes two more threads, which costs most where ranks outnumber cores.
//
// Gloo throws; nothing leaves these files.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/transport.h"

namespace phalanx::comm {

// Meets `peers` through `rendezvous`, as ConnectGlooMesh() does and with its errors.
absl::StatusOr<std::unique_ptr<Transport>> ConnectGlooTransport(int32_t self, int32_t world,
                                                                std::vector<int32_t> peers,
                                                                Rendezvous& rendezvous,
                                                                const WorldOptions& options);

}  // namespace phalanx::comm
