// tests/support/tools.h: tests of tools that scripts/setup brings, where one of them is not there.
#pragma once

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

// At the start of a test or of SetUp(). `why` says what is missing; empty: nothing is. The test is
// then skipped, and fails where PHALANX_EXIT_WITHOUT_TOOL is set, as in CI.
#define PHALANX_SKIP_WITHOUT_TOOL(why)                                            \
  if (const std::string missing_tool = (why); !missing_tool.empty()) {            \
    ASSERT_EQ(std::getenv("PHALANX_EXIT_WITHOUT_TOOL"), nullptr) << missing_tool; \
    GTEST_SKIP() << missing_tool;                                                 \
  }                                                                               \
  static_assert(true, "ends with a semicolon")
