#include "worker/rank/rank_figures.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace phalanx::rank {

void RankFigures::Add(const train::StepSummary& step) {
  if (step.step > kWarmupSteps + 1) {
    ++steps_;
    step_seconds_ += previous_seconds_;
    busy_seconds_ += step.previous.busy;
    exposed_comm_seconds_ += step.previous.exposed_comm;
  }
  previous_seconds_ = step.seconds;
}

absl::Status RankFigures::Write(const std::string& output, int32_t rank, int64_t memory_bytes) const {
  std::error_code error;
  std::filesystem::create_directories(absl::StrCat(output, "/ranks"), error);
  const std::string path = absl::StrCat(output, "/ranks/rank-", rank, ".json");
  nlohmann::ordered_json figures;
  figures["rank"] = rank;
  figures["steps"] = steps_;
  figures["step_seconds"] = step_seconds_;
  figures["busy_seconds"] = busy_seconds_;
  figures["exposed_comm_seconds"] = exposed_comm_seconds_;
  figures["memory_bytes"] = memory_bytes;
  std::ofstream out(path, std::ios::trunc);
  out << figures.dump() << "\n";
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("write ", path));
}

int64_t ResidentBytesMax() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace phalanx::rank
