#include "core/posix/signals.h"

#include <signal.h>

namespace phalanx {

void LetWritesFail() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

}  // namespace phalanx
