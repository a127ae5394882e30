#include "core/job/schema.h"

#include <array>
#include <cstddef>

#include "absl/base/macros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/job/scalar.h"

namespace phalanx::job {
namespace {

using absl::string_view;
using T = FieldType;

constexpr auto kFamilyNames = [] {
  std::array<string_view, kFamilyCount - 1> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kFamilies[i + 1].name;
  return names;
}();
constexpr string_view kAxisNames[] = {"tp", "cp", "dp", "pp"};
constexpr string_view kPrecisionNames[] = {"bf16", "fp32", "fp64"};
constexpr string_view kLinearNames[] = {"compute", "fp8"};
constexpr string_view kRecomputeNames[] = {"none", "selective", "full"};
constexpr string_view kScheduleNames[] = {"auto",           "1f1b",          "interleaved",
                                          "zero_bubble_h1", "zero_bubble_v", "three_phase"};
constexpr string_view kDecayNames[] = {"cosine", "constant", "linear"};
constexpr string_view kDeviceNames[] = {"cpu", "gpu"};
constexpr string_view kRungNames[] = {"spare", "shrink", "drop-replica", "restart", "wait"};
constexpr string_view kWidthsNames[] = {"own", "parity"};
constexpr string_view kStateHomeNames[] = {"auto", "mirror", "host"};
constexpr string_view kRejoinNames[] = {"auto", "manual"};
constexpr string_view kStandbyNames[] = {"auto", "none"};
constexpr string_view kSlowDevicesNames[] = {"name", "fewer-samples"};
constexpr string_view kApiVersions[] = {"phalanx/v1"};
constexpr string_view kDocumentKinds[] = {"TrainingJob"};
constexpr string_view kProjectorNames[] = {"mlp"};
constexpr string_view kFormatNames[] = {"webdataset"};
constexpr string_view kOptimizerNames[] = {"adamw"};

using Traits = FamilyTraits;
constexpr FamilySet kBare = SetOf(kNoFamily);
constexpr FamilySet kEvery = FamiliesWhere([](const Traits& t) { return t.known(); });
constexpr FamilySet kDecoders = FamiliesWhere([](const Traits& t) { return t.decoder(); });
constexpr FamilySet kVocabularies = FamiliesWhere([](const Traits& t) { return t.vocabulary(); });
constexpr FamilySet kGrouped = FamiliesWhere([](const Traits& t) { return t.grouped_queries; });
constexpr FamilySet kRotary =
    FamiliesWhere([](const Traits& t) { return t.known() && t.positions == Positions::kRotary; });
constexpr FamilySet kOfImages = FamiliesWhere([](const Traits& t) { return t.images(); });
constexpr FamilySet kOfSounds = FamiliesWhere([](const Traits& t) { return t.sounds(); });
constexpr FamilySet kPredictors = FamiliesWhere([](const Traits& t) { return t.predicts(); });

constexpr double kWidthMax = 1 << 20;  // hidden sizes and the like
constexpr double kStepsMax = 1e12;
constexpr double kLayersMax = 4096;

// One field after the other, each as compact as it reads: a page a section.
// clang-format off
constexpr Field kArchitecture[] = {
    {.name = "family", .type = T::kChoice, .at = Bound<&Architecture::family>,
     .absence = Absence::kRequiredToRun,
     .otherwise = "none (planning only: no cost, memory or unit figures)", .choices = kFamilyNames,
     .first_choice = 1,
     .doc = "What the module is: see Families."},
    {.name = "hidden_size", .type = T::kSize, .at = Bound<&Architecture::hidden_size>, .low = 1,
     .high = kWidthMax, .families = kEvery, .required_of = kEvery,
     .doc = "Width of the residual stream; even in whisper."},
    {.name = "layers", .type = T::kInteger, .at = Bound<&Architecture::layers>, .low = 1,
     .high = kLayersMax, .families = kEvery | kBare, .required_of = kEvery,
     .doc = "Transformer layers."},
    {.name = "heads", .type = T::kInteger, .at = Bound<&Architecture::heads>, .low = 1,
     .high = 65536, .families = kEvery, .required_of = kEvery,
     .doc = "Query heads; the units of attention."},
    {.name = "kv_heads", .type = T::kInteger, .at = Bound<&Architecture::kv_heads>,
     .otherwise = "`heads`", .low = 1, .high = 65536, .families = kGrouped,
     .doc = "Key and value heads, each shared by `heads` / `kv_heads` query heads; divides "
            "`heads`."},
    {.name = "head_size", .type = T::kSize, .at = Bound<&Architecture::head_size>,
     .otherwise = "`hidden_size` / `heads`", .low = 1, .high = kHeadSizeMax, .families = kEvery,
     .doc = "Width of one head; even in decoders."},
    {.name = "mlp_size", .type = T::kSize, .at = Bound<&Architecture::mlp_size>, .low = 1,
     .high = kWidthMax * 16, .families = kEvery, .required_of = kEvery,
     .doc = "Width inside the MLP."},
    {.name = "block", .type = T::kSize, .at = Bound<&Architecture::block>, .low = 1,
     .high = kWidthMax, .families = kEvery,
     .doc = "Columns of an MLP unit and rows of a vocabulary unit: the grain of tensor "
            "parallelism."},
    {.name = "vocabulary", .type = T::kSize, .at = Bound<&Architecture::vocabulary>, .low = 2,
     .high = 1 << 24, .families = kVocabularies, .required_of = kVocabularies,
     .doc = "Tokens; the tokenizer's size may not exceed it."},
    {.name = "context", .type = T::kSize, .at = Bound<&Architecture::context>, .low = 2,
     .high = 1 << 24, .families = kDecoders, .required_of = kDecoders,
     .doc = "Positions of a sequence at most, items included."},
    {.name = "tied_head", .type = T::kBoolean, .at = Bound<&Architecture::tied_head>,
     .families = kVocabularies, .doc = "The output head is the embedding matrix."},
    {.name = "rope_theta", .type = T::kNumber, .at = Bound<&Architecture::rope_theta>, .low = 0,
     .high = 1e12, .above_low = true, .families = kRotary,
     .doc = "Base of the rotary position embedding."},
    {.name = "norm_epsilon", .type = T::kNumber, .at = Bound<&Architecture::norm_epsilon>, .low = 0,
     .high = 1, .above_low = true, .families = kEvery, .doc = "Added to the variance in norms."},
    {.name = "image_size", .type = T::kInteger, .at = Bound<&Architecture::image_size>, .low = 1,
     .high = 16384, .families = kOfImages, .required_of = kOfImages,
     .doc = "Pixels of a side; a multiple of `patch_size`."},
    {.name = "patch_size", .type = T::kInteger, .at = Bound<&Architecture::patch_size>, .low = 1,
     .high = 16384, .families = kOfImages, .required_of = kOfImages,
     .doc = "Pixels of a patch's side; a patch makes one row."},
    {.name = "mel_bins", .type = T::kInteger, .at = Bound<&Architecture::mel_bins>, .low = 1,
     .high = 1024, .families = kOfSounds, .required_of = kOfSounds,
     .doc = "Bins of the log-mel spectrogram."},
    {.name = "frames", .type = T::kInteger, .at = Bound<&Architecture::frames>, .low = 2,
     .high = 1 << 20, .families = kOfSounds, .required_of = kOfSounds,
     .doc = "Frames of an item; two make one row."},
};

constexpr Field kParallel[] = {
    {.name = "ranks", .type = T::kInteger, .at = Bound<&Parallel::ranks>, .low = 1,
     .high = kRanksMax,
     .doc = "Ranks of the module; dp = `ranks` / (tp * cp * pp) follows and may not be written."},
    {.name = "tp", .type = T::kInteger, .at = Bound<&Parallel::tp>, .low = 1, .high = kRanksMax,
     .doc = "Tensor parallelism: ranks that share each layer; at most the query heads, and the "
            "blocks of the MLP and of the vocabulary."},
    {.name = "cp", .type = T::kInteger, .at = Bound<&Parallel::cp>, .low = 1, .high = kRanksMax,
     .doc = "Context parallelism: ranks that share each sequence."},
    {.name = "pp", .type = T::kInteger, .at = Bound<&Parallel::pp>, .low = 1, .high = kLayersMax,
     .doc = "Pipeline parallelism: stages that the layers are cut into."},
    {.name = "ep", .type = T::kInteger, .at = Bound<&Parallel::ep>, .low = 1, .high = kRanksMax,
     .doc = "Expert parallelism, in the expert view of the same ranks."},
    {.name = "expt_tp", .type = T::kInteger, .at = Bound<&Parallel::expt_tp>, .low = 1,
     .high = kRanksMax, .doc = "Tensor parallelism of experts."},
    {.name = "order", .type = T::kChoices, .at = Bound<&Parallel::order>, .choices = kAxisNames,
     .doc = "The axes, fastest first: each of the four once."},
    {.name = "layers", .type = T::kIntegers, .at = Bound<&Parallel::layers>,
     .otherwise = "split by cost", .low = 1, .high = kLayersMax, .acted_on = false,
     .doc = "Layers of each stage, in order; they add up to the module's."},
    {.name = "sequence", .type = T::kBoolean, .at = Bound<&Parallel::sequence>,
     .otherwise = "true on gpu with `tp` above 1, else false",
     .doc = "Sequence parallelism: between the matrix products of its layers each tensor rank works "
            "on a part of the rows, not all on all."},
};

constexpr Field kModule[] = {
    {.name = "name", .type = T::kString, .at = Bound<&Module::name>, .absence = Absence::kRequired,
     .doc = "Unique; letters, digits, '-' and '_', starting with a letter."},
    {.name = "architecture", .type = T::kMapping, .at = Bound<&Module::architecture>,
     .absence = Absence::kRequiredToRun, .otherwise = "unknown (planning only)",
     .fields = kArchitecture, .doc = "The shape of the module."},
    {.name = "parallel", .type = T::kMapping, .at = Bound<&Module::parallel>, .fields = kParallel,
     .automatic = Bound<&Parallel::automatic>,
     .doc = "How the module is laid on its ranks. `auto`: as is fastest on `resources.devices`, which "
            "must be written; it is chosen once, when the job is submitted, and so is the `offset` of "
            "every module, which then may not be written."},
    {.name = "offset", .type = T::kOffset, .at = Bound<&Module::offset>,
     .otherwise = "right after the module before it", .low = 0, .high = kRanksMax,
     .doc = "First rank: a number, or the name of the module that starts there too."},
    {.name = "frozen", .type = T::kBoolean, .at = Bound<&Module::frozen>,
     .doc = "Its parameters stay as they are."},
    {.name = "recompute", .type = T::kChoice, .at = Bound<&Module::recompute>,
     .choices = kRecomputeNames,
     .doc = "Which activations are computed again instead of kept. `selective`: the outputs of norms "
            "and of activation functions, in bf16 about a third of a decoder's and in FP8 a fifth, "
            "for some 1 and 2 % of a step; `full`: all but the inputs of layers, for about a "
            "quarter of one."},
    {.name = "weights", .type = T::kString, .at = Bound<&Module::weights>,
     .otherwise = "none: initialised from the seed",
     .doc = "Folder with initial weights in the Hugging Face layout."},
    {.name = "loss_weight", .type = T::kNumber, .at = Bound<&Module::loss_weight>, .low = 0,
     .high = 1e6, .above_low = true, .families = kPredictors,
     .doc = "Factor of a regressor's loss."},
};

constexpr Field kProjector[] = {
    {.name = "type", .type = T::kChoice, .choices = kProjectorNames,
     .doc = "Two linear layers with a GELU between."},
    {.name = "hidden_size", .type = T::kSize, .at = Bound<&Projector::hidden_size>,
     .otherwise = "hidden size of `to`", .low = 1, .high = kWidthMax,
     .doc = "Width between the two layers."},
    {.name = "frozen", .type = T::kBoolean, .at = Bound<&Projector::frozen>,
     .doc = "Its parameters stay as they are."},
};

constexpr Field kEdge[] = {
    {.name = "from", .type = T::kModule, .at = Bound<&Edge::from>, .absence = Absence::kRequired,
     .doc = "Module whose output rows travel."},
    {.name = "to", .type = T::kModule, .at = Bound<&Edge::to>, .absence = Absence::kRequired,
     .doc = "Module that takes them in: a decoder."},
    {.name = "projector", .type = T::kMapping, .at = Bound<&Edge::projector>,
     .otherwise = "none; needed where the hidden sizes differ", .fields = kProjector,
     .doc = "Maps rows from one hidden size to the other; lives on the last stage of `from`."},
};

constexpr Field kBatch[] = {
    {.name = "global", .type = T::kInteger, .at = Bound<&Batch::global>,
     .absence = Absence::kRequired, .low = 1, .high = 1 << 24,
     .doc = "Samples of a step, over all replicas."},
    {.name = "micro", .type = T::kInteger, .at = Bound<&Batch::micro>, .low = 1, .high = 1 << 20,
     .doc = "Samples of a microbatch on one replica of the language module, at most."},
    {.name = "labelled_share", .type = T::kNumber, .at = Bound<&Batch::labelled_share>, .low = 0,
     .high = 1,
     .doc = "Of the language module's positions, the share that the loss counts, as plans take it "
            "to be: the others need no logits, and little of the last layer."},
    {.name = "items", .type = T::kInteger, .at = Bound<&Batch::items>, .low = 1, .high = 65536,
     .acted_on = false,
     .doc = "Images or sounds of a sample, for each encoder that reads their kind, as the search for a "
            "layout and predictions take it to be."},
};

constexpr Field kSchedule[] = {
    {.name = "name", .type = T::kChoice, .at = Bound<&Schedule::name>, .choices = kScheduleNames,
     .doc = "The order of work on each rank."},
    {.name = "chunks", .type = T::kInteger, .at = Bound<&Schedule::chunks>, .low = 1, .high = 64,
     .doc = "Model chunks of a rank (virtual stages), under schedules that have them."},
    {.name = "encoder_chunks", .type = T::kInteger, .at = Bound<&Schedule::encoder_chunks>,
     .low = 1, .high = 1024, .doc = "Pieces that encoder passes are cut into under three_phase."},
};

constexpr Field kData[] = {
    {.name = "format", .type = T::kChoice, .choices = kFormatNames,
     .doc = "Tar files of samples: KEY.txt with KEY.N.png and so on."},
    {.name = "shards", .type = T::kPatterns, .at = Bound<&Data::shards>,
     .absence = Absence::kRequired,
     .doc = "The training shards, in order; {000..003} and {a,b} expand."},
    {.name = "validation", .type = T::kPatterns, .at = Bound<&Data::validation>,
     .otherwise = "none: no evaluation", .doc = "Shards of the validation set."},
    {.name = "tokenizer", .type = T::kString, .at = Bound<&Data::tokenizer>,
     .absence = Absence::kRequired, .doc = "A sentencepiece model."},
    {.name = "items_max", .type = T::kInteger, .at = Bound<&Data::items_max>, .low = 0,
     .high = 65536, .doc = "Images and sounds of a sample at most."},
    {.name = "corrupt_max", .type = T::kInteger, .at = Bound<&Data::corrupt_max>, .low = 0,
     .high = 1 << 30, .doc = "Corrupt samples that are left out before the job fails."},
};

constexpr Field kOptimizer[] = {
    {.name = "name", .type = T::kChoice, .choices = kOptimizerNames,
     .doc = "AdamW with decoupled weight decay."},
    {.name = "learning_rate", .type = T::kNumber, .at = Bound<&Optimizer::learning_rate>, .low = 0,
     .high = 10, .above_low = true, .doc = "Reached after warm-up."},
    {.name = "minimum_learning_rate", .type = T::kNumber,
     .at = Bound<&Optimizer::minimum_learning_rate>, .low = 0, .high = 10,
     .doc = "Reached at the last step; at most `learning_rate`."},
    {.name = "warmup_steps", .type = T::kInteger, .at = Bound<&Optimizer::warmup_steps>, .low = 0,
     .high = kStepsMax, .doc = "Steps of linear rise; at most `steps`."},
    {.name = "decay", .type = T::kChoice, .at = Bound<&Optimizer::decay>, .choices = kDecayNames,
     .doc = "The way from `learning_rate` to `minimum_learning_rate`."},
    {.name = "weight_decay", .type = T::kNumber, .at = Bound<&Optimizer::weight_decay>, .low = 0,
     .high = 10, .doc = "Applied to matrices, not to vectors."},
    {.name = "betas", .type = T::kPair, .at = Bound<&Optimizer::betas>, .low = 0, .high = 1,
     .doc = "Decay rates of the first and of the second moment."},
    {.name = "epsilon", .type = T::kNumber, .at = Bound<&Optimizer::epsilon>, .low = 0, .high = 1,
     .above_low = true, .doc = "Added to the root of the second moment."},
    {.name = "clip_norm", .type = T::kNumber, .at = Bound<&Optimizer::clip_norm>, .low = 0,
     .high = 1e9, .doc = "Largest norm of the gradient of all modules together; 0: no clipping."},
};

constexpr Field kCheckpoint[] = {
    {.name = "directory", .type = T::kString, .at = Bound<&Checkpoint::directory>,
     .otherwise = "`checkpoints`",
     .doc = "Where checkpoints are kept."},
    {.name = "every", .type = T::kInteger, .at = Bound<&Checkpoint::every>, .low = 0,
     .high = kStepsMax, .doc = "Steps between checkpoints. The step that a job ends with has one; 0: that alone."},
    {.name = "keep", .type = T::kInteger, .at = Bound<&Checkpoint::keep>, .low = 1, .high = 1 << 20,
     .acted_on = false, .doc = "Of the job's own the newest so many are kept."},
    {.name = "resume_from", .type = T::kString, .at = Bound<&Checkpoint::resume_from>,
     .otherwise = "none", .doc = "`latest`, the newest sound one of `directory`, if there is one; or the path of a "
            "checkpoint. Training goes on behind its last step."},
};

constexpr Field kBudget[] = {
    {.name = "total", .type = T::kInteger, .at = Bound<&Budget::total>, .low = 0, .high = 1 << 30,
     .acted_on = false, .doc = "Recoveries of a job at most."},
    {.name = "without_progress", .type = T::kInteger, .at = Bound<&Budget::without_progress>,
     .low = 0, .high = 1 << 30, .acted_on = false,
     .doc = "Recoveries in a row without a step between."},
    {.name = "window", .type = T::kDuration, .at = Bound<&Budget::window>, .acted_on = false,
     .doc = "Time over which `total` counts."},
};

constexpr Field kRecovery[] = {
    {.name = "ladder", .type = T::kChoices, .at = Bound<&Recovery::ladder>, .choices = kRungNames,
     .acted_on = false, .doc = "What is tried, in order."},
    {.name = "widths", .type = T::kChoice, .at = Bound<&Recovery::widths>, .choices = kWidthsNames,
     .doc = "Each hit replica keeps what it has, or all hit replicas take the same width."},
    {.name = "state_home", .type = T::kChoice, .at = Bound<&Recovery::state_home>,
     .choices = kStateHomeNames, .doc = "Where the second copy of the optimizer state lives."},
    {.name = "state_copies", .type = T::kInteger, .at = Bound<&Recovery::state_copies>, .low = 1,
     .high = 16, .doc = "Homes of every piece of state."},
    {.name = "state_every", .type = T::kInteger, .at = Bound<&Recovery::state_every>, .low = 1,
     .high = 1 << 30, .doc = "Steps between copies of the state in host memory."},
    {.name = "rejoin", .type = T::kChoice, .at = Bound<&Recovery::rejoin>, .choices = kRejoinNames,
     .acted_on = false,
     .doc = "Whether devices that are back are taken again, at a step boundary, or stay left out."},
    {.name = "standby", .type = T::kChoice, .at = Bound<&Recovery::standby>,
     .choices = kStandbyNames, .acted_on = false,
     .doc = "Whether the communicators for the loss of any one device are made while the job trains, as "
            "far as memory allows (auto: of jobs of up to 8 devices), or after the loss."},
    {.name = "slow_devices", .type = T::kChoice, .at = Bound<&Recovery::slow_devices>,
     .choices = kSlowDevicesNames, .acted_on = false,
     .doc = "What becomes of a device that stays slow: it is named alone, or its replica is dealt fewer "
            "samples, too, at a step boundary, until it keeps up again."},
    {.name = "hold", .type = T::kDuration, .at = Bound<&Recovery::hold>, .acted_on = false,
     .doc = "How long what is left of a job that waits keeps its devices."},
    {.name = "budget", .type = T::kMapping, .at = Bound<&Recovery::budget>, .fields = kBudget,
     .acted_on = false, .doc = "How often a job may recover before it fails."},
};

constexpr Field kResources[] = {
    {.name = "device", .type = T::kChoice, .at = Bound<&Resources::device>, .choices = kDeviceNames,
     .doc = "What a rank runs on: a CPU slot or a GPU."},
    {.name = "devices", .type = T::kInteger, .at = Bound<&Resources::devices>,
     .otherwise = "what the modules span", .low = 1, .high = kRanksMax, .acted_on = false,
     .doc = "Devices that the job gets, all at once; at least what the modules span."},
    {.name = "spares", .type = T::kInteger, .at = Bound<&Resources::spares>, .low = 0,
     .high = kRanksMax, .acted_on = false, .doc = "Idle healthy devices kept beside, on top of `devices`."},
    {.name = "node_selector", .type = T::kStringMap, .at = Bound<&Resources::node_selector>,
     .acted_on = false, .doc = "Labels that a node must have."},
};

constexpr Field kPrecision[] = {
    {.name = "compute", .type = T::kChoice, .at = Bound<&JobSpec::compute>,
     .otherwise = "bf16 on gpu, fp32 on cpu", .choices = kPrecisionNames,
     .doc = "Type of parameters and activations; sums and masters are at least fp32. fp64 needs "
            "cpu."},
    {.name = "linear", .type = T::kChoice, .at = Bound<&JobSpec::linear>, .choices = kLinearNames,
     .doc = "What the products of decoder layers take: the compute type, or operands rounded to FP8 "
            "(inputs and weights E4M3, gradients E5M2), each by one power of two. On gpu fp8 needs bf16 and a "
            "device of compute capability 9.0 or later; on cpu the values are rounded and multiplied in the compute type."},
    {.name = "deterministic", .type = T::kBoolean, .at = Bound<&JobSpec::deterministic>,
     .acted_on_if_set = true,
     .doc = "Attention takes kernels whose sums have one order, so that a step that is repeated on the same "
            "layout has the same bits on gpu, too; slower there (docs/decisions/0067-deterministic-attention.md)."},
};

constexpr Field kSpec[] = {
    {.name = "seed", .type = T::kUnsigned, .at = Bound<&JobSpec::seed>,
     .doc = "Initial weights and the order of samples follow from it."},
    {.name = "steps", .type = T::kInteger, .at = Bound<&JobSpec::steps>,
     .absence = Absence::kRequired, .low = 1, .high = kStepsMax, .doc = "Optimizer steps."},
    {.name = "priority", .type = T::kInteger, .at = Bound<&JobSpec::priority>, .low = -1e9,
     .high = 1e9, .acted_on = false, .doc = "Larger goes first."},
    {.name = "preemptible", .type = T::kBoolean, .at = Bound<&JobSpec::preemptible>,
     .acted_on = false,
     .doc = "The job may be told to leave its devices for one of larger priority: with a checkpoint, "
            "so only a job with a `checkpoint` section does."},
    {.name = "time_limit", .type = T::kDuration, .at = Bound<&JobSpec::time_limit>,
     .otherwise = "none", .acted_on = false,
     .doc = "Time that it may run, without what it waits in the queue: past it the job ends, with a "
            "checkpoint of its last step if it has a `checkpoint` section."},
    {.name = "precision", .type = T::kMapping, .at = kOfOwner, .fields = kPrecision,
     .doc = "Number formats."},
    {.name = "language", .type = T::kModule, .at = Bound<&JobSpec::language>,
     .otherwise = "`language`", .doc = "The module whose lanes and tokens define the batch."},
    {.name = "modules", .type = T::kMappings, .at = Bound<&JobSpec::modules>,
     .absence = Absence::kRequired, .count_max = 64, .fields = kModule,
     .doc = "The parts of the model; exactly one is the language module."},
    {.name = "edges", .type = T::kMappings, .at = Bound<&JobSpec::edges>, .otherwise = "none",
     .count_max = 256, .fields = kEdge, .doc = "What feeds what: a graph without cycles."},
    {.name = "batch", .type = T::kMapping, .at = Bound<&JobSpec::batch>,
     .absence = Absence::kRequired, .fields = kBatch,
     .doc = "How many samples a step takes, and in what portions."},
    {.name = "schedule", .type = T::kMapping, .at = Bound<&JobSpec::schedule>, .fields = kSchedule,
     .doc = "The pipeline schedule."},
    {.name = "data", .type = T::kMapping, .at = Bound<&JobSpec::data>,
     .absence = Absence::kRequiredToRun, .otherwise = "none (planning only)", .fields = kData,
     .doc = "What to train on."},
    {.name = "optimizer", .type = T::kMapping, .at = Bound<&JobSpec::optimizer>,
     .fields = kOptimizer, .doc = "How parameters follow gradients."},
    {.name = "checkpoint", .type = T::kMapping, .at = Bound<&JobSpec::checkpoint>,
     .otherwise = "none", .fields = kCheckpoint,
     .doc = "What a job can go on from. With this section, even an empty one, a job that ends early in order "
            "(`time_limit`, SIGTERM of `phalanx run`) or leaves its devices (`suspend`, `drain`, SIGTERM of a "
            "worker) writes one of its last step."},
    {.name = "recovery", .type = T::kMapping, .at = Bound<&JobSpec::recovery>, .fields = kRecovery,
     .doc = "What to do when a device is lost. Where optimizer state lives (`state_home`, "
            "`state_copies`, `state_every`), `widths`, `rejoin` and `budget` are in force, and so are "
            "the rungs of `ladder`: `restart` lowers dp, then pp, then tp of a module to what fits "
            "the ranks that are left, and goes back to a checkpoint where state is lost."},
    {.name = "resources", .type = T::kMapping, .at = Bound<&JobSpec::resources>,
     .fields = kResources, .doc = "Devices to run on."},
    {.name = "env", .type = T::kStringMap, .at = Bound<&JobSpec::env>, .acted_on = false,
     .doc = "Variables that the job's ranks run with, such as `NCCL_DEBUG: INFO`, at most 64. They are stored "
            "and shown with the job; none that chooses code, devices or files to write, or opens a port, may be set."},
    {.name = "secrets", .type = T::kStringMap, .at = Bound<&JobSpec::secrets>, .acted_on = false,
     .doc = "Variables whose values are neither stored nor shown: of each the name of a file in the nodes' "
            "folder of secrets (`phalanx-worker --secrets`), at most 64."},
    {.name = "output", .type = T::kString, .at = Bound<&JobSpec::output>,
     .otherwise = "`runs/NAME`, NAME being the job's", .acted_on = false,
     .doc = "Folder for the job's results."},
    {.name = "trace", .type = T::kBoolean, .at = Bound<&JobSpec::trace>, .acted_on = false,
     .doc = "Measure one late step: what every rank did when, in `OUTPUT/trace.json`."},
    {.name = "profile", .type = T::kBoolean, .at = Bound<&JobSpec::profile>, .acted_on = false,
     .doc = "Measure one late step of at least 5, the last but one: its kernels by part, on CPU its "
            "operators, in `OUTPUT/ranks/rank-N.json`. The steps around it are slower."},
};

constexpr Field kMetadata[] = {
    {.name = "name", .type = T::kString, .at = Bound<&JobSpec::name>, .absence = Absence::kRequired,
     .doc = "Lower-case letters, digits and '-', at most 63, starting with a letter; not job-N, "
            "which is how jobs are numbered."},
    {.name = "labels", .type = T::kStringMap, .at = Bound<&JobSpec::labels>, .acted_on = false,
     .doc = "For people and selectors: at most 64."},
};

constexpr Field kDocument[] = {
    {.name = "apiVersion", .type = T::kChoice, .choices = kApiVersions,
     .doc = "The version of this format."},
    {.name = "kind", .type = T::kChoice, .choices = kDocumentKinds, .doc = "What the document is."},
    {.name = "metadata", .type = T::kMapping, .at = kOfOwner, .absence = Absence::kRequired,
     .fields = kMetadata, .doc = "What the job is called."},
    {.name = "spec", .type = T::kMapping, .at = kOfOwner, .absence = Absence::kRequired,
     .fields = kSpec, .doc = "What the job is."},
};

// clang-format on

std::string Bounds(const Field& field) {
  if (field.low == 0 && field.high == 0) return "";
  if (field.above_low) {
    return absl::StrCat(" above ", FormatNumber(field.low), " and at most ",
                        absl::SixDigits(field.high));
  }
  if (field.type == T::kNumber) {
    return absl::StrCat(" from ", FormatNumber(field.low), " to ", absl::SixDigits(field.high));
  }
  return absl::StrCat(" from ", static_cast<int64_t>(field.low), " to ",
                      static_cast<int64_t>(field.high));
}

}  // namespace

absl::Span<const Field> FieldsOf(string_view path) {
  absl::Span<const Field> fields = kDocument;
  for (string_view name : absl::StrSplit(path, '.', absl::SkipEmpty())) {
    const Field* found = nullptr;
    for (const Field& field : fields) {
      if (field.name == name) found = &field;
    }
    ABSL_ASSERT(found != nullptr);
    fields = found->fields;
  }
  return fields;
}

std::string DescribeValue(const Field& field) {
  switch (field.type) {
    case T::kString:
    case T::kModule:
      return "a string";
    case T::kChoice:
      if (field.choices.size() == 1) return std::string(field.choices[0]);
      return absl::StrCat("one of ", absl::StrJoin(field.choices, ", "));
    case T::kChoices:
      return absl::StrCat("a list of ", absl::StrJoin(field.choices, ", "), ", each once");
    case T::kInteger:
      return absl::StrCat("an integer", Bounds(field));
    case T::kUnsigned:
      return "an integer from 0 to 18446744073709551615";
    case T::kSize:
      return absl::StrCat("an integer", Bounds(field), " (4Ki is 4096)");
    case T::kNumber:
      return absl::StrCat("a number", Bounds(field));
    case T::kBoolean:
      return "true or false";
    case T::kDuration:
      return absl::StrCat("a duration above 0 and at most ", absl::ToInt64Hours(kDurationMax),
                          "h, such as 30s, 15m or 2h");
    case T::kIntegers:
      return absl::StrCat("a list of integers", Bounds(field));
    case T::kPair:
      return absl::StrCat("two numbers from ", FormatNumber(field.low), " to below ",
                          FormatNumber(field.high));
    case T::kPatterns:
      return "a file name, in which {000..003} and {a,b} expand, or a list of them";
    case T::kOffset:
      return absl::StrCat("an integer", Bounds(field), ", or a module's name");
    case T::kStringMap:
      return "a mapping of strings to strings";
    case T::kMapping:
      return field.automatic != nullptr ? "a mapping, or auto" : "a mapping";
    case T::kMappings:
      return absl::StrCat("a list of at most ", field.count_max, " mappings");
  }
  return "";
}

absl::Span<const string_view> FamilyNames() { return kFamilyNames; }
absl::Span<const string_view> RecomputeNames() { return kRecomputeNames; }
absl::Span<const string_view> ScheduleNames() { return kScheduleNames; }
absl::Span<const string_view> DeviceNames() { return kDeviceNames; }
absl::Span<const string_view> StateHomeNames() { return kStateHomeNames; }

}  // namespace phalanx::job
