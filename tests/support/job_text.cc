#include "tests/support/job_text.h"

#include "absl/strings/str_cat.h"

namespace phalanx::support {

std::string JobText(const SmallJob& job) {
  return absl::StrCat("apiVersion: phalanx/v1\nkind: TrainingJob\nmetadata: {name: ", job.name,
                      "}\nspec:\n  steps: ", job.steps,
                      "\n  modules:\n    - name: language\n"
                      "      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, "
                      "kv_heads: 2, mlp_size: 128, vocabulary: 256, context: 64, block: 32}\n"
                      "      parallel: {ranks: ",
                      job.ranks, ", tp: ", job.tp, "}\n  batch: {global: ", job.global,
                      ", micro: ", job.micro,
                      "}\n  data: {shards: \"a-{0..1}.tar\", tokenizer: t.model}\n"
                      "  resources: {device: cpu}\n",
                      job.recovers ? "" : "  recovery: {ladder: []}\n");
}

}  // namespace phalanx::support
