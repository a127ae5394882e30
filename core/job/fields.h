// core/job/fields.h: the fields of a document and the members of a spec, one from the other.
//
// The schema alone decides: what relates fields to one another, and what follows from others where
// it is left out, is in core/job/references.h and core/job/rules.h. Pure.
#pragma once

#include <optional>
#include <string>

#include "core/job/job_reader.h"
#include "core/job/job_spec.h"
#include "core/job/report.h"
#include "core/job/schema.h"
#include "core/job/tree.h"

namespace phalanx::job {

// Longest string of a job file, in bytes.
inline constexpr size_t kStringMax = 4096;
// Elements of a list of numbers.
inline constexpr size_t kListMax = 4096;
// Entries of a mapping of strings, and bytes of one of its keys or values.
inline constexpr size_t kLabelsMax = 64, kLabelBytesMax = 253;

// Fills `spec` from the document of `report`, and reports unknown, repeated, missing and misplaced
// fields, wrong types and values out of range. What is not written, or wrong, stays as it is; so do
// references to modules (kModule, kOffset), whose text alone is looked at.
void ReadFields(Purpose purpose, Report& report, JobSpec& spec);

// WriteJobSpec without `spec.data`.
Tree WriteWithoutData(const JobSpec& spec);

// What is written for a field of `owner`; nullopt where it is not known. Reads only.
std::optional<Tree> WriteField(const Field& field, void* owner);

}  // namespace phalanx::job
