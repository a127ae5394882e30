// Whoever adds a method has it fuzzed, or is told here.
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "tests/fuzz/service/calls.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/support/paths.h"

namespace phalanx::fuzz {
namespace {

// Of all services in proto/phalanx/v1.
std::set<std::string> Methods() {
  std::set<std::string> methods;
  const std::string folder = tests::SourceDir() + "/proto/";
  for (const auto& entry : std::filesystem::directory_iterator(folder + "phalanx/v1")) {
    const std::string name = "phalanx/v1/" + entry.path().filename().string();
    const auto* file = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(name);
    if (file == nullptr) {
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      EXPECT_EQ(text.str().find("\nservice "), std::string::npos)
          << name << " has a service and is not in this program; name it in Kinds()";
      continue;
    }
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m)
        methods.insert(file->service(s)->method(m)->full_name());
    }
  }
  return methods;
}

TEST(ServiceFuzzTest, EveryMethodOfEveryService_IsAKindOfStep) {
  std::set<std::string> kinds;
  for (const Kind& kind : Kinds()) {
    if (kind.method != nullptr) kinds.insert(kind.method->full_name());
  }
  EXPECT_EQ(kinds, Methods());
}

TEST(ServiceFuzzTest, EveryMethodOfEveryService_IsAnsweredInTheCorpus) {
  std::set<std::string> answered;
  for (const std::string& bytes : Corpus()) {
    const Outcome outcome = fuzz::Run(ReadScript(bytes, Kinds().size()));
    EXPECT_EQ(outcome.wrong, "");
    answered.insert(outcome.answered.begin(), outcome.answered.end());
  }
  EXPECT_EQ(answered, Methods());
}

}  // namespace
}  // namespace phalanx::fuzz
