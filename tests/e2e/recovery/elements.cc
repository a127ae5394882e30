#include "tests/e2e/recovery/elements.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/checkpoint_io/checkpoints.h"
#include "core/checkpoint_io/part_reader.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

// Elements of masters and moments by module, tensor, kind, row and column.
using Elements = std::map<std::tuple<std::string, std::string, int, int64_t, int64_t>, double>;

void AddElements(const checkpoint::Entry& entry, const std::string& bytes, Elements& elements) {
  support::Require(entry.dtype == checkpoint::DType::kF64, "elements are in fp64");
  const auto* values = reinterpret_cast<const double*>(bytes.data());
  for (int64_t line = 0; line < entry.lines(); ++line) {
    for (int64_t i = 0; i < entry.line(); ++i) {
      const int64_t row = entry.where.row + (entry.transposed ? i : line);
      const int64_t col = entry.where.col + (entry.transposed ? line : i);
      elements[{entry.module, entry.tensor, static_cast<int>(entry.kind), row, col}] =
          values[line * entry.line() + i];
    }
  }
}

Elements ReadCheckpoint(const std::string& path) {
  Elements elements;
  const auto manifest = checkpoint::ReadManifestOf(path);
  support::Require(manifest.ok(), manifest.status().ToString());
  for (const checkpoint::PartFile& file : manifest->parts) {
    const auto part = checkpoint::PartReader::Open(path, *manifest, file);
    support::Require(part.ok(), part.status().ToString());
    for (size_t i = 0; i < part->header().entries.size(); ++i) {
      std::string bytes;
      const absl::Status read = part->Read(i, bytes);
      support::Require(read.ok(), read.ToString());
      AddElements(part->header().entries[i], bytes, elements);
    }
  }
  return elements;
}

}  // namespace

double WorstDifference(const std::string& a, const std::string& b) {
  const Elements first = ReadCheckpoint(a), second = ReadCheckpoint(b);
  support::Require(!first.empty() && first.size() == second.size(), "both have the same elements");
  double worst = 0;
  for (auto at = first.begin(), other = second.begin(); at != first.end(); ++at, ++other) {
    support::Require(at->first == other->first, "both have the same elements");
    worst = std::max(worst, std::abs(at->second - other->second));
  }
  return worst;
}

}  // namespace phalanx::e2e
