// core/posix/signals.h: signals that a write may bring upon a process.
#pragma once

namespace phalanx {

// From then on a write to a pipe that nobody reads (SIGPIPE) and one beyond the limit on the size
// of files, RLIMIT_FSIZE (SIGXFSZ), end in an error, EPIPE and EFBIG, as one to a full disk ends in
// ENOSPC. Processes that this one starts inherit it.
void LetWritesFail();

}  // namespace phalanx
