// tests/fuzz/support/fuzz.h: what every fuzzed format has, in a program of its own.
//
// X_fuzz.cc defines Check and Corpus. The test (fuzz_test.cc) mutates the corpus for some seconds;
// the libFuzzer program (libfuzzer_main.cc) goes on from it for as long as it is let.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/prng.h"

namespace phalanx::fuzz {

// Takes any bytes. Empty if all is well, else what is wrong.
std::string Check(absl::string_view bytes);

// Inputs that are well-formed, or nearly so.
std::vector<std::string> Corpus();

// Another input, which a format that has structure makes of this one; where it is not defined,
// bytes alone are edited.
__attribute__((weak)) std::string Mutated(absl::string_view bytes, Prng& prng);

}  // namespace phalanx::fuzz
