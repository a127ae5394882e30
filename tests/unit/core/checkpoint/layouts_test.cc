// Any layout finds in the files of any other what belongs to it, element by element.
#include "tests/support/layouts.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "core/checkpoint/entry_index.h"
#include "core/checkpoint/local_entries.h"
#include "core/checkpoint/model_tensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/checkpoints.h"
#include "tests/support/specs.h"

namespace phalanx::checkpoint {
namespace {

using support::AJob;
using support::CheckpointValues;
using support::ClipVision;
using support::Layout;
using support::Llama;
using support::MadePart;

struct Shape {
  bool tied = false, frozen_vision = false, frozen_projector = false;
  job::Precision compute = job::Precision::kFp32;
};

int32_t OneOf(Prng& prng, std::initializer_list<int32_t> values) {
  return *(values.begin() + prng.Below(values.size()));
}

// A random layout of the model; half of them have lost ranks. nullopt where there is no such.
std::optional<plan::Plan> DrawPlan(const Shape& shape, Prng& prng) {
  AJob job;
  job.Module("vision",
             ClipVision({.hidden_size = 16, .layers = 2, .heads = 4, .mlp_size = 20, .block = 8}),
             {.tp = OneOf(prng, {1, 2, 3}),
              .dp = OneOf(prng, {1, 2}),
              .pp = OneOf(prng, {1, 2}),
              .frozen = shape.frozen_vision})
      .Module("language",
              Llama({.hidden_size = 24,
                     .heads = 6,
                     .mlp_size = 36,
                     .vocabulary = 50,
                     .tied_head = shape.tied}),
              {.tp = OneOf(prng, {1, 2, 3, 4, 5}),
               .dp = OneOf(prng, {1, 2, 3}),
               .pp = OneOf(prng, {1, 2, 4})})
      .Edge("vision", "language", {.projector = 28, .frozen = shape.frozen_projector})
      .Batch(12, 2)
      .Compute(shape.compute);
  if (prng.Below(4) == 0) job.Schedule(job::ScheduleName::kInterleaved, 2);
  const job::JobSpec spec = job;
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 128), Epoch{1});
  if (!plan.ok()) return std::nullopt;
  if (prng.Below(2) == 0) return *std::move(plan);
  plan::Layout layout = plan->layout;
  for (int32_t module = 0; module < 2; ++module) support::Damage(prng, *plan, module, layout);
  auto damaged = plan::Expand(spec, std::move(layout));
  if (!damaged.ok()) return std::nullopt;
  return *std::move(damaged);
}

// What the flat buffer of a part holds of one kind; -1 where nothing belongs.
std::vector<double> Expected(const plan::StageParameters& parameters, const std::string& module,
                             Kind kind) {
  std::vector<double> values(static_cast<size_t>(parameters.elements), -1);
  for (const plan::LocalMatrix& matrix : parameters.matrices) {
    if (matrix.trains == (kind == Kind::kWeight)) continue;
    for (const plan::Piece& piece : matrix.pieces) {
      const std::string& tensor = parameters.logical[static_cast<size_t>(piece.logical)].name;
      const CheckpointValues value(module, tensor, kind);
      for (int64_t r = 0; r < piece.rows; ++r) {
        for (int64_t c = 0; c < matrix.cols; ++c) {
          const int64_t line = piece.logical_row + r;
          values[static_cast<size_t>(matrix.offset + (piece.local_row + r) * matrix.cols + c)] =
              matrix.transposed ? value(c, line) : value(line, c);
        }
      }
    }
  }
  return values;
}

// Fills a part's buffer from the files, as a rank that loads them does.
void Load(const std::vector<MadePart>& files, const EntryIndex& index, const LocalEntry& local,
          Kind kind, std::vector<double>* values) {
  const auto found = index.Find(local.entry.module, local.entry.tensor, kind, local.entry.where);
  ASSERT_TRUE(found.ok()) << found.status();
  for (const FoundEntry& one : *found) {
    const Entry& entry =
        files[static_cast<size_t>(one.file)].header.entries[static_cast<size_t>(one.entry)];
    const Steps from = StepsIn(entry, one.part), to = StepsIn(local, one.part);
    for (int64_t r = 0; r < one.part.rows; ++r) {
      for (int64_t c = 0; c < one.part.cols; ++c) {
        double& value = (*values)[static_cast<size_t>(to.first + r * to.row + c * to.col)];
        ASSERT_EQ(value, -1) << "loaded twice";
        const int64_t place =
            entry.offset + BytesOf(entry.dtype) * (from.first + r * from.row + c * from.col);
        const std::string& data = files[static_cast<size_t>(one.file)].data;
        float read = 0;
        ASSERT_EQ(entry.dtype, DType::kF32);
        std::memcpy(&read, data.data() + place, sizeof read);
        value = static_cast<double>(read);
      }
    }
  }
}

void ExpectLoads(const std::vector<MadePart>& files, const plan::Plan& plan) {
  std::vector<PartHeader> headers;
  for (const MadePart& file : files) headers.push_back(file.header);
  const auto index = EntryIndex::Create(headers);
  ASSERT_TRUE(index.ok()) << index.status();
  const absl::Status whole = index->CheckWhole(TensorsOf(plan.spec));
  ASSERT_TRUE(whole.ok()) << whole;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      const std::string& module = plan.module_spec(place.module).name;
      for (int32_t chunk = 0; chunk < plan.modules[static_cast<size_t>(place.module)].chunks();
           ++chunk) {
        const auto parameters = plan::ParametersOf(plan, place, chunk);
        const int64_t trained = parameters.trained_extent;
        for (const Kind kind : {Kind::kMaster, Kind::kSecondMoment, Kind::kWeight}) {
          std::vector<double> values(static_cast<size_t>(parameters.elements), -1);
          // Two runs, which cut somewhere.
          const int64_t begin = kind == Kind::kWeight ? trained : 0;
          const int64_t end = kind == Kind::kWeight ? parameters.elements : trained;
          const int64_t middle = begin + (end - begin) * 2 / 5;
          std::vector<double> loaded(static_cast<size_t>(end - begin), -1);
          for (const LocalEntry& local :
               EntriesOf(parameters, module, {{begin, middle - begin}, {middle, end - middle}},
                         Copies::kAll)) {
            ASSERT_NO_FATAL_FAILURE(Load(files, *index, local, kind, &loaded));
          }
          std::copy(loaded.begin(), loaded.end(), values.begin() + begin);
          ASSERT_EQ(values, Expected(parameters, module, kind)) << "rank " << rank;
        }
      }
    }
  }
}

TEST(LayoutsTest, AnyLayout_FindsWhatAnyOtherWrote) {
  int pairs = 0;
  for (uint64_t seed = 1; pairs < 300; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const Shape shape{.tied = prng.Below(2) == 0,
                      .frozen_vision = prng.Below(3) == 0,
                      .frozen_projector = prng.Below(4) == 0};
    const auto writer = DrawPlan(shape, prng), reader = DrawPlan(shape, prng);
    if (!writer.has_value() || !reader.has_value()) continue;
    ++pairs;
    ASSERT_NO_FATAL_FAILURE(ExpectLoads(support::MakeParts(*writer), *reader));
  }
}

TEST(LayoutsTest, LostRank_LeavesAGapThatIsNamed) {
  Prng prng(1);
  const job::JobSpec spec = AJob().Module("language", Llama(), {.tp = 2, .dp = 2});
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 4), Epoch{1});
  std::vector<PartHeader> headers;
  for (const MadePart& part : support::MakeParts(*plan)) headers.push_back(part.header);
  ASSERT_EQ(headers.size(), 4u);
  headers.erase(headers.begin() + 2);
  const absl::Status whole = EntryIndex::Create(headers)->CheckWhole(TensorsOf(plan->spec));
  EXPECT_THAT(std::string(whole.message()),
              testing::AnyOf(testing::HasSubstr("no file has all of row"),
                             testing::HasSubstr("the files have ")));
}

}  // namespace
}  // namespace phalanx::checkpoint
