#include "core/job/path_fields.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Fields(const JobSpec& spec) {
  std::vector<std::string> lines;
  for (const PathField& field : PathFieldsOf(spec)) {
    lines.push_back(absl::StrCat(field.field, field.use == PathUse::kRead ? " reads " : " writes ",
                                 absl::StrJoin(field.paths, " ")));
  }
  return lines;
}

TEST(PathFieldsTest, AllThatASpecHas) {
  JobSpec spec;
  EXPECT_THAT(Fields(spec), IsEmpty());
  spec.modules.resize(2);
  spec.modules[1].weights = "w";
  spec.data.emplace();
  spec.data->shards = {"a.tar", "b.tar"};
  spec.data->validation = {"v.tar"};
  spec.data->tokenizer = "t.model";
  spec.output = "out";
  spec.checkpoint.emplace();
  spec.checkpoint->directory = "c";
  spec.checkpoint->resume_from = "latest";
  EXPECT_THAT(Fields(spec),
              ElementsAre("spec.modules[1].weights reads w", "spec.data.shards reads a.tar b.tar",
                          "spec.data.validation reads v.tar", "spec.data.tokenizer reads t.model",
                          "spec.output writes out", "spec.checkpoint.directory writes c"));
  spec.checkpoint->resume_from = "../c/7";
  EXPECT_EQ(Fields(spec).back(), "spec.checkpoint.resume_from reads ../c/7");
}

// They would be taken for folders that are called so.
TEST(PathFieldsTest, AddressesWherePathsAreMeant_AreRefusedAllAtOnce) {
  std::string text = With("emoji-{000..003}.tar", "s3://b/{000..003}.tar");
  text = With("tokenizer: emoji.model}",
              "tokenizer: hf://m}\n  output: gs://b\n  checkpoint: {directory: s3://c, "
              "resume_from: ./a://b}",
              text);
  std::vector<std::string> wrong;
  for (const Violation& violation :
       ViolationsOf(wire::ReadJobFile(text, Purpose::kSubmit).status())) {
    wrong.push_back(absl::StrCat(violation.field, ": ", violation.rule));
  }
  constexpr absl::string_view kRule =
      ": must name files or folders of the nodes: this release knows no ";
  EXPECT_THAT(wrong, ElementsAre(absl::StrCat("spec.data.shards", kRule, "s3://"),
                                 absl::StrCat("spec.data.tokenizer", kRule, "hf://"),
                                 absl::StrCat("spec.output", kRule, "gs://"),
                                 absl::StrCat("spec.checkpoint.directory", kRule, "s3://")));
  EXPECT_TRUE(wire::ReadJobFile(text, Purpose::kAccepted).ok()) << "of a release before";
}

}  // namespace
}  // namespace phalanx::job
