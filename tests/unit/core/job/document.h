// tests/unit/core/job/document.h: a complete job file, and ways to spoil it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/violation.h"
#include "core/wire/job_yaml.h"
#include "gtest/gtest.h"

namespace phalanx::job {

// Two modules on six ranks; every rule holds, nothing is refused.
inline constexpr absl::string_view kDocument = R"(metadata: {name: demo}
spec:
  steps: 300
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 128, layers: 4, heads: 4, mlp_size: 512, image_size: 64, patch_size: 16}
      parallel: {ranks: 2, tp: 1}
    - name: language
      architecture: {family: llama, hidden_size: 192, layers: 6, heads: 6, kv_heads: 2, mlp_size: 512, vocabulary: 512, context: 64}
      parallel: {ranks: 4, tp: 2, pp: 2}
      offset: 2
  edges:
    - {from: vision, to: language, projector: {type: mlp, hidden_size: 192}}
  batch: {global: 48, micro: 2}
  data: {shards: "emoji-{000..003}.tar", tokenizer: emoji.model}
  optimizer: {learning_rate: 1e-3, warmup_steps: 20}
)";

// kDocument with the first `from` replaced; a `from` that is not there fails the test.
inline std::string With(absl::string_view from, absl::string_view to,
                        absl::string_view document = kDocument) {
  std::string text(document);
  const size_t at = text.find(std::string(from));
  if (at == std::string::npos) {
    ADD_FAILURE() << "no '" << from << "' in the document";
    return text;
  }
  return text.replace(at, from.size(), to.data(), to.size());
}

// Everything wrong with `text`, as people read it; empty if nothing is.
inline std::vector<std::string> Wrong(absl::string_view text, Purpose purpose = Purpose::kSubmit) {
  std::vector<std::string> lines;
  for (const Violation& violation : ViolationsOf(wire::ReadJobFile(text, purpose).status())) {
    lines.push_back(ToString(violation));
  }
  return lines;
}

// The spec of a document that must be right.
inline JobSpec Right(absl::string_view text, Purpose purpose = Purpose::kSubmit) {
  const absl::StatusOr<ReadJob> job = wire::ReadJobFile(text, purpose);
  EXPECT_TRUE(job.ok()) << job.status();
  if (job.ok()) return job->spec;
  JobSpec none;
  none.modules.resize(4);
  none.edges.resize(1);
  none.data.emplace();
  return none;
}

}  // namespace phalanx::job
