// phalanx-sim-scale: what a job loses with its devices, at the size of the largest clusters.
//
//   phalanx-sim-scale                            # the tables
//   phalanx-sim-scale --days 1 --write docs/scale.md
//   phalanx-sim-scale --size small --days 90     # a small cluster rarely loses anything in a day
//
// Most of the simulated days is changes of layouts, of all rows together some thousand a day: the
// page's last table has what one takes at the largest size.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/sim/scale/report.h"

int main(int argc, char** argv) {
  phalanx::scale::ReportOptions options;
  std::string path;
  CLI::App app("What a job loses with its devices, at the size of the largest clusters.");
  app.add_option("--size", options.size, "Of the cluster and its jobs: paper or small")
      ->check(CLI::IsMember({"paper", "small"}));
  app.add_option("--seed", options.seed, "Of all chance");
  app.add_option("--draws", options.draws, "Of devices that are gone, for each share");
  app.add_option("--days", options.days, "Simulated, for each policy and share; 0: none");
  app.add_option("--losses", options.losses, "That are timed");
  app.add_option("--write", path, "The page");
  CLI11_PARSE(app, argc, argv);
  const phalanx::scale::Report report =
      phalanx::scale::MakeReport(options, [](const std::string& line) {
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
      });
  if (!path.empty()) std::ofstream(path) << report.page;
  if (report.trouble.empty()) return 0;
  std::fprintf(stderr, "%s\n", report.trouble.c_str());
  return 1;
}
