#include <utility>

#include "tests/e2e/matrix/row.h"

namespace phalanx::e2e {

JobOptions AJob() {
  return {.steps = kSteps,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 6, tp: 2",
          .batch = 7,
          // What another layout rounds otherwise does not grow to more than is looked for.
          .learning_rate = 1e-5,
          .recovery = "{rejoin: manual}",
          .standby = true};
}

std::vector<Row> AllRows() {
  std::vector<Row> rows = RowsOfPlaces();
  for (Row& row : RowsOfProcesses()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace phalanx::e2e
