// docs/job-reference.md is what core/job/schema.cc says.
#include <fstream>
#include <sstream>
#include <string>

#include "core/job/schema.h"
#include "gtest/gtest.h"
#include "tests/support/paths.h"

namespace phalanx::job {
namespace {

TEST(ReferenceTest, Document_IsUpToDate) {
  std::ifstream file(tests::SourceDir() + "/docs/job-reference.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), JobReference())
      << "run: build/release/bin/phalanx-job-reference > docs/job-reference.md";
}

TEST(ReferenceTest, EveryField_HasItsSentence) {
  for (const char* path :
       {"", "metadata", "spec", "spec.modules", "spec.modules.architecture",
        "spec.modules.parallel", "spec.edges", "spec.edges.projector", "spec.batch",
        "spec.schedule", "spec.data", "spec.optimizer", "spec.checkpoint", "spec.recovery",
        "spec.recovery.budget", "spec.resources"}) {
    for (const Field& field : FieldsOf(path)) {
      EXPECT_TRUE(!field.doc.empty() && field.doc.back() == '.') << path << "." << field.name;
    }
  }
}

}  // namespace
}  // namespace phalanx::job
