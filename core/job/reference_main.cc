// Prints docs/job-reference.md; with the argument `failures` docs/failures.md.
#include <cstdio>
#include <cstring>

#include "core/job/failure.h"
#include "core/job/schema.h"

int main(int argc, char** argv) {
  const bool failures = argc == 2 && std::strcmp(argv[1], "failures") == 0;
  const std::string text =
      failures ? phalanx::job::FailureReference() : phalanx::job::JobReference();
  std::fputs(text.c_str(), stdout);
  return 0;
}
