#include "core/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/checkpoint/fields.h"
#include "core/checkpoint/names.h"
#include "core/job/json.h"
#include "core/job/scalar.h"

namespace phalanx::checkpoint {
namespace {

using job::Tree;

constexpr std::array<absl::string_view, 3> kVerdicts = {"committed", "skipped", "empty"};
// In the order of job::Precision.
constexpr std::array<absl::string_view, 3> kComputes = {"bf16", "fp32", "fp64"};
constexpr size_t kNodesMax = 8'000'000;
constexpr size_t kDigestDigits = 32;
constexpr absl::string_view kBeforeDigest = "\"digest\": \"", kAfterDigest = "\"\n}\n";

// Of a job or a store: one that a table can show as it stands.
bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= 63 && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  });
}

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
  });
}

// ---- Writing ----

template <typename Items, typename Write>
Tree ListOf(const Items& items, Write write) {
  std::vector<Tree> trees;
  for (const auto& item : items) trees.push_back(write(item));
  return job::ListTree(std::move(trees));
}

Tree TextOf(absl::string_view text) { return job::TextTree(std::string(text)); }

Tree WriteModule(const Model::Module& module) {
  std::vector<Tree::Entry> architecture;
  for (const auto& [field, value] : module.architecture) {
    Tree tree = TextOf(value);
    tree.quoted = !job::NeedsQuotes(value);  // numbers and booleans are bare, words are not
    architecture.push_back({field, std::move(tree)});
  }
  return job::MappingTree({{"name", TextOf(module.name)},
                           {"trains", job::FlagTree(module.trains)},
                           {"architecture", job::MappingTree(std::move(architecture))}});
}

Tree WriteProjector(const Model::Projector& projector) {
  return job::MappingTree({{"from", TextOf(projector.from)},
                           {"to", TextOf(projector.to)},
                           {"hidden_size", job::NumberTree(projector.hidden_size)},
                           {"trains", job::FlagTree(projector.trains)}});
}

Tree WriteDecision(const Decision& decision) {
  return job::MappingTree({{"verdict", TextOf(ToString(decision.verdict))},
                           {"loss", job::NumberTree(decision.loss)},
                           {"gradient_norm", job::NumberTree(decision.gradient_norm)},
                           {"gradient_scale", job::NumberTree(decision.gradient_scale)},
                           {"counted_tokens", job::NumberTree(decision.counted_tokens)},
                           {"corrupt_samples", job::NumberTree(decision.corrupt_samples)},
                           {"tokens", job::NumberTree(decision.tokens)},
                           {"images", job::NumberTree(decision.images)},
                           {"sounds", job::NumberTree(decision.sounds)}});
}

Tree WritePart(const PartFile& part) {
  return job::MappingTree({{"file", TextOf(part.file)},
                           {"bytes", job::NumberTree(part.bytes)},
                           {"header_bytes", job::NumberTree(part.header_bytes)},
                           {"entries", job::NumberTree(part.entries)},
                           {"digest", TextOf(part.digest)}});
}

// ---- Reading ----

// Calls `read` with each item of a list of objects, and its path.
template <typename Read>
void ForEach(Fields& fields, absl::string_view name, absl::Status* first, Read read) {
  const Tree& list = fields.List(name);
  for (size_t i = 0; i < list.items.size() && first->ok(); ++i) {
    Fields item(list.items[i], absl::StrCat(fields.PathOf(name), "[", i, "]"), first);
    read(item);
    item.Finish();
  }
}

template <size_t kCount>
size_t ChoiceOf(Fields& fields, absl::string_view name,
                const std::array<absl::string_view, kCount>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), fields.Text(name));
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  fields.Fail(name, absl::StrCat("must be one of ", absl::StrJoin(choices, ", ")));
  return 0;
}

std::string ReadDigest(Fields& fields, absl::string_view name) {
  std::string digest = fields.Text(name);
  if (digest.size() != kDigestDigits || !IsHex(digest)) {
    fields.Fail(name, "must be 32 hexadecimal digits");
  }
  return digest;
}

void ReadDecision(const Manifest& manifest, Fields& fields, Decision* decision) {
  decision->verdict = static_cast<Decision::Verdict>(ChoiceOf(fields, "verdict", kVerdicts));
  if ((decision->verdict == Decision::Verdict::kSkipped) != (manifest.skipped_in_a_row > 0)) {
    fields.Fail("verdict", absl::StrCat("skipped_in_a_row is ", manifest.skipped_in_a_row));
  }
  decision->loss = fields.Number("loss");
  decision->gradient_norm = fields.Number("gradient_norm");
  decision->gradient_scale = fields.Number("gradient_scale");
  decision->counted_tokens = fields.Number("counted_tokens");
  decision->corrupt_samples = fields.Number("corrupt_samples");
  decision->tokens = fields.Integer("tokens", 0);
  decision->images = fields.Integer("images", 0);
  decision->sounds = fields.Integer("sounds", 0);
  fields.Finish();
}

void ReadModel(Fields& fields, absl::Status* first, Model* model) {
  model->compute = static_cast<job::Precision>(ChoiceOf(fields, "compute", kComputes));
  std::set<std::string> names;
  ForEach(fields, "modules", first, [&](Fields& item) {
    Model::Module module{.name = item.Text("name"), .trains = item.Flag("trains")};
    if (module.name.empty() || absl::StrContains(module.name, '/')) {
      item.Fail("name", "is no name of a module");
    }
    if (!names.insert(module.name).second) item.Fail("name", "stands twice");
    for (const auto& [field, value] : item.Object("architecture").entries) {
      if (value.kind != Tree::Kind::kScalar) {
        item.Fail("architecture", absl::StrCat(field, " must be a number, a word or a boolean"));
      }
      module.architecture.emplace_back(field, value.scalar);
    }
    model->modules.push_back(std::move(module));
  });
  if (model->modules.empty()) fields.Fail("modules", "must not be empty");
  std::set<std::pair<std::string, std::string>> edges;
  ForEach(fields, "projectors", first, [&](Fields& item) {
    Model::Projector projector{.from = item.Text("from"), .to = item.Text("to")};
    if (names.count(projector.from) == 0) item.Fail("from", "is none of the modules");
    if (names.count(projector.to) == 0) item.Fail("to", "is none of the modules");
    if (!edges.emplace(projector.from, projector.to).second) item.Fail("to", "stands twice");
    projector.hidden_size = item.Integer("hidden_size", 1);
    projector.trains = item.Flag("trains");
    model->projectors.push_back(std::move(projector));
  });
}

void ReadParts(Fields& fields, absl::Status* first, std::vector<PartFile>* parts) {
  int32_t before = -1;
  int64_t sum = 0;
  ForEach(fields, "parts", first, [&](Fields& item) {
    PartFile part{.file = item.Text("file")};
    const std::optional<int32_t> rank = ParsePartFileName(part.file);
    if (!rank.has_value()) item.Fail("file", "must be the name of a part file, without a folder");
    if (rank.value_or(before + 1) <= before) item.Fail("file", "must be of a later rank");
    before = rank.value_or(before);
    part.bytes = item.Integer("bytes", 1);
    if (part.bytes > std::numeric_limits<int64_t>::max() - sum) {
      item.Fail("bytes", "all parts together have more than 2^63 bytes");
    } else {
      sum += part.bytes;
    }
    part.header_bytes = item.Integer("header_bytes", kDataAlignment, kHeaderBytesMax);
    if (part.header_bytes % kDataAlignment != 0 || part.header_bytes >= part.bytes) {
      item.Fail("header_bytes", absl::StrCat("must be a multiple of ", kDataAlignment,
                                             " and less than bytes (", part.bytes, ")"));
    }
    part.entries = item.Integer("entries", 1, part.bytes);
    part.digest = ReadDigest(item, "digest");
    parts->push_back(std::move(part));
  });
  if (parts->empty()) fields.Fail("parts", "must not be empty");
}

// Whether the text is what WriteManifest ended with a digest of the rest.
bool IsSealed(absl::string_view text) {
  const size_t tail = kDigestDigits + kAfterDigest.size();
  if (text.size() < kBeforeDigest.size() + tail) return false;
  const absl::string_view body = text.substr(0, text.size() - tail);
  return absl::EndsWith(body, kBeforeDigest) && absl::EndsWith(text, kAfterDigest) &&
         text.substr(body.size(), kDigestDigits) == Digest(body);
}

}  // namespace

absl::string_view ToString(Decision::Verdict verdict) {
  return kVerdicts[static_cast<size_t>(verdict)];
}

absl::string_view NameOf(job::Precision compute) { return kComputes[static_cast<size_t>(compute)]; }

std::string DigestOf(absl::Span<const PartFile> parts) {
  std::string text;
  for (const PartFile& part : parts) {
    absl::StrAppend(&text, part.file, " ", part.bytes, " ", part.header_bytes, " ", part.entries,
                    " ", part.digest, "\n");
  }
  return Digest(text);
}

int64_t Manifest::bytes() const {
  int64_t sum = 0;
  for (const PartFile& part : parts) sum += part.bytes;
  return sum;
}

int64_t Manifest::entries() const {
  int64_t sum = 0;
  for (const PartFile& part : parts) sum += part.entries;
  return sum;
}

Tree TreeOf(const Manifest& manifest) {
  Tree seed = TextOf(absl::StrCat(manifest.seed));
  seed.quoted = false;  // of 64 bits without a sign
  return job::MappingTree({{"format", TextOf(kFormat)},
                           {"job", TextOf(manifest.job)},
                           {"store", TextOf(manifest.store)},
                           {"number", job::NumberTree(manifest.number)},
                           {"epoch", job::NumberTree(manifest.epoch)},
                           {"step", job::NumberTree(manifest.step)},
                           {"seed", std::move(seed)},
                           {"data_digest", TextOf(manifest.data_digest)},
                           {"updates", job::NumberTree(manifest.updates)},
                           {"skipped_in_a_row", job::NumberTree(manifest.skipped_in_a_row)},
                           {"decision", WriteDecision(manifest.decision)},
                           {"compute", TextOf(NameOf(manifest.model.compute))},
                           {"modules", ListOf(manifest.model.modules, WriteModule)},
                           {"projectors", ListOf(manifest.model.projectors, WriteProjector)},
                           {"parts", ListOf(manifest.parts, WritePart)}});
}

std::string WriteManifest(const Manifest& manifest) {
  Tree tree = TreeOf(manifest);
  tree.entries.push_back({"digest", TextOf("")});
  std::string text = job::EmitJson(tree);
  text.resize(text.size() - kAfterDigest.size());
  return absl::StrCat(text, Digest(text), kAfterDigest);
}

absl::StatusOr<Manifest> ReadManifest(absl::string_view text) {
  if (text.size() > kManifestBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", text.size(), " bytes; at most ", kManifestBytesMax, " are read"));
  }
  ASSIGN_OR_RETURN(const Tree tree, job::ParseJson(text, kNodesMax));
  absl::Status first;
  Fields fields(tree, "", &first);
  if (fields.Text("format") != kFormat) {
    fields.Fail("format", absl::StrCat("this release reads ", kFormat));
  }
  RETURN_IF_ERROR(first);
  if (!IsSealed(text)) {
    return absl::InvalidArgumentError("its digest does not fit: it was changed or is damaged");
  }
  Manifest manifest{.job = fields.Text("job"), .store = fields.Text("store")};
  for (const auto& [field, name] : {std::pair("job", &manifest.job), {"store", &manifest.store}}) {
    if (!IsName(*name)) fields.Fail(field, "must be 1 to 63 letters, digits, '-' and '_'");
  }
  manifest.number = fields.Integer("number", 1);
  manifest.epoch = fields.Integer("epoch", 1);
  manifest.step = fields.Integer("step", 1);
  manifest.seed = fields.Unsigned("seed");
  manifest.data_digest = ReadDigest(fields, "data_digest");
  manifest.updates = fields.Integer("updates", 0, manifest.step);
  manifest.skipped_in_a_row =
      fields.Integer("skipped_in_a_row", 0, manifest.step - manifest.updates);
  Fields decision(fields.Object("decision"), "decision", &first);
  ReadDecision(manifest, decision, &manifest.decision);
  ReadModel(fields, &first, &manifest.model);
  ReadParts(fields, &first, &manifest.parts);
  fields.Text("digest");
  fields.Finish();
  if (!first.ok()) return first;
  return manifest;
}

}  // namespace phalanx::checkpoint
