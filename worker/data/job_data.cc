#include "worker/data/job_data.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"

namespace phalanx::data {
namespace {

std::string Resolve(const std::string& path, const std::string& directory) {
  if (path.empty() || path.front() == '/' || directory.empty()) return path;
  return absl::StrCat(directory, "/", path);
}

bool IsSink(const job::JobSpec& spec, size_t module) {
  return std::none_of(spec.edges.begin(), spec.edges.end(), [module](const job::Edge& edge) {
    return static_cast<size_t>(edge.from) == module;
  });
}

}  // namespace

ItemShapes ItemShapesOf(const job::JobSpec& spec) {
  ItemShapes shapes;
  for (size_t m = 0; m < spec.modules.size(); ++m) {
    const job::Architecture& architecture = spec.modules[m].architecture;
    if (architecture.family == job::Family::kClipVision) {
      const int64_t side = architecture.image_size / architecture.patch_size;
      shapes.image_rows = side * side;
      shapes.image_size = architecture.image_size;
    } else if (architecture.family == job::Family::kWhisper) {
      shapes.audio_rows = architecture.frames / 2;
      shapes.mel_bins = architecture.mel_bins;
      shapes.frames = architecture.frames;
    } else if (architecture.family == job::Family::kRegressor && IsSink(spec, m)) {
      shapes.targets = true;
      shapes.target_hidden = architecture.hidden_size;
    }
  }
  return shapes;
}

LoaderOptions LoaderOptionsOf(const job::JobSpec& spec) {
  const ItemShapes shapes = ItemShapesOf(spec);
  LoaderOptions options;
  options.image_size = shapes.image_size;
  options.mel_bins = shapes.mel_bins;
  options.frames = shapes.frames;
  options.images = false;
  return options;
}

DataSetSpec DataSetSpecOf(const job::JobSpec& spec, const std::string& directory, bool validation) {
  const job::Data& data = *spec.data;
  DataSetSpec result;
  for (const std::string& shard : validation ? data.validation : data.shards) {
    result.shards.push_back(Resolve(shard, directory));
  }
  result.tokenizer = Resolve(data.tokenizer, directory);
  result.items_max = data.items_max;
  const ItemShapes shapes = ItemShapesOf(spec);
  result.image_rows = shapes.image_rows;
  result.audio_rows = shapes.audio_rows;
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
