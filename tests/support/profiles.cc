#include "tests/support/profiles.h"

#include <utility>

#include "tests/support/specs.h"

namespace phalanx::support {
namespace {

using schedule::AttentionTimes;
using schedule::DeviceProfile;
using schedule::PowerRates;
using schedule::ProductTimes;
using schedule::WorkRates;

WorkRates Scaled(WorkRates rates, double factor) {
  for (auto* products : {&rates.products, &rates.fp8->products}) {
    for (ProductTimes& entry : *products) {
      entry.forward *= factor;
      entry.input_gradient *= factor;
      entry.weight_gradient *= factor;
      entry.weight_gradient_written *= factor;  // 0, as rates below: not measured
    }
  }
  for (AttentionTimes& entry : rates.attention) {
    entry.forward *= factor;
    entry.backward *= factor;
  }
  rates.fp8->cast_bytes_per_second /= factor;
  rates.memory_bytes_per_second /= factor;
  rates.update_bytes_per_second /= factor;
  rates.loss_bytes_per_second /= factor;
  rates.embedding_bytes_per_second /= factor;
  rates.launch *= factor;
  return rates;
}

}  // namespace

DeviceProfile Powered(DeviceProfile profile, double watts, double clock_mhz) {
  profile.measured.clock_mhz = clock_mhz;
  profile.measured.power_limit_watts = 500;
  const double dynamic = watts - 100;
  profile.power = PowerRates{.idle_watts = 100,
                             .joules = Scaled(profile, watts),
                             .slow_clock_mhz = clock_mhz / 2,
                             .slow = Scaled(profile, 2),
                             .slow_joules = Scaled(profile, 2 * 100 + dynamic / 4)};
  return profile;
}

job::JobSpec SearchedJob(int encoders, bool large) {
  AJob job;
  job.Module("vision", LargeClipVision());
  if (encoders == 2) {
    job.Module("audio", Whisper({.hidden_size = 1280,
                                 .layers = 32,
                                 .heads = 20,
                                 .mlp_size = 5120,
                                 .block = 128,
                                 .mel_bins = 128,
                                 .frames = 3000}));
  }
  job.Module("language", Llama({.hidden_size = large ? 8192 : 4096,
                                .layers = large ? 80 : 32,
                                .heads = large ? 64 : 32,
                                .kv_heads = 8,
                                .mlp_size = large ? 28672 : 14336,
                                .block = 128,
                                .vocabulary = 128256,
                                .context = 8192}));
  for (int i = 0; i < encoders; ++i) {
    const auto m = static_cast<size_t>(i);
    job.Edge(job.spec().modules[m].name, "language", {.projector = 4096});
  }
  job.Batch(1024, 1).Compute(job::Precision::kBf16);
  job.spec().resources.device = job::DeviceKind::kGpu;
  return job;
}

}  // namespace phalanx::support
