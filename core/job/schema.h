// core/job/schema.h: every field of a job file, as data.
//
// One table says what fields exist, which member of the spec each fills, what it may hold, whether
// ranks act on it and what it means; what it is when left out is what the member is. Reader,
// writer, the text of a plan's digest and docs/job-reference.md walk it; what relates one field to
// another is in core/job/rules.h.
//
// Pure. The tables are constants; safe to read from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/job/job_spec.h"
#include "core/job/member.h"

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
  kPair,      // two numbers, the upper bound excluded
  kPatterns,  // a file name with braces, or a list of them
  kModule,    // the name of a module; the member is its index
  kOffset,    // an integer or the name of a module; the member is the former
  kStringMap,
  kMapping,   // Field::fields
  kMappings,  // a list of them
};

// Left out: what happens.
enum class Absence : uint8_t {
  kInitial,        // the member keeps its initial value, or what Field::otherwise says follows
  kRequired,       // a violation
  kRequiredToRun,  // a violation unless the document is only planned
};

struct Field {
  absl::string_view name;
  FieldType type = FieldType::kString;
  Binding at = nullptr;  // nullptr: no member, for there is one choice only
  Absence absence = Absence::kInitial;
  absl::string_view otherwise;  // the default in words, where it is derived or there is none
  // Numbers and every element of a list of numbers: [low, high], (low, high] if above_low. Both 0:
  // no bounds. A spec's integer below `low`, like an empty string, is not known, and not written.
  double low = 0, high = 0;
  bool above_low = false;
  size_t count_max = 0;  // elements of kMappings
  absl::Span<const absl::string_view> choices;
  uint8_t first_choice = 0;  // number of the first; what is below it has no name and is not written
  absl::Span<const Field> fields;
  // Of kMapping: the flag, a member of what the mapping's fields are, that the word `auto` in its
  // place sets. nullptr: it may not be written.
  Binding automatic = nullptr;
  FamilySet families = ~FamilySet{0};  // of a module's fields: the families that have it
  FamilySet required_of = 0;           // and those that cannot do without it
  bool acted_on = true;                // by ranks; false: a matter of queue, files or recovery
  // Of a flag that ranks of the release before do not know: they act on it where it is set alone,
  // so that digests of plans of other jobs are what theirs are.
  bool acted_on_if_set = false;
  absl::string_view doc;  // one sentence

  Member Of(void* owner) const { return at == nullptr ? Member() : at(owner); }
};

// Ranks of a job at most.
inline constexpr int32_t kRanksMax = 1 << 20;
// Of a duration: ten years.
inline constexpr absl::Duration kDurationMax = absl::Hours(24 * 3650);
// Width of one head at most, written or not.
inline constexpr int64_t kHeadSizeMax = 65536;

// The fields of a mapping, by the path without indices: "" (the document), "metadata", "spec",
// "spec.modules", "spec.modules.parallel", ... A path that is no mapping is a caller's bug.
absl::Span<const Field> FieldsOf(absl::string_view path);

// "an integer from 1 to 8": what must be written.
std::string DescribeValue(const Field& field);

// docs/job-reference.md.
std::string JobReference();

// As written in a job file, in the order of the enumerations.
absl::Span<const absl::string_view> FamilyNames();  // clip_vision, ...: Family value - 1
absl::Span<const absl::string_view> RecomputeNames();
absl::Span<const absl::string_view> ScheduleNames();
absl::Span<const absl::string_view> DeviceNames();
absl::Span<const absl::string_view> StateHomeNames();

}  // namespace phalanx::job
