// core/plan/check.h: a broken invariant of our own ends the process with a message. Pure.
#pragma once

#include <cstdio>
#include <cstdlib>

// Never for what a user, a peer or a device can get wrong: that is a Status.
#define PHALANX_CHECK(condition, message)                                                 \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: %s (%s does not hold)\n", __FILE__, __LINE__, message, \
                   #condition);                                                           \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
