// Any bytes taken as a job file: violations have rules, a spec survives writing and reading, and
// what submit takes can be planned.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/violation.h"
#include "core/job/rules.h"
#include "core/wire/job_yaml.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/support/paths.h"

namespace phalanx::fuzz {
namespace {

std::string CheckRead(absl::string_view text, job::Purpose purpose) {
  const auto read = wire::ReadJobFile(text, purpose);
  if (!read.ok()) {
    const auto violations = ViolationsOf(read.status());
    if (violations.empty()) return "refused without a violation";
    for (const Violation& violation : violations) {
      if (violation.rule.empty()) return "a violation without a rule";
    }
    return "";
  }
  const std::vector<Violation> later = job::CheckLayout(read->spec);
  if (!later.empty()) return "refused only when it is planned: " + ToString(later.front());
  const std::string complete = wire::EmitYaml(job::WriteJobSpec(read->spec));
  if (complete.size() > wire::kDocumentBytesMax) return "";  // patterns expand
  const auto again = wire::ReadJobFile(complete, purpose);
  if (!again.ok()) return "refuses its own writing: " + again.status().ToString() + complete;
  if (wire::EmitYaml(job::WriteJobSpec(again->spec)) != complete)
    return "reads its own writing otherwise";
  return "";
}

}  // namespace

std::string Check(absl::string_view text) {
  const std::string submit = CheckRead(text, job::Purpose::kSubmit);
  return submit.empty() ? CheckRead(text, job::Purpose::kPlan) : submit;
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const char* name : {"emoji-captions.yaml", "language-tp3.yaml"}) {
    std::ifstream file(tests::SourceDir() + "/examples/" + name);
    std::stringstream text;
    text << file.rdbuf();
    corpus.push_back(text.str());
  }
  return corpus;
}

}  // namespace phalanx::fuzz
