// core/job/schema.h: every field of a job file, as data.
//
// One table says what fields exist, what they may hold, what they are when left out and what they
// mean. The reader's known names, types, ranges and defaults come from it, and so does
// docs/job-reference.md; what relates one field to another is in core/job/rules.h.
//
// Pure. The tables are constants; safe to read from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/job/job_spec.h"

namespace phalanx::job {

enum class FieldType : uint8_t {
  kString,
  kChoice,   // one of Field::choices
  kChoices,  // a list of them, without repetition
  kInteger,
  kUnsigned,  // 64 bits
  kSize,      // an integer that may carry Ki, Mi, Gi, Ti
  kNumber,
  kBoolean,
  kDuration,
  kIntegers,  // list
  kNumbers,   // list
  kPatterns,  // a file name with braces, or a list of them
  kOffset,    // an integer or the name of a module
  kStringMap,
  kMapping,   // Field::fields
  kMappings,  // a list of them
};

// Left out: what happens.
enum class Absence : uint8_t {
  kInitial,        // Field::initial holds, or, where that is empty, Field::otherwise
  kRequired,       // a violation
  kRequiredToRun,  // a violation unless the document is only planned
};

struct Field {
  absl::string_view name;
  FieldType type = FieldType::kString;
  Absence absence = Absence::kInitial;
  absl::string_view initial;    // the default as one would write it; empty: see `otherwise`
  absl::string_view otherwise;  // in words, where the default is derived or there is none
  // Numbers and every element of a list of numbers: [low, high], (low, high] if above_low. Both 0:
  // no bounds.
  double low = 0, high = 0;
  bool above_low = false;
  absl::Span<const absl::string_view> choices;
  absl::Span<const Field> fields;
  FamilySet families = ~FamilySet{0};  // of `architecture`: those that have the field
  FamilySet required_of = 0;           // of `architecture`: those that cannot do without it
  absl::string_view doc;               // one sentence
};

// The fields of a mapping, by the path without indices: "" (the document), "metadata", "spec",
// "spec.modules", "spec.modules.parallel", ... A path that is no mapping is a caller's bug.
absl::Span<const Field> FieldsOf(absl::string_view path);

// "an integer from 1 to 8": what must be written.
std::string DescribeValue(const Field& field);

// docs/job-reference.md.
std::string JobReference();

// As written in a job file, in the order of the enumerations.
absl::Span<const absl::string_view> FamilyNames();  // clip_vision, ...: Family value - 1
absl::Span<const absl::string_view> AxisNames();
absl::Span<const absl::string_view> PrecisionNames();
absl::Span<const absl::string_view> RecomputeNames();
absl::Span<const absl::string_view> ScheduleNames();
absl::Span<const absl::string_view> DecayNames();
absl::Span<const absl::string_view> DeviceNames();
absl::Span<const absl::string_view> RungNames();
absl::Span<const absl::string_view> WidthsNames();
absl::Span<const absl::string_view> StateHomeNames();

}  // namespace phalanx::job
