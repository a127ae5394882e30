#include "core/wire/plan_dot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/specs.h"
#include "tests/unit/core/wire/pictured.h"

namespace phalanx::wire {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::NoArchitecture;
using support::Whisper;
using ::testing::HasSubstr;

TEST(PlanDotTest, Examples_HaveEveryModuleAndEdge) {
  for (const std::string& file : Examples()) {
    SCOPED_TRACE(file);
    const job::JobSpec spec = MustReadExample(file);
    const std::string dot = PlanDot(MustPlan(spec, 1, spec.World()));
    for (const job::Module& module : spec.modules) {
      EXPECT_THAT(dot, HasSubstr(absl::StrCat("\"", module.name, "\" [label=\"", module.name)));
    }
    for (const job::Edge& edge : spec.edges) {
      EXPECT_THAT(dot, HasSubstr(absl::StrCat(
                           "\"", spec.modules[static_cast<size_t>(edge.from)].name, "\" -> \"",
                           spec.modules[static_cast<size_t>(edge.to)].name, "\" [label=")));
    }
    std::set<int32_t> offsets;
    for (const job::Module& module : spec.modules) offsets.insert(module.offset);
    EXPECT_EQ(absl::StrContains(dot, "cluster"), offsets.size() < spec.modules.size());
  }
}

TEST(PlanDotTest, Graph_OfSeveralEncoders_ReadsAsPrinted) {
  const std::string dot =
      PlanDot(MustPlan(AJob()
                           .Module("vision", ClipVision(), {.dp = 4, .frozen = true})
                           .Module("audio", Whisper(), {.tp = 2, .dp = 2, .offset = 0})
                           .Module("language", Llama(), {.tp = 2, .pp = 2, .layers = {1, 3}})
                           .Edge("vision", "language", {.projector = 32})
                           .Edge("audio", "language", {.projector = 48, .frozen = true})));
  EXPECT_THAT(dot, HasSubstr("  subgraph cluster_0 {\n    label=\"colocated\";\n"
                             "    \"vision\" [label=\"vision\\nclip_vision\\ntp1 pp1 dp4\\n"
                             "ranks 0-3\\nlayers 2\\nfrozen\", style=\"rounded,dashed\"];\n"
                             "    \"audio\" [label=\"audio\\nwhisper\\ntp2 pp1 dp2\\nranks 0-3\\n"
                             "layers 2\"];\n  }\n"));
  EXPECT_THAT(dot, HasSubstr("  \"language\" [label=\"language\\nllama\\ntp2 pp2 dp1\\nranks 4-7\\n"
                             "layers 1+3\"];\n"));
  EXPECT_THAT(dot, HasSubstr("  \"vision\" -> \"language\" [label=\"4:1\\nmlp 32\"];\n"));
  EXPECT_THAT(dot, HasSubstr("  \"audio\" -> \"language\" [label=\"2:1\\nmlp 48 frozen\"];\n"));
}

TEST(PlanDotTest, Graph_OfABareLayout_HasNoShapes) {
  const std::string dot = PlanDot(MustPlan(AJob().Module("language", NoArchitecture())));
  EXPECT_THAT(dot, HasSubstr("\"language\" [label=\"language\\ntp1 pp1 dp1\\nrank 0\"];\n"));
}

}  // namespace
}  // namespace phalanx::wire
