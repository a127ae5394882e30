// Speed of the data path: pictures and sounds decoded, samples taken, text split, shards indexed.
//
//   build/release/bench/bench_data --benchmark_min_time=1
//
// PHALANX_EMOJI names a folder that examples/make_emoji.py filled; without it, generated shards
// stand in for the emoji ones.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"
#include "tests/support/sounds.h"
#include "worker/data/data_set.h"
#include "worker/data/image.h"
#include "worker/data/log_mel.h"
#include "worker/data/sound.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodeJpeg;
using ::phalanx::support::EncodePng;
using ::phalanx::support::EncodeSound;
using ::phalanx::support::ImageEncoder;
using ::phalanx::support::MakeFolder;
using ::phalanx::support::Tone;
using ::phalanx::support::WriteShards;

DataSetSpec EmojiOrLike() {
  if (const char* folder = std::getenv("PHALANX_EMOJI"); folder != nullptr) {
    DataSetSpec spec{.tokenizer = absl::StrCat(folder, "/emoji.model"),
                     .encoders = {ImageEncoder(16, 64)},
                     .context = 64};
    for (int i = 0; i < 4; ++i) spec.shards.push_back(absl::StrCat(folder, "/emoji-00", i, ".tar"));
    return spec;
  }
  const auto files =
      WriteShards(MakeFolder("bench"), {.samples = 3500, .shards = 4, .image_side = 128});
  return {.shards = files.shards,
          .tokenizer = files.tokenizer,
          .encoders = {ImageEncoder(16, 64)},
          .context = 64};
}

void BM_BuildIndex(benchmark::State& state) {
  const DataSetSpec spec = EmojiOrLike();
  int64_t samples = 0;
  for (auto _ : state) samples += Index::Build(spec)->size();
  state.SetItemsProcessed(samples);
}
BENCHMARK(BM_BuildIndex)->Unit(benchmark::kMillisecond)->UseRealTime();

// Many tiny samples: headers and texts are what an index costs.
void BM_BuildLargeIndex(benchmark::State& state) {
  const auto files =
      WriteShards(MakeFolder("bench"), {.samples = static_cast<int32_t>(state.range(0)),
                                        .shards = 8,
                                        .images_max = 1,
                                        .image_side = 2});
  const DataSetSpec spec{.shards = files.shards,
                         .tokenizer = files.tokenizer,
                         .encoders = {ImageEncoder(16, 64)},
                         .context = 64};
  int64_t samples = 0;
  for (auto _ : state) samples += Index::Build(spec)->size();
  state.SetItemsProcessed(samples);
}
BENCHMARK(BM_BuildLargeIndex)
    ->Arg(200'000)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(1);

void BM_TakeSamples(benchmark::State& state) {
  const DataSetSpec spec = EmojiOrLike();
  const Index index = *Index::Build(spec);
  const auto loader = *Loader::Create(
      index, spec, {.threads = static_cast<int32_t>(state.range(0)), .modules = {0}});
  std::vector<int64_t> order(static_cast<size_t>(index.size()));
  std::iota(order.begin(), order.end(), 0);
  loader->Announce(order);
  size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(*loader->Take(order[next]));
    if (++next == order.size()) {
      loader->Announce(order);
      next = 0;
    }
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_TakeSamples)->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

void BM_DecodeJpeg336(benchmark::State& state) {
  const std::string bytes = EncodeJpeg({.width = 336, .height = 336}, {200, 20, 30});
  std::vector<float> pixels;
  for (auto _ : state) {
    ResizeAndNormalize(*DecodeImage(bytes, 336), 336, ImageEncoder(1).pixels, pixels);
    benchmark::DoNotOptimize(pixels.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_DecodeJpeg336);

void BM_DecodePng136(benchmark::State& state) {
  const std::string bytes =
      EncodePng({.width = 136, .height = 128, .channels = 4}, {200, 20, 30, 100});
  std::vector<float> pixels;
  for (auto _ : state) {
    ResizeAndNormalize(*DecodeImage(bytes, 64), 64, ImageEncoder(1).pixels, pixels);
    benchmark::DoNotOptimize(pixels.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_DecodePng136);

// Two seconds of sound as an audio encoder of 80 bins and 200 frames reads it.
void BM_DecodeSound2s(benchmark::State& state, support::SoundOptions options) {
  const std::string bytes =
      EncodeSound(options, Tone(440, int64_t{2} * options.rate, options.rate));
  const LogMel log_mel(80, 200);
  std::vector<float> features;
  for (auto _ : state) {
    log_mel.Compute(*DecodeSound(bytes, log_mel.samples()), features);
    benchmark::DoNotOptimize(features.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(BM_DecodeSound2s, Wav16k, support::SoundOptions{});
BENCHMARK_CAPTURE(BM_DecodeSound2s, Flac16k,
                  support::SoundOptions{.format = support::SoundFormat::kFlac});
BENCHMARK_CAPTURE(BM_DecodeSound2s, Flac44k,
                  support::SoundOptions{.format = support::SoundFormat::kFlac, .rate = 44100});

void BM_Tokenize(benchmark::State& state) {
  const DataSetSpec spec = EmojiOrLike();
  const auto tokenizer = *Tokenizer::Load(spec.tokenizer);
  const std::string text = "couple with heart: person, person, light skin tone, medium skin tone";
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Encode(text));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK(BM_Tokenize);

}  // namespace
}  // namespace phalanx::data
