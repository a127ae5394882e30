// tests/e2e/jobs/job.h: small jobs on small data sets, and what they leave behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/v1/common.pb.h"
#include "tests/support/shards.h"

namespace phalanx::e2e {

// A folder with shards set-000.tar, set-001.tar, validation-000.tar and set.model.
struct DataFolder {
  std::string path;
  support::ShardFiles files;
};
DataFolder MakeData(const support::ShardOptions& options = {});

// Damages the picture of sample `number` (images are numbered through the shards in order): its
// header stays, its pixels do not decode.
void DamagePicture(const DataFolder& data, int32_t number);

// Of every module.
inline constexpr int32_t kHidden = 32;

// parallel and architecture values as the job file has them.
struct JobOptions {
  std::string name = "tiny";
  int64_t steps = 6;
  std::string precision = "fp32";
  std::string vision = "ranks: 1";  // empty: language alone
  std::string audio;                // empty: none
  std::string language = "ranks: 1";
  std::string regressor;        // behind the language module; empty: none
  std::string language_offset;  // empty: behind the encoders
  std::string language_more;    // further fields of the module: "recompute: full"
  std::string vision_more;
  std::string schedule = "{name: 1f1b}";
  int32_t layers = 2, heads = 4, kv_heads = 2;
  int32_t batch = 8, micro = 2;
  int32_t corrupt_max = 16;
  double learning_rate = 1e-3, minimum_learning_rate = 0;
  bool validation = false;
  bool trace = false;
  bool profile = false;
  std::string recovery;  // "{state_home: host}"; empty: the defaults
  // Communicators for losses are made beforehand, where the job is small enough: no test but those
  // of losses waits for them, and they take time.
  bool standby = false;
  int32_t spares = 0;
  std::string checkpoint;  // "{every: 3}"; empty: none
  std::string time_limit;  // empty: none
  int32_t priority = 0;
  bool preemptible = false;
  std::string output = "out";
};
// As JobOptions::recovery: of a job that ends where a rank is lost.
inline constexpr char kNoRecovery[] = "{ladder: []}";
// Steps that no test waits for the end of.
inline constexpr int64_t kForEver = 1'000'000;

std::string JobText(const DataFolder& data, const JobOptions& options);
v1::JobDocument Document(const DataFolder& data, const JobOptions& options);

// Lines of metrics.jsonl.
struct Metric {
  int64_t step = 0;
  double loss = 0, gradient_norm = 0, learning_rate = 0, seconds = 0;
  int64_t tokens = 0, images = 0, corrupt_samples = 0;
  bool skipped = false;
  int64_t epoch = 0;
};
std::vector<Metric> ReadMetrics(const std::string& output);
// Of a job whose output lies below its data.
std::vector<Metric> MetricsOf(const DataFolder& data, const std::string& output);
// "" if the steps are 1 .. `steps`, each once, in order; else what is wrong.
std::string StepsFault(const std::vector<Metric>& metrics, int64_t steps);

}  // namespace phalanx::e2e
