#include "worker/checkpoint/sections.h"

#include <algorithm>
#include <utility>

#include "core/checkpoint/manifest.h"
#include "worker/checkpoint/pinned_mapping.h"

namespace phalanx::checkpoint {
namespace {

constexpr Kind kTrained[] = {Kind::kMaster, Kind::kFirstMoment, Kind::kSecondMoment};

class Builder {
 public:
  Builder(const plan::Plan& plan, Copies copies) : plan_(plan), copies_(copies) {}

  void AddBlock(train::PartState& part, train::StateBlock& block) {
    Section section{.part = &part, .block = &block};
    for (const train::StateRun& run : block.runs) {
      section.runs.push_back({run.gradient_offset, run.count});
    }
    for (const Kind kind : kTrained) {
      section.kind = kind;
      Add(section);
    }
  }

  void AddFrozen(train::PartState& part) {
    const plan::StageParameters& parameters = part.parameters();
    Section section{.part = &part, .kind = Kind::kWeight};
    section.runs.push_back(
        {parameters.trained_extent, parameters.elements - parameters.trained_extent});
    Add(section);
  }

  std::vector<Section> Take() {
    std::stable_sort(sections_.begin(), sections_.end(), [](const Section& a, const Section& b) {
      return BytesOf(a.dtype) > BytesOf(b.dtype);
    });
    return std::move(sections_);
  }

 private:
  void Add(Section section) {
    section.dtype = DTypeOf(section.kind, plan_.spec.compute);
    for (const plan::UnitRange& run : section.runs) section.elements += run.count;
    section.entries =
        EntriesOf(section.part->parameters(), plan_.module_spec(section.part->place().module).name,
                  section.runs, copies_);
    for (LocalEntry& local : section.entries) {
      local.entry.kind = section.kind;
      local.entry.dtype = section.dtype;
    }
    if (!section.entries.empty()) sections_.push_back(std::move(section));
  }

  const plan::Plan& plan_;
  const Copies copies_;
  std::vector<Section> sections_;
};

// The tensor whose elements the section's runs are, or nullptr where it is the section's own array.
at::Tensor* FlatOf(const Section& section) {
  const bool masters = section.kind == Kind::kMaster && !section.block->master.defined();
  return section.kind == Kind::kWeight || masters ? &section.part->weights() : nullptr;
}

at::Tensor& ArrayOf(const Section& section) {
  if (section.kind == Kind::kMaster) return section.block->master;
  return section.kind == Kind::kFirstMoment ? section.block->first_moment
                                            : section.block->second_moment;
}

// Calls copy(state, array) for each part of them.
template <typename Copy>
void ForEachPair(const Section& section, const at::Tensor& array, Copy copy) {
  at::Tensor* flat = FlatOf(section);
  if (flat == nullptr) return copy(ArrayOf(section), array);
  int64_t position = 0;
  for (const plan::UnitRange& run : section.runs) {
    copy(flat->narrow(0, run.first, run.count), array.narrow(0, position, run.count));
    position += run.count;
  }
}

// Calls copy(first, count) for the elements of host memory that lie in one piece each.
template <typename Copy>
void ForEachPiece(const at::Tensor& host, const std::byte* grid, Copy copy) {
  const int64_t size = host.element_size();
  const auto* first = static_cast<const std::byte*>(host.const_data_ptr());
  for (int64_t done = 0; done < host.numel();) {
    const int64_t at = (first - grid) + done * size;
    const int64_t left = PinnedMapping::kPieceBytes - at % PinnedMapping::kPieceBytes;
    const int64_t count = std::min(host.numel() - done, left / size);
    copy(done, count);
    done += count;
  }
}

}  // namespace

std::vector<Section> SectionsToWrite(const plan::Plan& plan, train::TrainingState& state) {
  Builder builder(plan, Copies::kLed);
  for (const auto& part : state.parts()) {
    for (train::StateBlock& block : part->blocks()) {
      if (!block.mirrors) builder.AddBlock(*part, block);
    }
    const plan::Place& place = part->place();
    const bool first = place.dp == plan.replicas(place.module).FirstPresent() && place.cp == 0;
    if (first) builder.AddFrozen(*part);
  }
  return builder.Take();
}

std::vector<Section> SectionsToRead(const plan::Plan& plan, train::TrainingState& state) {
  Builder builder(plan, Copies::kAll);
  for (const auto& part : state.parts()) {
    for (train::StateBlock& block : part->blocks()) builder.AddBlock(*part, block);
    builder.AddFrozen(*part);
  }
  return builder.Take();
}

at::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return at::kBFloat16;
    case DType::kF32:
      return at::kFloat;
    case DType::kF64:
      return at::kDouble;
  }
  return at::kFloat;
}

void CopyOut(const Section& section, at::Tensor& array, const std::byte* grid) {
  ForEachPair(section, array, [&](const at::Tensor& state, const at::Tensor& to) {
    ForEachPiece(to, grid, [&](int64_t first, int64_t count) {
      to.narrow(0, first, count).copy_(state.narrow(0, first, count), /*non_blocking=*/true);
    });
  });
}

void CopyIn(const Section& section, const at::Tensor& array, const std::byte* grid) {
  ForEachPair(section, array, [&](const at::Tensor& state, const at::Tensor& from) {
    ForEachPiece(from, grid, [&](int64_t first, int64_t count) {
      state.narrow(0, first, count).copy_(from.narrow(0, first, count), /*non_blocking=*/true);
    });
  });
}

void CopyIn(const Section& section, const at::Tensor& array) {
  ForEachPair(section, array, [](at::Tensor state, const at::Tensor& from) { state.copy_(from); });
}

}  // namespace phalanx::checkpoint
