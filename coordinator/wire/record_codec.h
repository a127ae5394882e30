// coordinator/wire/record_codec.h: journal records as bytes and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/records.h"

namespace phalanx::v1 {
class Curve;
}  // namespace phalanx::v1

namespace phalanx::coordinator {

// Sealed (coordinator/wire/seal.h) with the record's number. The same record gives the same bytes.
std::string EncodeRecord(const JournalRecord& record, uint64_t number);

// Errors: as Unseal; DataLoss if the bytes are no record that this version knows.
absl::StatusOr<JournalRecord> DecodeRecord(absl::string_view sealed, uint64_t number);

void ToProto(const std::vector<CurvePoint>& curve, v1::Curve* out);
// Nothing where the lists are not equally long; points whose steps do not ascend from 1 are left
// out.
std::vector<CurvePoint> FromProto(const v1::Curve& curve);

// Of a store of version 1, whose records had no seal.
absl::StatusOr<JournalRecord> DecodeUnsealedRecord(absl::string_view bytes);

}  // namespace phalanx::coordinator
