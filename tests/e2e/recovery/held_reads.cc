#include "tests/e2e/recovery/held_reads.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"

namespace phalanx::e2e {

HeldReads::HeldReads()
    : path_(support::MakeFolder("held-reads") + "/process"),
      file_(open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
  setenv("PHALANX_HELD_READS", path_.c_str(), 1);
  setenv("LD_PRELOAD", PHALANX_HELD_READS_LIBRARY, 1);
}

HeldReads::~HeldReads() {
  unsetenv("LD_PRELOAD");
  unsetenv("PHALANX_HELD_READS");
}

void HeldReads::Hold(pid_t process, absl::string_view shards) {
  flock(file_.get(), LOCK_EX);
  support::WriteFile(path_, absl::StrCat(process, " ", shards));
}

void HeldReads::Release() {
  support::WriteFile(path_, "0 none");
  flock(file_.get(), LOCK_UN);
}

}  // namespace phalanx::e2e
