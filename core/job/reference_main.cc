// Prints docs/job-reference.md.
#include <cstdio>

#include "core/job/schema.h"

int main() {
  std::fputs(phalanx::job::JobReference().c_str(), stdout);
  return 0;
}
