#include "core/schedule/profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/json.h"
#include "core/job/scalar.h"
#include "core/job/tree.h"
#include "core/schedule/built_in_profiles.h"
#include "core/schedule/field_reader.h"

namespace phalanx::schedule {
namespace {

using job::Tree;

constexpr size_t kProfileNodesMax = 100'000;
// Of two clocks, as a factor: nearer ones are one, and nothing goes through both points.
constexpr double kClocksApart = 1 + 1e-6;

using Reader = FieldReader;
using Fields = Reader::Fields;

LinkRate ReadLink(Fields& fields) {
  return {.bytes_per_second = fields.Number("bytes_per_second"),
          .latency = fields.Number("latency", false, true),
          .joules_per_byte = fields.NumberIfThere("joules_per_byte")};
}

void ReadConditions(Fields& fields, ProfileConditions& conditions) {
  conditions = {.device = fields.Text("device"),
                .software = fields.Text("software"),
                .driver = fields.Text("driver", true),
                .source = fields.Text("source"),
                .power_limit_watts = fields.Number("power_limit_watts", true),
                .temperature_celsius = fields.Number("temperature_celsius", true),
                .clock_mhz = fields.Number("clock_mhz", true)};
}

void ReadProducts(Fields& fields, std::vector<ProductTimes>& products) {
  fields.List("products", [&](Fields& at) {
    products.push_back({.rows = at.Number("rows"),
                        .inputs = at.Number("inputs"),
                        .outputs = at.Number("outputs"),
                        .forward = at.Number("forward"),
                        .input_gradient = at.Number("input_gradient"),
                        .weight_gradient = at.Number("weight_gradient"),
                        .weight_gradient_written = at.NumberIfThere("weight_gradient_written")});
  });
}

// `unit`: what the figures are in, "second" or "joule".
void ReadRates(Fields& fields, absl::string_view unit, WorkRates& rates) {
  const std::string per = absl::StrCat("_bytes_per_", unit);
  ReadProducts(fields, rates.products);
  fields.Mapping(
      "fp8",
      [&](Fields& at) {
        rates.fp8.emplace();
        ReadProducts(at, rates.fp8->products);
        rates.fp8->cast_bytes_per_second = at.Number("cast" + per);
      },
      true);
  fields.List("attention", [&](Fields& at) {
    rates.attention.push_back({.rows = at.Number("rows"),
                               .length = at.Number("length"),
                               .heads = at.Number("heads"),
                               .head_size = at.Number("head_size"),
                               .causal = at.Flag("causal"),
                               .forward = at.Number("forward"),
                               .backward = at.Number("backward")});
  });
  rates.memory_bytes_per_second = fields.Number("memory" + per);
  rates.update_bytes_per_second = fields.Number("update" + per);
  rates.loss_bytes_per_second = fields.NumberIfThere("loss" + per);
  rates.embedding_bytes_per_second = fields.NumberIfThere("embedding" + per);
  if (unit == "second") rates.launch = fields.Number("launch", false, true);
}

void ReadPower(Fields& fields, PowerRates& power) {
  power.idle_watts = fields.Number("idle_watts");
  power.slow_clock_mhz = fields.Number("slow_clock_mhz");
  fields.Mapping("joules", [&](Fields& at) { ReadRates(at, "joule", power.joules); });
  fields.Mapping("slow", [&](Fields& at) { ReadRates(at, "second", power.slow); });
  fields.Mapping("slow_joules", [&](Fields& at) { ReadRates(at, "joule", power.slow_joules); });
}

CommunicatorBytes ReadCommunicator(Fields& fields, const std::string& name) {
  CommunicatorBytes bytes;
  fields.Mapping(name, [&](Fields& at) {
    bytes.made = at.Bytes("made_bytes", false, true);
    bytes.each_peer = at.Bytes("peer_bytes", false, true);
  });
  return bytes;
}

void ReadProcess(Fields& fields, ProcessBytes& process) {
  process.context = fields.Bytes("context_bytes");
  fields.Mapping(
      "communicators",
      [&](Fields& at) {
        process.communicators =
            CommunicatorsBytes{.library = at.Bytes("library_bytes", false, true),
                               .messages = ReadCommunicator(at, "messages"),
                               .control = ReadCommunicator(at, "control"),
                               .wide = ReadCommunicator(at, "wide")};
      },
      true);
}

// What power is worked out from is there.
void CheckPower(const DeviceProfile& profile, Reader& reader) {
  const auto number = [](double value) { return job::FormatNumber(value); };
  const ProfileConditions& at = profile.measured;
  if (at.power_limit_watts <= profile.power->idle_watts) {
    reader.Add("measured.power_limit_watts", number(at.power_limit_watts),
               "must be above power.idle_watts");
  }
  if (at.clock_mhz <= profile.power->slow_clock_mhz * kClocksApart) {
    reader.Add("measured.clock_mhz", number(at.clock_mhz), "must be above power.slow_clock_mhz");
  }
  for (const WorkRates* rates :
       {&profile.power->joules, &profile.power->slow, &profile.power->slow_joules}) {
    if (rates->products.size() == profile.products.size() &&
        rates->attention.size() == profile.attention.size() &&
        rates->fp8.has_value() == profile.fp8.has_value())
      continue;
    return reader.Add("power", "", "must have the entries of the profile in all its parts");
  }
}

void ReadDocument(Fields& fields, Reader& reader, DeviceProfile& profile) {
  const double version = fields.Number("version");
  if (version != 0 && version != static_cast<double>(kProfileVersion) &&
      version != static_cast<double>(kProfileVersionMin)) {
    reader.Add("version", job::FormatNumber(version),
               absl::StrCat("this build reads profiles of versions ", kProfileVersionMin, " and ",
                            kProfileVersion));
  }
  profile.name = fields.Text("name");
  fields.Mapping("measured", [&](Fields& at) { ReadConditions(at, profile.measured); });
  ReadRates(fields, "second", profile);
  fields.Mapping(
      "power",
      [&](Fields& at) {
        profile.power.emplace();
        ReadPower(at, *profile.power);
      },
      true);
  profile.message = profile.collective = {std::numeric_limits<double>::infinity(), 0};
  fields.Mapping(
      "message", [&](Fields& at) { profile.message = ReadLink(at); }, true);
  fields.Mapping(
      "collective", [&](Fields& at) { profile.collective = ReadLink(at); }, true);
  fields.Mapping(
      "network", [&](Fields& at) { profile.network = ReadLink(at); }, true);
  profile.unestimated_bytes = fields.Bytes("unestimated_bytes", true);
  if (version == static_cast<double>(kProfileVersion)) {
    fields.Mapping(
        "process",
        [&](Fields& at) {
          profile.process.emplace();
          ReadProcess(at, *profile.process);
        },
        true);
  }
  if (profile.power.has_value()) CheckPower(profile, reader);
}

// How far one size is from another, in factors of two.
double Distance(double a, double b) { return std::abs(std::log2(a) - std::log2(b)); }

// The same as a factor, of which a product says what a sum of distances does.
double Factor(double a, double b) { return a < b ? b / a : a / b; }

// The entry with the least distance, the first of equals.
template <typename Entry, typename DistanceTo>
const Entry& Nearest(const std::vector<Entry>& entries, const DistanceTo& distance_to) {
  const Entry* nearest = &entries.front();
  double least = distance_to(*nearest);
  for (const Entry& entry : entries) {
    const double distance = distance_to(entry);
    if (distance >= least) continue;
    least = distance;
    nearest = &entry;
  }
  return *nearest;
}

// FLOPs of a forward pass; a backward one has twice as many.
template <typename Shape>
double AttentionFlops(const Shape& shape) {
  return 4 * shape.rows * shape.length * shape.heads * shape.head_size * (shape.causal ? 0.5 : 1);
}

double SecondsOfProduct(const std::vector<ProductTimes>& products, double launch, ProductPass pass,
                        double rows, double inputs, double outputs) {
  const double size = rows * inputs * outputs;
  if (size <= 0) return 0;
  const ProductTimes& nearest = Nearest(products, [&](const ProductTimes& entry) {
    return Factor(entry.rows, rows) * Factor(entry.inputs, inputs) * Factor(entry.outputs, outputs);
  });
  const double seconds = [&] {
    switch (pass) {
      case ProductPass::kForward:
        return nearest.forward;
      case ProductPass::kInputGradient:
        return nearest.input_gradient;
      case ProductPass::kWrittenWeightGradient:
        if (nearest.weight_gradient_written > 0) return nearest.weight_gradient_written;
        break;
      case ProductPass::kWeightGradient:
        break;
    }
    return nearest.weight_gradient;
  }();
  return launch + seconds * size / (nearest.rows * nearest.inputs * nearest.outputs);
}

}  // namespace

const DeviceProfile& NominalProfile() {
  // Some 2,000 FLOPs in the time in which a byte passes a link, some 200 in that of a byte of
  // memory.
  constexpr double kFlops = 100e12;
  static const DeviceProfile* const profile = [] {
    auto* nominal = new DeviceProfile;
    nominal->name = std::string(kNominalDevice);
    nominal->products = {{1, 1, 1, 2 / kFlops, 2 / kFlops, 2 / kFlops}};
    nominal->fp8 = Fp8Rates{.products = {{1, 1, 1, 1 / kFlops, 1 / kFlops, 1 / kFlops}},
                            .cast_bytes_per_second = kFlops / 200};
    nominal->attention = {{1, 1, 1, 1, false, 4 / kFlops, 8 / kFlops}};
    nominal->memory_bytes_per_second = nominal->update_bytes_per_second = kFlops / 200;
    nominal->message = nominal->collective = {.bytes_per_second = kFlops / 2000};
    return nominal;
  }();
  return *profile;
}

absl::StatusOr<DeviceProfile> ReadProfile(absl::string_view json) {
  ASSIGN_OR_RETURN(const Tree document, job::ParseJson(json, kProfileNodesMax));
  Reader reader;
  DeviceProfile profile;
  {
    Fields fields(reader, "", document);
    ReadDocument(fields, reader, profile);
  }
  RETURN_IF_ERROR(reader.Status());
  return profile;
}

std::vector<std::string> ProfileNames() {
  std::vector<std::string> names = {std::string(kNominalDevice)};
  for (const absl::string_view text : BuiltInProfiles()) {
    if (const auto profile = ReadProfile(text); profile.ok()) names.push_back(profile->name);
  }
  return names;
}

absl::StatusOr<DeviceProfile> FindProfile(absl::string_view name) {
  if (name == kNominalDevice) return NominalProfile();
  for (const absl::string_view text : BuiltInProfiles()) {
    ASSIGN_OR_RETURN(DeviceProfile profile, ReadProfile(text));
    if (profile.name == name) return profile;
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no profile of devices \"", name,
                                                 "\"; there are ",
                                                 absl::StrJoin(ProfileNames(), ", ")));
}

double ProductSeconds(const WorkRates& rates, ProductPass pass, double rows, double inputs,
                      double outputs) {
  return SecondsOfProduct(rates.products, rates.launch, pass, rows, inputs, outputs);
}

double Fp8ProductSeconds(const WorkRates& rates, ProductPass pass, double rows, double inputs,
                         double outputs) {
  const std::vector<ProductTimes>& products =
      rates.fp8.has_value() ? rates.fp8->products : rates.products;
  return SecondsOfProduct(products, rates.launch, pass, rows, inputs, outputs);
}

double Fp8CastSeconds(const WorkRates& rates, double elements, bool largest_known) {
  if (elements <= 0 || !rates.fp8.has_value()) return 0;
  const double cast = rates.launch + 4 * elements / rates.fp8->cast_bytes_per_second;
  return largest_known ? cast : cast + MemorySeconds(rates, 2 * elements, 1);
}

double AttentionSeconds(const WorkRates& rates, const AttentionShape& shape, bool backward) {
  const double flops = AttentionFlops(shape);
  if (flops <= 0) return 0;
  // Another mask, or another size of heads, is further away than any length.
  const AttentionTimes& nearest = Nearest(rates.attention, [&](const AttentionTimes& entry) {
    return (entry.causal == shape.causal ? 0 : 64) +
           16 * Distance(entry.head_size, shape.head_size) + Distance(entry.length, shape.length) +
           Distance(entry.heads * entry.rows, shape.heads * shape.rows) / 16;
  });
  return rates.launch +
         (backward ? nearest.backward : nearest.forward) * flops / AttentionFlops(nearest);
}

double MemorySeconds(const WorkRates& rates, double bytes, int launches) {
  return bytes <= 0 ? 0 : launches * rates.launch + bytes / rates.memory_bytes_per_second;
}

double LossSeconds(const WorkRates& rates, double bytes) {
  if (rates.loss_bytes_per_second <= 0) return MemorySeconds(rates, bytes, 1);
  return bytes <= 0 ? 0 : rates.launch + bytes / rates.loss_bytes_per_second;
}

double EmbeddingSeconds(const WorkRates& rates, double bytes) {
  if (rates.embedding_bytes_per_second <= 0) return MemorySeconds(rates, bytes, 1);
  return bytes <= 0 ? 0 : rates.launch + bytes / rates.embedding_bytes_per_second;
}

double LinkSeconds(const LinkRate& link, double bytes) {
  return bytes <= 0 ? 0 : link.latency + bytes / link.bytes_per_second;
}

}  // namespace phalanx::schedule
