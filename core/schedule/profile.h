// core/schedule/profile.h: how fast a kind of device is, as data.
//
// A profile lists what was measured on one machine, by the functions that training runs: the time
// of products of matrices and of attention over shapes, of passes over memory, of an update of the
// parameters, of a launch, and what links carry. Nothing in it is computed or assumed, and what was
// not recorded is null. Work of another shape goes at the rate of the measured shape that is
// nearest to it. Where joules were measured, too, and everything at a second, lower clock, power.h
// tells which clock a device keeps up within its power limit.
//
// Profiles lie in core/schedule/profiles, one JSON file a kind, and are compiled in. The nominal
// one, which no machine has, gives rates that are right between each other for a GPU of one board.
//
// Ranks never read a profile: the order of their messages follows from shapes alone (cost_model.h),
// so two machines with different profiles agree on a plan and its digest.
//
// Pure. Plain values; safe to read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::schedule {

// Seconds of products of [rows x inputs] and [inputs x outputs]: forward, the gradient of the
// inputs, and that of the weights, added to what is there in fp32.
struct ProductTimes {
  double rows = 0, inputs = 0, outputs = 0;
  double forward = 0, input_gradient = 0, weight_gradient = 0;
  // The same where it is written, as that of a step's first microbatch; 0: not measured, as added.
  double weight_gradient_written = 0;
};
// Of `rows` rows in sequences of `length`, with `heads` query heads of `head_size`. Backward with
// the gradients of queries, keys and values packed, where `causal` turned back as well.
struct AttentionTimes {
  double rows = 0, length = 0, heads = 0, head_size = 0;
  bool causal = false;
  double forward = 0, backward = 0;
};
// What a rank sends, or receives, in a second while others do the same, and the seconds of a
// message without bytes. Of collectives the bytes that a ring carries past each rank.
struct LinkRate {
  double bytes_per_second = 0, latency = 0;
  // Of a device, beyond its idle power, for each byte of a collective. 0: not measured.
  double joules_per_byte = 0;
};
// On what it was measured. Empty, or 0: not recorded.
struct ProfileConditions {
  std::string device, software, driver, source;
  double power_limit_watts = 0, temperature_celsius = 0, clock_mhz = 0;
};

// Products with operands of FP8 (docs/decisions/0032-fp8.md), and rounding to it.
struct Fp8Rates {
  std::vector<ProductTimes> products;  // at least one
  // Of what is read and written in both forms, 4 bytes an element, its largest magnitude being
  // known. Finding that is one more pass over memory.
  double cast_bytes_per_second = 0;
};
// What work takes at one clock: seconds, or in their place joules.
struct WorkRates {
  std::vector<ProductTimes> products;     // at least one
  std::optional<Fp8Rates> fp8;            // not measured: as in the compute type
  std::vector<AttentionTimes> attention;  // at least one
  double memory_bytes_per_second = 0;     // of what stands between the products of a layer
  double update_bytes_per_second = 0;     // of the optimizer
  double launch = 0;                      // seconds of a kernel that does next to nothing
  // 0: not measured, as memory.
  double loss_bytes_per_second = 0;       // cross-entropy: logits, read and written
  double embedding_bytes_per_second = 0;  // gradients of rows, added to those of the table
};
// The same entries as in the profile: joules at its clock, which is measured.clock_mhz, and both at
// a lower one. Joules hold the device's idle power.
struct PowerRates {
  double idle_watts = 0;
  WorkRates joules;
  double slow_clock_mhz = 0;
  WorkRates slow, slow_joules;
};

// What a communicator takes of a device. Its collectives go around a ring, so that a rank has two
// neighbours in it, whatever their number; what it exchanges messages with takes more.
struct CommunicatorBytes {
  int64_t made = 0;       // with all of its collectives run once
  int64_t each_peer = 0;  // of each rank with which it is connected for messages
};
// Between devices of one node.
struct CommunicatorsBytes {
  int64_t library = 0;         // once, whatever their number
  CommunicatorBytes messages;  // of links, which have no collectives
  CommunicatorBytes control;   // as narrow as those
  CommunicatorBytes wide;      // as wide as NCCL makes them: of gradients, and of tensor ranks
};
// What a process takes of a device beside tensors.
struct ProcessBytes {
  int64_t context = 0;                              // with the libraries that passes use
  std::optional<CommunicatorsBytes> communicators;  // not measured: none is counted
};

struct DeviceProfile : WorkRates {
  std::string name;  // of the kind, as in --device-kind
  ProfileConditions measured;
  std::optional<PowerRates> power;  // not measured: a device keeps its clock
  LinkRate message, collective;     // between devices of one node; not measured: take no time
  std::optional<LinkRate> network;  // between nodes; not measured: as within one
  // Bytes of a device that no estimate counts: contexts, libraries' workspaces, communicators, what
  // the allocator holds beside tensors. 0: not measured.
  int64_t unestimated_bytes = 0;
  // The same by what it is for; not measured: unestimated_bytes stands for all of it.
  std::optional<ProcessBytes> process;
};

// Version of the form of profiles. Version 2, which is read as well, has no `process`, no weight
// gradients that are written and no rates of loss and embedding.
inline constexpr int64_t kProfileVersion = 3, kProfileVersionMin = 2;
inline constexpr absl::string_view kNominalDevice = "nominal";

const DeviceProfile& NominalProfile();

// Of a file's text. Errors: InvalidArgument with every violation at once, each with its field, the
// value and the rule.
absl::StatusOr<DeviceProfile> ReadProfile(absl::string_view json);
// A file's text, from which ReadProfile makes the same profile: of version 2, which builds before
// read, where it has nothing that came with version 3. What texts and lists must have at least is
// the caller's.
std::string WriteProfile(const DeviceProfile& profile);

// Kinds that this build knows, the nominal one first.
std::vector<std::string> ProfileNames();
// Errors: InvalidArgument for a kind that it does not know, with those that it does.
absl::StatusOr<DeviceProfile> FindProfile(absl::string_view name);

// Seconds of a product of any shape, launch included; 0 where one of its sizes is.
enum class ProductPass : uint8_t {
  kForward,
  kInputGradient,
  kWeightGradient,
  kWrittenWeightGradient,  // instead of added
};
double ProductSeconds(const WorkRates& rates, ProductPass pass, double rows, double inputs,
                      double outputs);
// The same of operands in FP8, and what rounding `elements` to both forms takes; `largest_known`:
// whoever wrote them found their largest magnitude.
double Fp8ProductSeconds(const WorkRates& rates, ProductPass pass, double rows, double inputs,
                         double outputs);
double Fp8CastSeconds(const WorkRates& rates, double elements, bool largest_known);
// The same of attention, forward or backward.
struct AttentionShape {
  double rows = 0, length = 0, heads = 0, head_size = 0;
  bool causal = false;
};
double AttentionSeconds(const WorkRates& rates, const AttentionShape& shape, bool backward);
// Of `bytes` of memory read or written by `launches` kernels.
double MemorySeconds(const WorkRates& rates, double bytes, int launches);
// Of `bytes` of logits read or written by one pass of cross-entropy; of gradients of embeddings.
double LossSeconds(const WorkRates& rates, double bytes);
double EmbeddingSeconds(const WorkRates& rates, double bytes);
// Of `bytes` over a link.
double LinkSeconds(const LinkRate& link, double bytes);

}  // namespace phalanx::schedule
