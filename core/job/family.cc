#include "core/job/family.h"

#include "core/job/job_spec.h"

namespace phalanx::job {

const FamilyTraits& TraitsOf(const Architecture& architecture) {
  return TraitsOf(architecture.family);
}

int64_t RowsOfItem(const Architecture& a) {
  switch (TraitsOf(a).modality) {
    case Modality::kImage: {
      const int64_t side = a.patch_size > 0 ? a.image_size / a.patch_size : 0;
      return side * side;
    }
    case Modality::kSound:  // two convolutions before the layers, the second of stride 2
      return a.frames / 2;
    case Modality::kNone:
    case Modality::kText:
      break;
  }
  return 0;
}

int64_t ExtraRowsOfItem(const Architecture& a) { return TraitsOf(a).class_token ? 1 : 0; }

}  // namespace phalanx::job
