// The libFuzzer entry: built where the compiler is Clang and PHALANX_LIBFUZZER is on.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/support/fuzz.h"

// Writes the corpus into the folder PHALANX_FUZZ_CORPUS, which libFuzzer then reads.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("PHALANX_FUZZ_CORPUS");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const std::string& bytes : phalanx::fuzz::Corpus())
    std::ofstream(absl::StrCat(folder, "/seed-", ++number), std::ios::binary) << bytes;
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

// Three of four mutations are the format's own, where it has any.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max,
                                          unsigned int seed) {
  phalanx::Prng prng(seed);
  if (phalanx::fuzz::Mutated == nullptr || prng.Below(4) == 0)
    return LLVMFuzzerMutate(data, size, size_max);
  const std::string made =
      phalanx::fuzz::Mutated({reinterpret_cast<const char*>(data), size}, prng);
  if (made.size() > size_max) return LLVMFuzzerMutate(data, size, size_max);
  std::memcpy(data, made.data(), made.size());
  return made.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string wrong = phalanx::fuzz::Check({reinterpret_cast<const char*>(data), size});
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "%s\n", wrong.c_str());
  std::abort();
}
