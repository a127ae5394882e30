// core/schedule/search_space.h: the layouts of a job that a search looks at.
//
// Modules share their ranks or have ranks of their own: of up to 4 modules every way to put them
// together; of more all together, each by itself, or all but the language module together. Spans
// stand in the order of their first modules. A span without the language module has a power of two
// of ranks, or, on few devices (up to 16, of more than 3 modules up to 8), any number; that of the
// language module has what is left, or the largest power of two of that. Tensor groups lie within a
// node: their widths are powers of two, on few devices any that divide. Stages of the language
// module are any number that divides; a module beside it has one stage, or as many as the language
// module where it shares its ranks, or, of up to 4 modules on few devices, any number that divides.
// Of more than 3 modules, on few devices of more than 4, those beside the language module have one
// width, and their spans one size. No module has more replicas than the step has samples. Context
// and expert parallelism stay off. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job_spec.h"

namespace phalanx::schedule {

struct Degrees {
  int32_t tp = 1, pp = 1, dp = 1;
  int32_t ranks() const { return tp * pp * dp; }
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

struct SearchLayout {
  std::vector<int32_t> span_of;  // of each module, spans counted from 0
  std::vector<int32_t> sizes;    // ranks of each span
  std::vector<Degrees> degrees;  // of each module
  friend bool operator==(const SearchLayout&, const SearchLayout&) = default;
};

struct SearchSpace {
  std::vector<bool> open;    // of each module: its degrees are free; else they are the job's
  int32_t devices = 1;       // at most so many ranks
  int32_t node_devices = 1;  // of each node
};

// In one order, each once. Shapes of the modules must be known.
std::vector<SearchLayout> LayoutsOf(const job::JobSpec& spec, const SearchSpace& space);

// The job under the layout: degrees, ranks and offsets of all modules, and resources.devices.
// Open modules lose what else was written about their layout; of the others that stays.
job::JobSpec WithLayout(const job::JobSpec& spec, const SearchSpace& space,
                        const SearchLayout& layout);

// Whether open modules cut rows between products, as jobs that say nothing about it.
bool CutsSequences(const job::JobSpec& spec, int32_t tp);

}  // namespace phalanx::schedule
