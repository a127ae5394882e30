#include "tests/oracle/property/random_job.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/prng.h"
#include "core/job/schema.h"
#include "core/plan/plan.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::Layout;

class Drawing {
 public:
  explicit Drawing(uint64_t seed) : prng_(seed) {}

  job::JobSpec Draw() {
    const bool vision = Chance(70), audio = Chance(30), regressor = Chance(30);
    encoders_share_ = vision && audio && Chance(50);
    colocated_ = (vision || audio) && Chance(50);
    const bool language_first = !colocated_ && Chance(20);
    if (language_first) AddLanguage();
    if (vision)
      AddEncoder("vision", support::ClipVision({.hidden_size = One({8, 16, 16}),
                                                .layers = One({2, 2, 3}),
                                                .heads = One({2, 4}),
                                                .mlp_size = 24,
                                                .block = 4,
                                                .image_size = 4,
                                                .patch_size = 2}));
    if (audio)
      AddEncoder("audio", support::Whisper({.hidden_size = One({8, 16, 16}),
                                            .layers = One({2, 2, 3}),
                                            .heads = One({2, 4}),
                                            .mlp_size = 24,
                                            .block = 4,
                                            .mel_bins = 4,
                                            .frames = 8}));
    if (!language_first) AddLanguage();
    if (regressor) AddRegressor("regressor");
    const bool refiner = regressor && Chance(15);
    if (refiner) AddRegressor("refiner");
    if (vision) AddEdge("vision", "language");
    if (audio) AddEdge("audio", "language");
    if (regressor) AddEdge("language", "regressor");
    if (regressor && vision && Chance(30)) AddEdge("vision", "regressor");
    if (regressor && audio && Chance(20)) AddEdge("audio", "regressor");
    if (refiner) AddEdge(Chance(50) ? "language" : "regressor", "refiner");
    DrawBatch();
    DrawSchedule();
    job::JobSpec& spec = job_.Compute(job::Precision::kFp64).Seed(prng_.Next()).spec();
    spec.optimizer.clip_norm = Chance(50) ? 0.1 : 0;
    spec.optimizer.weight_decay = 0.1;
    return job_.Build();
  }

 private:
  bool Chance(uint64_t percent) { return prng_.Below(100) < percent; }
  int32_t One(std::initializer_list<int32_t> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(prng_.Below(values.size())));
  }

  // Factors of `ranks` in tp, dp, pp, any order of axes; at times the draw says how many layers a
  // stage has. `deep`: stages are as likely as the other axes together.
  Layout DrawLayout(int32_t ranks, int32_t layers, bool deep = false) {
    Layout layout;
    for (int32_t left = ranks; left > 1;) {
      const int32_t factor = left % 2 == 0 ? 2 : left % 3 == 0 ? 3 : left;
      int32_t& axis = *std::vector<int32_t*>{&layout.tp, &layout.dp, &layout.pp,
                                             &layout.pp}[prng_.Below(deep ? 4 : 3)];
      axis *= factor;
      left /= factor;
    }
    if (layout.pp > layers) std::swap(layout.pp, layout.dp);
    for (size_t i = 3; i > 0; --i) std::swap(layout.order[i], layout.order[prng_.Below(i + 1)]);
    if (layout.pp > 1 && layout.pp <= layers && Chance(25)) {
      layout.layers.assign(static_cast<size_t>(layout.pp), 1);
      for (int32_t left = layers - layout.pp; left > 0; --left)
        ++layout.layers[prng_.Below(layout.layers.size())];
    }
    layout.frozen = Chance(15);
    layout.recompute = static_cast<job::Recompute>(One({0, 0, 1, 2}));
    layout.sequence = Chance(50);
    return layout;
  }

  void AddEncoder(const std::string& name, const job::Architecture& architecture) {
    const bool shares = encoders_share_ && encoder_ranks_ > 0;
    if (!shares) encoder_ranks_ = colocated_ ? One({1, 2, 3, 4, 4, 6}) : One({1, 1, 2, 2, 3, 4});
    Layout layout = DrawLayout(encoder_ranks_, architecture.layers);
    layout.offset = shares ? encoder_offset_ : OffsetBehind();
    Add(name, architecture, layout);
    encoder_offset_ = job_.spec().modules.back().offset;
  }

  void AddLanguage() {
    const support::LlamaShape shape{.hidden_size = 16,
                                    .layers = One({4, 4, 5, 8}),
                                    .heads = 4,
                                    .kv_heads = One({1, 2, 4}),
                                    .mlp_size = One({16, 22}),
                                    .block = 4,
                                    .vocabulary = One({24, 29}),
                                    .context = 64,
                                    .tied_head = Chance(30)};
    Layout layout =
        DrawLayout(colocated_ ? encoder_ranks_ : One({1, 2, 3, 4, 4}), shape.layers, true);
    layout.offset = colocated_ ? encoder_offset_ : OffsetBehind();
    Add("language", support::Llama(shape), layout);
  }

  // On ranks of its own, or on those of the module before.
  void AddRegressor(const std::string& name) {
    const job::Architecture architecture = support::Regressor({.hidden_size = 16,
                                                               .layers = One({2, 3}),
                                                               .heads = 2,
                                                               .kv_heads = One({1, 2}),
                                                               .mlp_size = 16,
                                                               .block = 4,
                                                               .context = 64});
    const job::Module before = job_.spec().modules.back();
    const bool shares = Chance(25);
    Layout layout =
        DrawLayout(shares ? before.parallel.ranks : One({1, 2, 2, 3, 4}), architecture.layers);
    layout.offset = shares ? before.offset : OffsetBehind();
    Add(name, architecture, layout);
    job_.spec().modules.back().loss_weight = 0.5;
  }

  // Behind all modules, at times with a device between that no module uses.
  int32_t OffsetBehind() { return next_ + (Chance(10) ? 1 : 0); }

  void Add(const std::string& name, const job::Architecture& architecture, const Layout& layout) {
    job_.Module(name, architecture, layout);
    const job::Module& module = job_.spec().modules.back();
    next_ = std::max(next_, module.offset + module.parallel.ranks);
  }

  void AddEdge(const std::string& from, const std::string& to) {
    const bool needed = HiddenOf(from) != HiddenOf(to);
    job_.Edge(from, to, {.projector = needed || Chance(60) ? 20 : 0, .frozen = Chance(20)});
  }
  int64_t HiddenOf(const std::string& name) {
    for (const job::Module& module : job_.spec().modules) {
      if (module.name == name) return module.architecture.hidden_size;
    }
    return 0;
  }

  // At times fewer samples than replicas of the language module.
  void DrawBatch() { job_.Batch(One({1, 3, 4, 6, 9}), One({1, 1, 2, 3})); }

  void DrawSchedule() {
    using job::ScheduleName;
    const auto name = colocated_ && Chance(40) ? ScheduleName::kThreePhase
                                               : static_cast<ScheduleName>(prng_.Below(6));
    const bool phases = name == ScheduleName::kThreePhase;
    job_.Schedule(name, name == ScheduleName::kInterleaved ? One({2, 2, 3})
                        : phases                           ? One({1, 1, 2})
                                                           : 1);
    if (phases) job_.spec().schedule.encoder_chunks = One({1, 1, 2, 3});
  }

  Prng prng_;
  AJob job_;
  bool encoders_share_ = false, colocated_ = false;
  int32_t encoder_ranks_ = 0, encoder_offset_ = 0, next_ = 0;
};

std::string Describe(const job::JobSpec& spec) {
  std::string text;
  for (const job::Module& module : spec.modules) {
    const job::Parallel& p = module.parallel;
    absl::StrAppend(&text, module.name, "@", module.offset, " tp", p.tp, " dp", p.dp, " pp", p.pp,
                    " order ");
    for (job::MeshAxis axis : p.order) absl::StrAppend(&text, static_cast<int>(axis));
    absl::StrAppend(&text, " layers ", absl::StrJoin(p.layers, "+"), " of ",
                    module.architecture.layers, module.architecture.tied_head ? " tied" : "",
                    module.frozen ? " frozen" : "", p.sequence ? " sequence" : "", " recompute ",
                    static_cast<int>(module.recompute), "; ");
  }
  for (const job::Edge& edge : spec.edges) {
    absl::StrAppend(
        &text, edge.from, "->", edge.to,
        edge.projector ? (edge.projector->frozen ? " (frozen projector)" : " (projector)") : "",
        "; ");
  }
  absl::StrAppend(&text, job::ScheduleNames()[static_cast<size_t>(spec.schedule.name)], " chunks ",
                  spec.schedule.chunks, " encoder_chunks ", spec.schedule.encoder_chunks,
                  "; global ", spec.batch.global, " micro ", spec.batch.micro);
  return text;
}

bool SomethingTrains(const plan::Plan& plan) {
  return std::any_of(plan.modules.begin(), plan.modules.end(),
                     [](const plan::ModulePlan& module) { return module.TrainsWeights(); });
}

}  // namespace

RandomJob DrawJob(uint64_t seed) {
  for (uint64_t attempt = 0;; ++attempt) {
    RandomJob random;
    random.spec = Drawing(Hash64(seed, 11, attempt)).Draw();
    if (random.spec.World() > kRandomWorldMax) continue;
    const auto plan =
        plan::MakePlan(random.spec, plan::MakeCluster(1, random.spec.World()), Epoch{1});
    if (!plan.ok() || !SomethingTrains(*plan)) continue;
    random.data = DataShapeOf(random.spec);
    Prng prng(Hash64(seed, 12, attempt));
    random.data.samples = 12;
    random.data.images_max = static_cast<int32_t>(prng.Below(6));
    random.data.sounds_max = static_cast<int32_t>(prng.Below(3));
    random.data.target_rows_max = static_cast<int32_t>(prng.Below(4));
    random.data.text_min = 2 + static_cast<int32_t>(prng.Below(2));
    random.data.text_max = 5;
    if (prng.Below(6) == 0) random.data.corrupt_sample = static_cast<int64_t>(prng.Below(12));
    if (prng.Below(3) == 0) random.data.text_only_period = 4, random.data.text_only_end = 2;
    random.text = Describe(random.spec);
    return random;
  }
}

}  // namespace phalanx::oracle
