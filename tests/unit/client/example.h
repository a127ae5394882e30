// tests/unit/client/example.h: the job file that tests of commands read.
#pragma once

#include <string>

#include "tests/support/paths.h"

namespace phalanx::client {

inline const std::string kExample = tests::SourceDir() + "/examples/emoji-captions.yaml";

}  // namespace phalanx::client
