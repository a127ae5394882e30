// core/job/job_spec.h: what the user asked for, complete and valid.
//
// A JobSpec comes only out of core/job/job_reader.h, which fills every default and reports every
// violation; so code that holds one need not check it again. Field names are those of the job file
// (docs/job-reference.md), optional means "the user left it to us".
//
// Pure. Plain values; safe to copy and to read from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "core/job/family.h"

namespace phalanx::job {

enum class Precision : uint8_t { kBf16, kFp32, kFp64 };
enum class LinearFormat : uint8_t { kCompute, kFp8 };
enum class Recompute : uint8_t { kNone, kSelective, kFull };
enum class MeshAxis : uint8_t { kTensor, kContext, kData, kPipeline };  // tp, cp, dp, pp
enum class ScheduleName : uint8_t {
  kAuto,
  k1F1B,
  kInterleaved,
  kZeroBubbleH1,
  kZeroBubbleV,
  kThreePhase
};
enum class DeviceKind : uint8_t { kCpu, kGpu };
enum class Rung : uint8_t { kSpare, kShrink, kDropReplica, kRestart, kWait };
enum class Widths : uint8_t { kOwn, kParity };
enum class StateHome : uint8_t { kAuto, kMirror, kHost };
enum class Rejoin : uint8_t { kAuto, kManual };
enum class Standby : uint8_t { kAuto, kNone };
enum class SlowDevices : uint8_t { kName, kFewerSamples };

// The shape of one module. Which fields count depends on the family; the others are 0.
struct Architecture {
  Family family = kNoFamily;
  int64_t hidden_size = 0;
  int32_t layers = 0;  // also without a family, where given
  int32_t heads = 0;
  int32_t kv_heads = 0;   // with grouped queries: divides heads; default heads
  int64_t head_size = 0;  // hidden_size / heads unless written
  int64_t mlp_size = 0;
  int64_t block = 128;          // columns of an MLP unit, rows of a vocabulary unit
  int64_t vocabulary = 0;       // with a vocabulary
  int64_t context = 0;          // decoders: positions of a sequence at most
  bool tied_head = false;       // with a vocabulary
  double rope_theta = 10000.0;  // with rotary positions
  double norm_epsilon = 1e-5;
  int64_t image_size = 0;  // images: pixels of a side, a multiple of patch_size
  int64_t patch_size = 0;
  int64_t mel_bins = 0;  // sounds
  int64_t frames = 0;
};

struct Parallel {
  int32_t ranks = 1;
  int32_t tp = 1, cp = 1, pp = 1, ep = 1, expt_tp = 1;
  int32_t dp = 1;       // derived: ranks / (tp * cp * pp)
  int32_t expt_dp = 1;  // derived: ranks / (expt_tp * ep * pp)
  std::array<MeshAxis, 4> order = {MeshAxis::kTensor, MeshAxis::kContext, MeshAxis::kData,
                                   MeshAxis::kPipeline};  // fastest first
  std::vector<int32_t> layers;                            // of each stage; empty: by cost
  bool sequence = false;  // sequence parallelism: rows between products cut over the tensor ranks
  // `auto` is written instead: the planner's choice, and nothing of the above counts. No plan is
  // made of such a job; who plans it has chosen before (core/wire/resolved_job.h).
  bool automatic = false;
};

struct Module {
  std::string name;
  Architecture architecture;
  Parallel parallel;
  int32_t offset = 0;  // first rank, resolved from the user's number, module name or default
  bool frozen = false;
  Recompute recompute = Recompute::kNone;
  std::optional<std::string> weights;
  double loss_weight = 1.0;  // of a loss on target rows
};

struct Projector {
  // Two linear layers with a GELU between, on the last stage of the edge's source:
  // source hidden -> hidden_size -> hidden of the destination.
  int64_t hidden_size = 0;
  bool frozen = false;
};

struct Edge {
  int32_t from = 0, to = 0;  // indices into modules
  std::optional<Projector> projector;
};

struct Batch {
  int64_t global = 1;  // samples a step
  int64_t micro = 1;   // samples of a microbatch on one replica of the language module, at most
  double labelled_share = 1;  // of language positions, those held to labels: what plans count with
  int32_t items = 1;          // images or sounds of a sample: what searches count with
};

struct Schedule {
  ScheduleName name = ScheduleName::kAuto;
  int32_t chunks = 1;
  int32_t encoder_chunks = 1;
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

struct Data {
  std::vector<std::string>
      shards;  // expanded from the brace pattern, as written (relative to the job file)
  std::vector<std::string> validation;
  std::string tokenizer;
  int32_t items_max = 8;
  int32_t corrupt_max = 16;
};

struct Optimizer {
  double learning_rate = 1e-3, minimum_learning_rate = 0;
  int64_t warmup_steps = 0;
  enum class Decay : uint8_t { kCosine, kConstant, kLinear } decay = Decay::kCosine;
  double weight_decay = 0.01;
  std::array<double, 2> betas = {0.9, 0.95};
  double epsilon = 1e-8;
  double clip_norm = 1.0;  // 0: no clipping
};

// Checkpoint::resume_from that names no checkpoint.
inline constexpr absl::string_view kResumeFromLatest = "latest";

struct Checkpoint {
  std::string directory;
  int64_t every = 0;  // 0: one at the end alone
  int32_t keep = 2;
  std::optional<std::string> resume_from;
};

struct Budget {
  int32_t total = 20, without_progress = 3;
  absl::Duration window = absl::Hours(1);
};

// Every rung, cheapest first.
std::vector<Rung> AllRungs();

struct Recovery {
  std::vector<Rung> ladder = AllRungs();
  Widths widths = Widths::kOwn;
  StateHome state_home = StateHome::kAuto;
  int32_t state_copies = 2;
  int64_t state_every = 1;
  Rejoin rejoin = Rejoin::kAuto;
  Standby standby = Standby::kAuto;
  SlowDevices slow_devices = SlowDevices::kName;
  absl::Duration hold = absl::Minutes(10);
  Budget budget;
};

struct Resources {
  DeviceKind device = DeviceKind::kCpu;
  int32_t devices = 0;  // default: what the modules span
  int32_t spares = 0;
  std::map<std::string, std::string> node_selector;
};

struct JobSpec {
  std::string name;
  std::map<std::string, std::string> labels;
  uint64_t seed = 0;
  int64_t steps = 1;
  int32_t priority = 0;
  bool preemptible = false;
  std::optional<absl::Duration> time_limit;
  Precision compute = Precision::kFp32;
  LinearFormat linear = LinearFormat::kCompute;
  bool deterministic = false;  // attention's gradients of equal operands are the same bits
  int32_t language = 0;        // index into modules
  std::vector<Module> modules;
  std::vector<Edge> edges;
  Batch batch;
  Schedule schedule;
  std::optional<Data> data;  // absent only for `phalanx plan`
  Optimizer optimizer;
  std::optional<Checkpoint> checkpoint;
  Recovery recovery;
  Resources resources;
  std::map<std::string, std::string> env;      // variables of the ranks
  std::map<std::string, std::string> secrets;  // of each variable the file of the node that has it
  std::string output;
  bool trace = false;
  bool profile = false;

  // One past the highest rank that a module uses.
  int32_t World() const;
  // Whether there are checkpoints before that of the last step.
  bool WritesCheckpointsOnTheWay() const;
  // Whether the layout of any module is the planner's choice.
  bool HasOpenLayout() const;
  // Positions that one item takes in a sequence: the rows of every encoder that reads items like
  // `module` does. 0 for a decoder and where a shape is not known.
  int64_t PositionsOfItem(int32_t module) const;
};

}  // namespace phalanx::job
