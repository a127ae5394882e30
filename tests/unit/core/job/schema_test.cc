// Every field of the schema reaches reader, writer and, where ranks act on it, the digest's text.
#include "core/job/schema.h"

#include <algorithm>
#include <functional>
#include <string>
#include <variant>

#include "core/job/fields.h"
#include "core/job/references.h"
#include "core/job/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

// Every family, and every section that may be left out.
constexpr absl::string_view kEverything = R"(metadata: {name: demo}
spec:
  steps: 300
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 32, layers: 4, heads: 4, mlp_size: 512, image_size: 64, patch_size: 16}
    - name: audio
      architecture: {family: whisper, hidden_size: 32, layers: 2, heads: 4, mlp_size: 512, mel_bins: 8, frames: 20}
    - name: language
      architecture: {family: llama, hidden_size: 32, layers: 6, heads: 4, kv_heads: 2, mlp_size: 512, vocabulary: 512, context: 64}
    - name: denoiser
      architecture: {family: regressor, hidden_size: 32, layers: 2, heads: 4, mlp_size: 512, context: 64}
  edges:
    - {from: vision, to: language, projector: {}}
    - {from: audio, to: language}
    - {from: language, to: denoiser}
  batch: {global: 48, micro: 2}
  data: {shards: a.tar, tokenizer: emoji.model}
  checkpoint: {}
)";

using Leaf = std::function<void(const std::string& path, const Field& field, void* owner)>;

// Calls `leaf` for each field that is no mapping, in the schema's order.
void Visit(const std::string& path, absl::Span<const Field> fields, void* owner, Family family,
           const Leaf& leaf) {
  for (const Field& field : fields) {
    if (family != kNoFamily && (field.families & SetOf(family)) == 0) continue;
    const std::string inner = JoinPath(path, field.name);
    const Member member = field.Of(owner);
    if (const Section* section = std::get_if<Section>(&member)) {
      void* there = section->owner(section->holder);
      if (there != nullptr) Visit(inner, field.fields, there, family, leaf);
    } else if (const Sections* list = std::get_if<Sections>(&member)) {
      for (size_t i = 0; i < list->size(list->list); ++i) {
        void* item = list->at(list->list, i);
        Visit(inner + "[" + std::to_string(i) + "]", field.fields, item, list->family(item), leaf);
      }
    } else {
      leaf(inner, field, owner);
    }
  }
}

// Gives the member another value that the field may have.
struct Change {
  const Field& field;
  void operator()(std::string* value) const { *value += "x"; }
  void operator()(std::optional<std::string>* value) const { *value = "other"; }
  template <typename Integer>
  void operator()(Integer* value) const {
    *value = field.type == FieldType::kModule && *value > 0 ? 0 : *value + 1;
  }
  void operator()(double* value) const { *value = *value > 0 ? *value / 2 : field.high / 2; }
  void operator()(bool* value) const { *value = !*value; }
  void operator()(absl::Duration* value) const { *value += absl::Seconds(1); }
  void operator()(std::optional<absl::Duration>* value) const { *value = absl::Seconds(90); }
  void operator()(std::vector<int32_t>* value) const { value->push_back(1); }
  void operator()(std::vector<std::string>* value) const { value->push_back("b.tar"); }
  void operator()(std::array<double, 2>* value) const { (*value)[1] /= 2; }
  void operator()(std::map<std::string, std::string>* value) const { (*value)["key"] = "17"; }
  void operator()(Choice value) const {
    const auto count = static_cast<uint8_t>(field.choices.size());
    const auto next = static_cast<uint8_t>(*value.number - field.first_choice + 1);
    *value.number = static_cast<uint8_t>(next % count + field.first_choice);
  }
  void operator()(Choices value) const {
    std::vector<uint8_t> numbers = value.get(value.list);
    std::reverse(numbers.begin(), numbers.end());
    value.set(value.list, numbers);
  }
  void operator()(std::monostate) const {}
  void operator()(Section) const {}
  void operator()(Sections) const {}
};

// What a reader makes of a written spec; rules apart.
JobSpec Reread(const Tree& document) {
  Report report(document);
  JobSpec spec;
  ReadFields(Purpose::kPlan, report, spec);
  ResolveReferences(report, spec);
  return spec;
}

std::string Written(const JobSpec& spec) { return wire::EmitYaml(WriteJobSpec(spec)); }

TEST(SchemaTest, EveryField_IsWrittenReadAndDigested) {
  const JobSpec base = Right(kEverything, Purpose::kPlan);
  JobSpec changed = base;
  size_t leaves = 0;
  Visit("", FieldsOf(""), &changed, kNoFamily, [&](auto&, auto&, void*) { ++leaves; });
  EXPECT_GT(leaves, 100u);
  for (size_t i = 0; i < leaves; ++i) {
    changed = base;
    size_t next = 0;
    Visit("", FieldsOf(""), &changed, kNoFamily,
          [&](const std::string& path, const Field& field, void* owner) {
            if (next++ != i) return;
            SCOPED_TRACE(path);
            if (field.at == nullptr) {
              EXPECT_EQ(field.choices.size(), 1u) << "no member";
              return;
            }
            std::visit(Change{field}, field.Of(owner));
            EXPECT_FALSE(Written(changed) == Written(base));
            // What another family has, and derives, is not there yet.
            if (field.name == "family") changed = Reread(WriteJobSpec(changed));
            EXPECT_TRUE(Written(Reread(WriteJobSpec(changed))) == Written(changed));
            EXPECT_EQ(ActedText(changed) != ActedText(base), field.acted_on);
          });
  }
}

// Ranks of the release before know nothing of it.
TEST(SchemaTest, FlagThatIsActedOnIfSet_IsDigestedThen) {
  JobSpec spec = Right(kEverything, Purpose::kPlan);
  spec.deterministic = false;
  EXPECT_EQ(ActedText(spec).find("deterministic"), std::string::npos);
  spec.deterministic = true;
  EXPECT_NE(ActedText(spec).find("deterministic"), std::string::npos);
}

TEST(SchemaTest, LeftOutFields_KeepWhatTheSpecBeginsWith) {
  JobSpec defaults;
  defaults.name = "demo";
  defaults.modules.resize(1);
  defaults.modules[0].name = "language";
  defaults.data.emplace() = {.shards = {"a.tar"}, .tokenizer = "t"};
  defaults.checkpoint.emplace().directory = "checkpoints";
  defaults.resources.devices = 1;
  defaults.output = "runs/demo";
  EXPECT_EQ(Written(Right(R"(metadata: {name: demo}
spec:
  steps: 1
  modules: [{name: language}]
  batch: {global: 1}
  data: {shards: a.tar, tokenizer: t}
  checkpoint: {}
)",
                          Purpose::kPlan)),
            Written(defaults));
}

}  // namespace
}  // namespace phalanx::job
