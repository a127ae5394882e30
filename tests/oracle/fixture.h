// tests/oracle/fixture.h: reads what scripts/make_fixtures.py wrote.
#pragma once

#include <string>

#include "tests/oracle/plain_model.h"

namespace phalanx::oracle {

// Tensors by name. Ends the test where the file cannot be read.
NamedTensors ReadFixture(const std::string& name);

// The tensors whose name begins with `prefix`, as "module/rest", in the shapes of PlainModel.
NamedTensors Select(const NamedTensors& fixture, const std::string& prefix,
                    const std::string& module);

}  // namespace phalanx::oracle
