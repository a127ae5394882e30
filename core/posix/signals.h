// core/posix/signals.h: signals that a process may bring upon itself.
#pragma once

namespace phalanx {

// From then on a write to a pipe that nobody reads (SIGPIPE) and one beyond the limit on the size
// of files, RLIMIT_FSIZE (SIGXFSZ), end in an error, EPIPE and EFBIG, as one to a full disk ends in
// ENOSPC. Processes that this one starts inherit it.
void LetWritesFail();

// From then on a process that ends by a fault of its own (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT)
// writes to standard error where the thread stood whose fault it was, a line a frame with module
// and offset for addr2line, and still ends by that signal, within 3 seconds. Once in a process.
void TellOfFaults();

// From then on SIGQUIT makes this process write where each of its threads stands, in the same form,
// and go on. Once in a process.
void TellWhenAsked();

}  // namespace phalanx
