#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/job/json.h"
#include "core/schedule/profile.h"

namespace phalanx::schedule {
namespace {

using job::Tree;

// What was not recorded is null.
Tree NumberOrNull(double value) { return value > 0 ? job::NumberTree(value) : Tree{}; }

// What came with version 3 is left out where it was not measured.
void AddIfMeasured(const std::string& name, double value, std::vector<Tree::Entry>& entries) {
  if (value > 0) entries.push_back({name, job::NumberTree(value)});
}

Tree TextOrNull(const std::string& text) { return text.empty() ? Tree{} : job::TextTree(text); }

// Of a link that takes no time, null.
Tree LinkTree(const LinkRate& link) {
  if (!std::isfinite(link.bytes_per_second)) return {};
  std::vector<Tree::Entry> entries = {{"bytes_per_second", job::NumberTree(link.bytes_per_second)},
                                      {"latency", job::NumberTree(link.latency)}};
  if (link.joules_per_byte > 0)
    entries.push_back({"joules_per_byte", job::NumberTree(link.joules_per_byte)});
  return job::MappingTree(std::move(entries));
}

Tree ProductsTree(const std::vector<ProductTimes>& products) {
  std::vector<Tree> all;
  for (const ProductTimes& product : products) {
    std::vector<Tree::Entry> entries = {
        {"rows", job::NumberTree(product.rows)},
        {"inputs", job::NumberTree(product.inputs)},
        {"outputs", job::NumberTree(product.outputs)},
        {"forward", job::NumberTree(product.forward)},
        {"input_gradient", job::NumberTree(product.input_gradient)},
        {"weight_gradient", job::NumberTree(product.weight_gradient)}};
    AddIfMeasured("weight_gradient_written", product.weight_gradient_written, entries);
    all.push_back(job::MappingTree(std::move(entries)));
  }
  return job::ListTree(std::move(all));
}

Tree AttentionTree(const std::vector<AttentionTimes>& attention) {
  std::vector<Tree> all;
  for (const AttentionTimes& times : attention) {
    all.push_back(job::MappingTree({{"rows", job::NumberTree(times.rows)},
                                    {"length", job::NumberTree(times.length)},
                                    {"heads", job::NumberTree(times.heads)},
                                    {"head_size", job::NumberTree(times.head_size)},
                                    {"causal", job::FlagTree(times.causal)},
                                    {"forward", job::NumberTree(times.forward)},
                                    {"backward", job::NumberTree(times.backward)}}));
  }
  return job::ListTree(std::move(all));
}

// `unit`: what the figures are in, "second" or "joule".
std::vector<Tree::Entry> RatesEntries(const WorkRates& rates, const std::string& unit) {
  const std::string per = "_bytes_per_" + unit;
  Tree fp8;
  if (rates.fp8.has_value()) {
    fp8 = job::MappingTree({{"products", ProductsTree(rates.fp8->products)},
                            {"cast" + per, job::NumberTree(rates.fp8->cast_bytes_per_second)}});
  }
  std::vector<Tree::Entry> entries = {
      {"products", ProductsTree(rates.products)},
      {"fp8", std::move(fp8)},
      {"attention", AttentionTree(rates.attention)},
      {"memory" + per, job::NumberTree(rates.memory_bytes_per_second)},
      {"update" + per, job::NumberTree(rates.update_bytes_per_second)}};
  AddIfMeasured("loss" + per, rates.loss_bytes_per_second, entries);
  AddIfMeasured("embedding" + per, rates.embedding_bytes_per_second, entries);
  if (unit == "second") entries.push_back({"launch", job::NumberTree(rates.launch)});
  return entries;
}

Tree PowerTree(const std::optional<PowerRates>& power) {
  if (!power.has_value()) return {};
  const auto rates = [](const WorkRates& of, const std::string& unit) {
    return job::MappingTree(RatesEntries(of, unit));
  };
  return job::MappingTree({{"idle_watts", job::NumberTree(power->idle_watts)},
                           {"slow_clock_mhz", job::NumberTree(power->slow_clock_mhz)},
                           {"joules", rates(power->joules, "joule")},
                           {"slow", rates(power->slow, "second")},
                           {"slow_joules", rates(power->slow_joules, "joule")}});
}

Tree ProcessTree(const ProcessBytes& process) {
  const auto communicator = [](const CommunicatorBytes& bytes) {
    return job::MappingTree({{"made_bytes", job::NumberTree(bytes.made)},
                             {"peer_bytes", job::NumberTree(bytes.each_peer)}});
  };
  Tree communicators;
  if (const auto& of = process.communicators) {
    communicators = job::MappingTree({{"library_bytes", job::NumberTree(of->library)},
                                      {"messages", communicator(of->messages)},
                                      {"control", communicator(of->control)},
                                      {"wide", communicator(of->wide)}});
  }
  return job::MappingTree({{"context_bytes", job::NumberTree(process.context)},
                           {"communicators", std::move(communicators)}});
}

bool HasWritten(const std::vector<ProductTimes>& products) {
  return std::any_of(products.begin(), products.end(), [](const ProductTimes& product) {
    return product.weight_gradient_written > 0;
  });
}

// Whether it has what builds that know version 2 alone do not read.
bool IsOfVersion3(const DeviceProfile& profile) {
  return profile.process.has_value() || profile.collective.joules_per_byte > 0 ||
         profile.loss_bytes_per_second > 0 || profile.embedding_bytes_per_second > 0 ||
         HasWritten(profile.products) ||
         (profile.fp8.has_value() && HasWritten(profile.fp8->products));
}

}  // namespace

std::string WriteProfile(const DeviceProfile& profile) {
  const ProfileConditions& at = profile.measured;
  const bool newest = IsOfVersion3(profile);
  std::vector<Tree::Entry> entries = {
      {"version", job::NumberTree(newest ? kProfileVersion : kProfileVersionMin)},
      {"name", job::TextTree(profile.name)},
      {"measured", job::MappingTree({{"device", job::TextTree(at.device)},
                                     {"software", job::TextTree(at.software)},
                                     {"driver", TextOrNull(at.driver)},
                                     {"power_limit_watts", NumberOrNull(at.power_limit_watts)},
                                     {"temperature_celsius", NumberOrNull(at.temperature_celsius)},
                                     {"clock_mhz", NumberOrNull(at.clock_mhz)},
                                     {"source", job::TextTree(at.source)}})}};
  for (Tree::Entry& entry : RatesEntries(profile, "second")) entries.push_back(std::move(entry));
  entries.push_back({"power", PowerTree(profile.power)});
  entries.push_back({"message", LinkTree(profile.message)});
  entries.push_back({"collective", LinkTree(profile.collective)});
  entries.push_back({"network", profile.network.has_value() ? LinkTree(*profile.network) : Tree{}});
  entries.push_back(
      {"unestimated_bytes", NumberOrNull(static_cast<double>(profile.unestimated_bytes))});
  if (newest) {
    entries.push_back(
        {"process", profile.process.has_value() ? ProcessTree(*profile.process) : Tree{}});
  }
  return job::EmitJson(job::MappingTree(std::move(entries)));
}

}  // namespace phalanx::schedule
