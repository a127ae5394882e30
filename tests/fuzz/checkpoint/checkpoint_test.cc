// Mutated manifests and headers, from a seed that a failure prints: each is read, or refused with a
// sentence.
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/prng.h"
#include "core/checkpoint/entry.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/model_tensors.h"
#include "gtest/gtest.h"
#include "tests/support/checkpoints.h"
#include "tests/support/specs.h"

namespace phalanx::fuzz {
namespace {

constexpr int kDocuments = 300;

uint64_t Seed() {
  const char* chosen = std::getenv("PHALANX_FUZZ_SEED");
  return chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
}

std::string Mutate(std::string text, Prng& prng) {
  static const std::vector<std::string> kWords = {"0",
                                                  "-1",
                                                  "1e999",
                                                  "18446744073709551616",
                                                  "9223372036854775807",
                                                  "null",
                                                  "true",
                                                  "\"",
                                                  "{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ":",
                                                  ",",
                                                  "\\",
                                                  "\xFF",
                                                  "#m",
                                                  "@",
                                                  "^T",
                                                  "/",
                                                  ".nan",
                                                  "F32",
                                                  "\"digest\": \"",
                                                  "\n",
                                                  " ",
                                                  "[[[[[["};
  const uint64_t edits = 1 + prng.Below(3);
  for (uint64_t i = 0; i < edits; ++i) {
    const size_t at = prng.Below(text.size());
    switch (prng.Below(5)) {
      case 0:
        text[at] ^= static_cast<char>(1 << prng.Below(8));
        break;
      case 1:
        text.erase(at, 1 + prng.Below(12));
        break;
      case 2:
        text.insert(at, kWords[prng.Below(kWords.size())]);
        break;
      case 3:
        text.insert(at, text.substr(prng.Below(text.size()), 1 + prng.Below(40)));
        break;
      case 4:
        if (prng.Below(10) == 0) text.resize(at + 1);
        break;
    }
    if (text.empty()) text = " ";
  }
  return text;
}

// With a digest that fits, so that what is before it is looked at.
std::string Sealed(std::string text) {
  const size_t tail = 32 + 4;
  if (text.size() < tail) return text;
  const std::string body = text.substr(0, text.size() - tail);
  return absl::StrCat(body, Digest(body), "\"\n}\n");
}

const plan::Plan& ThePlan() {
  static const auto& plan = *new absl::StatusOr<plan::Plan>(
      plan::MakePlan(support::AJob()
                         .Module("vision", support::ClipVision(), {.frozen = true})
                         .Module("language", support::Llama(), {.tp = 2})
                         .Edge("vision", "language", {.projector = 48}),
                     plan::MakeCluster(1, 3), Epoch{1}));
  return *plan;
}

TEST(CheckpointFuzzTest, MutatedManifests_AreReadOrRefused) {
  const std::string text =
      checkpoint::WriteManifest(support::ManifestOf(ThePlan(), support::MakeParts(ThePlan())));
  int read_count = 0;
  for (int i = 0; i < kDocuments; ++i) {
    const uint64_t seed = Seed() + static_cast<uint64_t>(i);
    SCOPED_TRACE(absl::StrCat("PHALANX_FUZZ_SEED=", seed));
    Prng prng(seed);
    const std::string mutated = Mutate(text, prng);
    const auto damaged = checkpoint::ReadManifest(mutated);
    ASSERT_EQ(damaged.ok(), mutated == text) << mutated;
    const auto lying = checkpoint::ReadManifest(Sealed(mutated));
    if (lying.ok()) {
      ++read_count;
      const auto again = checkpoint::ReadManifest(checkpoint::WriteManifest(*lying));
      ASSERT_TRUE(again.ok()) << again.status();
      const auto tensors = checkpoint::TensorsOf(lying->model, lying->entries());
      ASSERT_TRUE(tensors.ok() || tensors.status().message().size() > 10) << tensors.status();
    }
    for (const absl::Status& status : {damaged.status(), lying.status()}) {
      ASSERT_TRUE(status.ok() || status.message().size() > 10) << status;
    }
  }
  EXPECT_LT(read_count, kDocuments / 2);
}

TEST(CheckpointFuzzTest, MutatedHeaders_AreReadOrRefused) {
  const std::string bytes = checkpoint::WriteHeader(support::MakeParts(ThePlan())[1].header);
  for (int i = 0; i < kDocuments; ++i) {
    const uint64_t seed = Seed() + static_cast<uint64_t>(i);
    SCOPED_TRACE(absl::StrCat("PHALANX_FUZZ_SEED=", seed));
    Prng prng(seed);
    std::string mutated = Mutate(bytes, prng);
    // Half of them with a length that fits.
    if (prng.Below(2) == 0 && mutated.size() >= 64) {
      mutated.resize(mutated.size() / 64 * 64);
      for (size_t k = 0; k < 8; ++k) {
        mutated[k] = static_cast<char>(((mutated.size() - 8) >> (8 * k)) & 0xFF);
      }
    }
    const auto read = checkpoint::ReadHeader(mutated);
    if (!read.ok()) {
      ASSERT_GT(read.status().message().size(), 10u) << read.status();
      continue;
    }
    const auto again = checkpoint::ReadHeader(checkpoint::WriteHeader(*read));
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(again->entries, read->entries);
  }
}

}  // namespace
}  // namespace phalanx::fuzz
