#include "tests/oracle/property/random_job.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "absl/strings/str_cat.h"
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
    const bool vision = Chance(70), audio = Chance(30), regressor = Chance(25);
    encoders_share_ = vision && audio && Chance(50);
    colocated_ = (vision || audio) && Chance(45);
    if (vision) AddEncoder("vision", support::ClipVision({.hidden_size = 16, .layers = 2, .heads = 2, .mlp_size = 24,
                                                          .block = 4, .image_size = 4, .patch_size = 2}));
    if (audio) AddEncoder("audio", support::Whisper({.hidden_size = 16, .layers = 2, .heads = 2, .mlp_size = 24,
                                                     .block = 4, .mel_bins = 4, .frames = 8}));
    AddLanguage();
    if (regressor) AddRegressor();
    if (vision) AddEdge("vision", "language");
    if (audio) AddEdge("audio", "language");
    if (regressor) AddEdge("language", "regressor");
    if (regressor && vision && Chance(30)) AddEdge("vision", "regressor");
    DrawBatch();
    DrawSchedule();
    job::JobSpec& spec = job_.Compute(job::Precision::kFp64).Seed(prng_.Next()).spec();
    spec.optimizer.clip_norm = Chance(50) ? 0.5 : 0;
    spec.optimizer.weight_decay = 0.1;
    return job_.Build();
  }

 private:
  bool Chance(uint64_t percent) { return prng_.Below(100) < percent; }
  int32_t One(std::initializer_list<int32_t> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(prng_.Below(values.size())));
  }

  // Factors of `ranks` in tp, dp, pp, any order of axes.
  Layout DrawLayout(int32_t ranks, int32_t pp_max) {
    Layout layout;
    for (int32_t left = ranks; left > 1;) {
      const int32_t factor = left % 2 == 0 ? 2 : left % 3 == 0 ? 3 : left;
      int32_t& axis = *std::vector<int32_t*>{&layout.tp, &layout.dp, &layout.pp}[prng_.Below(3)];
      axis *= factor;
      left /= factor;
    }
    if (layout.pp > pp_max) std::swap(layout.pp, layout.dp);
    for (size_t i = 3; i > 0; --i) std::swap(layout.order[i], layout.order[prng_.Below(i + 1)]);
    layout.frozen = Chance(15);
    layout.recompute = static_cast<job::Recompute>(One({0, 0, 1, 2}));
    return layout;
  }

  void AddEncoder(const std::string& name, const job::Architecture& architecture) {
    const bool shares = encoders_share_ && encoder_ranks_ > 0;
    if (!shares) encoder_ranks_ = colocated_ ? One({1, 2, 3, 4}) : One({1, 1, 2, 2, 3, 4});
    Layout layout = DrawLayout(encoder_ranks_, 2);
    if (shares) layout.offset = encoder_offset_;
    if (!shares && Chance(10)) layout.offset = next_ + 1;  // a device that no module uses
    Add(name, architecture, layout);
    encoder_offset_ = job_.spec().modules.back().offset;
  }

  void AddLanguage() {
    const support::LlamaShape shape{.hidden_size = 16, .layers = 4, .heads = 4, .kv_heads = One({1, 2, 4}),
                                    .mlp_size = One({16, 22}), .block = 4, .vocabulary = One({24, 29}),
                                    .context = 64, .tied_head = Chance(30)};
    Layout layout = DrawLayout(colocated_ ? encoder_ranks_ : One({1, 2, 3, 4, 4}), 4);
    if (colocated_) layout.offset = encoder_offset_;
    Add("language", support::Llama(shape), layout);
  }

  void AddRegressor() {
    Add("regressor",
        support::Regressor({.hidden_size = 16, .layers = 2, .heads = 2, .kv_heads = 2, .mlp_size = 16, .block = 4,
                            .context = 64}),
        DrawLayout(One({1, 1, 2}), 2));
    job_.spec().modules.back().loss_weight = 0.5;
  }

  void Add(const std::string& name, const job::Architecture& architecture, const Layout& layout) {
    job_.Module(name, architecture, layout);
    const job::Module& module = job_.spec().modules.back();
    next_ = std::max(next_, module.offset + module.parallel.ranks);
  }

  void AddEdge(const std::string& from, const std::string& to) {
    job_.Edge(from, to, {.projector = Chance(70) ? 20 : 0, .frozen = Chance(20)});
  }

  void DrawBatch() {
    const job::JobSpec spec = job_.Build();
    const int32_t lanes = spec.modules[static_cast<size_t>(spec.language)].parallel.dp;
    job_.Batch(std::max<int64_t>(lanes, One({1, 3, 4, 6, 9})), One({1, 1, 2, 3}));
  }

  void DrawSchedule() {
    using job::ScheduleName;
    const auto name = static_cast<ScheduleName>(prng_.Below(6));
    job_.Schedule(name, name == ScheduleName::kInterleaved ? 2 : 1);
    if (name == ScheduleName::kThreePhase) job_.spec().schedule.encoder_chunks = One({1, 1, 2, 3});
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
    absl::StrAppend(&text, module.name, "@", module.offset, " tp", p.tp, " dp", p.dp, " pp", p.pp, " order ");
    for (job::MeshAxis axis : p.order) absl::StrAppend(&text, static_cast<int>(axis));
    absl::StrAppend(&text, module.frozen ? " frozen" : "", " recompute ", static_cast<int>(module.recompute), "; ");
  }
  for (const job::Edge& edge : spec.edges) {
    absl::StrAppend(&text, edge.from, "->", edge.to,
                    edge.projector ? (edge.projector->frozen ? " (frozen projector)" : " (projector)") : "", "; ");
  }
  absl::StrAppend(&text, job::ScheduleNames()[static_cast<size_t>(spec.schedule.name)], " chunks ",
                  spec.schedule.chunks, " encoder_chunks ", spec.schedule.encoder_chunks, "; global ",
                  spec.batch.global, " micro ", spec.batch.micro);
  return text;
}

bool SomethingTrains(const plan::Plan& plan) {
  return std::any_of(plan.modules.begin(), plan.modules.end(), [](const plan::ModulePlan& module) {
    return std::any_of(module.trains.begin(), module.trains.end(), [](const plan::Trains& t) { return t.weights; });
  });
}

}  // namespace

RandomJob DrawJob(uint64_t seed) {
  for (uint64_t attempt = 0;; ++attempt) {
    RandomJob random;
    random.spec = Drawing(Hash64(seed, 11, attempt)).Draw();
    if (random.spec.World() > kRandomWorldMax) continue;
    const auto plan = plan::MakePlan(random.spec, plan::MakeCluster(1, random.spec.World()), Epoch{1});
    if (!plan.ok() || !SomethingTrains(*plan)) continue;
    random.data = DataShapeOf(random.spec);
    Prng prng(Hash64(seed, 12, attempt));
    random.data.samples = 12;
    random.data.images_max = static_cast<int32_t>(prng.Below(6));
    random.data.sounds_max = static_cast<int32_t>(prng.Below(3));
    random.data.text_max = 5;
    if (prng.Below(3) == 0) random.data.text_only_period = 4, random.data.text_only_end = 2;
    random.text = Describe(random.spec);
    return random;
  }
}

}  // namespace phalanx::oracle
