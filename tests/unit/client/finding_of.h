// tests/unit/client/finding_of.h: what a doctor says about one of its checks.
#pragma once

#include <string>
#include <vector>

#include "core/job/node_examination.h"
#include "gtest/gtest.h"

namespace phalanx::client {

// Where there is none the test fails.
inline job::Finding FindingOf(const std::vector<job::Finding>& findings, const std::string& check) {
  for (const job::Finding& finding : findings) {
    if (finding.check == check) return finding;
  }
  ADD_FAILURE() << "no finding about " << check;
  return {};
}

}  // namespace phalanx::client
