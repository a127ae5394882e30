// core/posix/signals.h: signals that a process may bring upon itself.
#pragma once

namespace phalanx {

// From then on a write to a pipe that nobody reads (SIGPIPE) and one beyond the limit on the size
// of files, RLIMIT_FSIZE (SIGXFSZ), end in an error, EPIPE and EFBIG, as one to a full disk ends in
// ENOSPC. Processes that this one starts inherit it.
void LetWritesFail();

// From then on a process that ends by a fault of its own (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT)
// writes to standard error where the thread stood whose fault it was, a line a frame with module
// and offset for addr2line, and still ends by that signal: within milliseconds, or 3 seconds where
// standard error takes nothing. A stack that has run over is told of in the thread that calls this,
// in no other. Once in a process.
void TellOfFaults();

// From then on SIGQUIT makes this process write where each of its threads stands, in the same form,
// and go on. Each thread stands still for no longer than it takes to walk its stack; one that
// blocks all signals does not answer, and holds the others up for a second. System calls that
// SA_RESTART does not begin anew (poll, nanosleep) end with EINTR. Once in a process.
void TellWhenAsked();

}  // namespace phalanx
