#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/fields.h"
#include "core/job/report.h"
#include "core/job/schema.h"

namespace phalanx::job {
namespace {

// `owner` is as it is made, so its members hold the defaults.
std::string DefaultOf(const Field& field, void* owner) {
  if (field.absence == Absence::kRequired) return "**required**";
  std::string text;
  if (field.absence == Absence::kRequiredToRun) text = "**required** to run; ";
  if (field.required_of != 0 && field.required_of == (field.families & ~SetOf(kNoFamily))) {
    return "**required**";
  }
  if (!field.otherwise.empty()) {
    absl::StrAppend(&text, field.otherwise);
  } else if (field.type == FieldType::kMapping) {
    absl::StrAppend(&text, "the defaults below");
  } else if (const std::optional<Tree> initial = WriteField(field, owner)) {
    absl::StrAppend(&text, "`", ShowValue(*initial), "`");
  }
  return text;
}

std::string FamiliesOf(const Field& field) {
  std::vector<std::string> names;
  for (size_t i = 0; i < FamilyNames().size(); ++i) {
    if ((field.families & SetOf(static_cast<Family>(i + 1))) != 0) {
      names.push_back(std::string(FamilyNames()[i]));
    }
  }
  return names.size() == FamilyNames().size() ? "" : absl::StrJoin(names, ", ");
}

// A mapping of the kind that the field holds, as it is made.
void* MakeOwner(const Field& field, void* owner) {
  const Member member = field.Of(owner);
  if (const Section* section = std::get_if<Section>(&member)) return section->make(section->holder);
  const Sections& list = std::get<Sections>(member);
  list.resize(list.list, 1);
  return list.at(list.list, 0);
}

void AppendTable(const std::string& path, const std::string& title, absl::Span<const Field> fields,
                 void* owner, std::string* out) {
  absl::StrAppend(out, "\n## ", title,
                  "\n\n| Field | Value | Default | Meaning |\n|---|---|---|---|\n");
  for (const Field& field : fields) {
    const std::string families = FamiliesOf(field);
    absl::StrAppend(out, "| `", field.name, "` | ", DescribeValue(field), " | ",
                    DefaultOf(field, owner), " | ", field.doc,
                    families.empty() ? "" : absl::StrCat(" (", families, ")"), " |\n");
  }
  for (const Field& field : fields) {
    if (field.fields.empty()) continue;
    const std::string inner =
        path.empty() ? std::string(field.name) : absl::StrCat(path, ".", field.name);
    const std::string list = field.type == FieldType::kMappings ? "[]" : "";
    AppendTable(inner + list, absl::StrCat("`", inner, list, "`"), field.fields,
                MakeOwner(field, owner), out);
  }
}

void AppendFamilies(std::string* out) {
  absl::StrAppend(out, "\n## Families\n\n| Family | What it is |\n|---|---|\n");
  for (const FamilyTraits& family : kFamilies) {
    if (family.known()) absl::StrAppend(out, "| `", family.name, "` | ", family.summary, " |\n");
  }
}

}  // namespace

std::string JobReference() {
  std::string text =
      "# Job file reference\n\n"
      "<!-- Written by `phalanx-job-reference` from core/job/schema.cc; a test compares. -->\n\n"
      "A job file is one YAML (or JSON) document of at most 1 MiB. `phalanx validate JOB -o yaml` "
      "prints it with\n"
      "every default written out. Unknown fields, repeated fields and values of the wrong type are "
      "errors; all errors\n"
      "of a document are reported at once, each as `field: value: rule`.\n\n"
      "Paths are relative to the folder of the job file. Durations carry their unit (`30s`, `2h`, "
      "`1h30m`); sizes\n"
      "may carry `Ki`, `Mi`, `Gi` or `Ti`. `null` stands for \"not written\". Anchors and aliases "
      "are understood,\n"
      "merge keys and tags are not.\n\n"
      "Beyond the single fields:\n\n"
      "- tp\\*cp\\*pp divides `ranks`, and so does expt_tp\\*ep\\*pp. Tensor width need not divide "
      "anything, but may not\n"
      "  exceed the query heads, or the blocks of the MLP, of the vocabulary or of a projector.\n"
      "- Spans of ranks are equal (colocated modules) or disjoint, and end within "
      "`resources.devices`.\n"
      "- Exactly one module is the language module, of a family with a vocabulary. Edges end at "
      "decoders, make no\n"
      "  cycle, and come with a projector where hidden sizes differ. A module that feeds no other "
      "has a loss: the\n"
      "  language module or a regressor. One item's rows fit into the decoder's context.\n"
      "- `heads` divides `hidden_size` unless `head_size` is written; `kv_heads` divides `heads`; "
      "`patch_size` divides\n"
      "  `image_size`; every pipeline stage has a layer.\n"
      "- A step has a planning load of at most 1,048,576: microbatches of the largest replica, "
      "times n x n for each kind\n"
      "  of rank that holds n pipeline parts (chunks of a stage, parts of colocated modules).\n"
      "- A regressor's context is at least the language module's.\n\n"
      "Not in this release, and refused by name at submit (planning works): cp, ep and expt_tp "
      "above 1; initial\n"
      "weights.\n";
  AppendFamilies(&text);
  JobSpec spec;
  AppendTable("", "The document", FieldsOf(""), &spec, &text);
  return text;
}

}  // namespace phalanx::job
