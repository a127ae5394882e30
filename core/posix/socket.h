// core/posix/socket.h: sockets that listen, and the limit of descriptors.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/posix/unique_fd.h"

namespace phalanx {

// A non-blocking socket that listens on host and port (0: any free one); the first address of the
// host that can be listened on. Errors: Unavailable.
absl::StatusOr<UniqueFd> Listen(const std::string& host, int port);

// Another descriptor of a socket that listens, which listens until the last of them is closed: who
// takes over from somebody misses no caller. Errors: Unavailable.
absl::StatusOr<UniqueFd> ListenAlso(int listening);

// The port that a socket is bound to.
int PortOf(int fd);
// What a socket is bound to, in numbers: "10.0.0.5:40123", "[::1]:40123". Errors: Unavailable.
absl::StatusOr<std::string> AddressOf(int fd);

// Raises this process's soft limit of open descriptors to the hard one. Returns the limit.
int RaiseDescriptorLimit();
int DescriptorLimit();

}  // namespace phalanx
