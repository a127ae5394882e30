// core/plan/state_table.h: at which ranks the optimizer state of each element lives.
//
// Elements are counted along rulers (ruler.h), which are the same under every layout of a job with
// the same stages: so the tables of two layouts can be compared (moves.h). Where stages differ, one
// is told on the rulers of the other (ruler_map.h).
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"

namespace phalanx::plan {

// Elements of one ruler with the same homes.
struct HomedRun {
  UnitRange elements;
  int32_t homes = 0;  // index into StateTable::homes
};
struct HomedRuler {
  int32_t bucket = 0;
  UnitFamily family;
  std::vector<HomedRun> runs;  // ascending, without gaps
};
// Of one pipeline part. Host memory is no rank: shares.h says whether a module's state is there
// too.
struct StateTable {
  std::vector<RankList> homes;     // primary first, then mirrors
  std::vector<HomedRuler> rulers;  // by bucket, family; of buckets that train
};

// `part`: of a module whose family is known.
StateTable StateTableOf(const Plan& plan, const PartId& part);
// Of a module whose family is known: its state under `plan`, on the rulers of another plan of the
// job; by part of that one.
std::map<PartId, StateTable> StateTablesOn(const Plan& rulers, const Plan& plan, int32_t module);

}  // namespace phalanx::plan
