#include "worker/data/job_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/path.h"

namespace phalanx::data {
namespace {

bool IsSink(const job::JobSpec& spec, size_t module) {
  return std::none_of(spec.edges.begin(), spec.edges.end(), [module](const job::Edge& edge) {
    return static_cast<size_t>(edge.from) == module;
  });
}

}  // namespace

int32_t ItemShapes::EncoderOf(int32_t module) const {
  for (size_t i = 0; i < encoders.size(); ++i) {
    if (encoders[i].module == module) return static_cast<int32_t>(i);
  }
  return -1;
}

ItemShapes ItemShapesOf(const job::JobSpec& spec) {
  ItemShapes shapes;
  for (size_t m = 0; m < spec.modules.size(); ++m) {
    const job::Architecture& architecture = spec.modules[m].architecture;
    const job::FamilyTraits& family = job::TraitsOf(architecture);
    if (family.encoder()) {
      shapes.encoders.push_back({.module = static_cast<int32_t>(m),
                                 .kind = family.images() ? ItemKind::kImage : ItemKind::kSound,
                                 .rows = job::RowsOfItem(architecture),
                                 .image_size = architecture.image_size,
                                 .pixels = family.pixels,
                                 .mel_bins = architecture.mel_bins,
                                 .frames = architecture.frames});
    } else if (family.predicts() && IsSink(spec, m)) {
      shapes.targets = true;
      shapes.target_hidden = architecture.hidden_size;
    }
  }
  return shapes;
}

DataSetSpec DataSetSpecOf(const job::JobSpec& spec, const std::string& directory, bool validation) {
  const job::Data& data = *spec.data;
  DataSetSpec result;
  for (const std::string& shard : validation ? data.validation : data.shards) {
    result.shards.push_back(ResolvePath(directory, shard));
  }
  result.tokenizer = ResolvePath(directory, data.tokenizer);
  result.items_max = data.items_max;
  ItemShapes shapes = ItemShapesOf(spec);
  result.encoders = std::move(shapes.encoders);
  result.targets = shapes.targets;
  result.target_hidden = shapes.target_hidden;
  const job::Module& language = spec.modules[static_cast<size_t>(spec.language)];
  result.context = language.architecture.context;
  result.vocabulary = language.architecture.vocabulary;
  result.shards_field = validation ? "spec.data.validation" : "spec.data.shards";
  result.vocabulary_field =
      absl::StrCat("spec.modules[", spec.language, "].architecture.vocabulary");
  return result;
}

std::string DigestOfSets(const std::string& training, const std::string& validation) {
  return validation.empty() ? training : Digest(absl::StrCat(training, "\n", validation));
}

}  // namespace phalanx::data
