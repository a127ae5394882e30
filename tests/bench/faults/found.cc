#include "tests/bench/faults/found.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/faults/percentile.h"

namespace phalanx::e2e {
namespace {

double Growth(const Holding& holding) {
  if (holding.first.resident_kib == 0) return 0;
  return static_cast<double>(holding.end.resident_kib) /
         static_cast<double>(holding.first.resident_kib);
}

const Holding& MostGrown(const Holding& a, const Holding& b) {
  return Growth(a) < Growth(b) ? b : a;
}

std::string ToWords(const Holding& holding) {
  return absl::StrFormat("%.1f to %.1f MB and %d to %d descriptors",
                         static_cast<double>(holding.first.resident_kib) * 1024 / 1e6,
                         static_cast<double>(holding.end.resident_kib) * 1024 / 1e6,
                         holding.first.descriptors, holding.end.descriptors);
}

}  // namespace

double Series::Percentile(double part) {
  std::sort(values_.begin(), values_.end());
  return e2e::Percentile(values_, part);
}

nlohmann::ordered_json Series::ToJson() {
  if (values_.empty()) return nullptr;
  return {{"p50", Percentile(0.5)}, {"p99", Percentile(0.99)}, {"max", Percentile(1)}};
}

std::string Series::ToWords() {
  if (values_.empty()) return "nothing";
  return absl::StrFormat("p50 %.0f ms, p99 %.0f ms, max %.0f ms", Percentile(0.5), Percentile(0.99),
                         Percentile(1));
}

void Times::Add(const Times& other) {
  stopped.Add(other.stopped);
  next_step.Add(other.next_step);
  pause.Add(other.pause);
}

void Differences::Add(const std::vector<Metric>& hit, const std::vector<Metric>& whole) {
  for (size_t i = 0; i < std::min(hit.size(), whole.size()); ++i) {
    loss = std::max(loss, std::abs(hit[i].loss / whole[i].loss - 1));
    norm = std::max(norm, std::abs(hit[i].gradient_norm / whole[i].gradient_norm - 1));
  }
}

void Differences::Add(const Differences& other) {
  loss = std::max(loss, other.loss);
  norm = std::max(norm, other.norm);
  model = std::max(model, other.model);
}

void Found::AddSpared(const Holding& one) {
  spared = MostGrown(spared, one);
  spared_flat = spared_flat && IsFlat(one.first, one.end);
}

nlohmann::ordered_json ToJson(Found& found) {
  nlohmann::ordered_json json = {
      {"stopped_ms", found.times.stopped.ToJson()},
      {"next_step_ms", found.times.next_step.ToJson()},
      {"steps", found.steps},
      {"losses", {{"early", found.loss_early}, {"late", found.loss_late}}},
      {"fault", found.fault},
      {"differences",
       {{"loss", found.differences.loss},
        {"norm", found.differences.norm},
        {"model", found.differences.model}}},
      {"restarted", found.restarted},
      {"throughput_back", found.throughput.ToJson()},
      {"return_pause_ms", found.times.pause.ToJson()}};
  const double step = found.throughput.HealthyStep();
  if (step > 0 && !found.times.pause.empty())
    json["return_pause_in_steps"] = found.times.pause.Percentile(0.5) / step;
  json["early"] = ToJson(found.all.first);
  json["late"] = ToJson(found.all.end);
  for (const auto& [name, holding] : found.each)
    json["each"][name] = {{"early", ToJson(holding.first)}, {"late", ToJson(holding.end)}};
  json["spared_rank"] = {{"early", ToJson(found.spared.first)},
                         {"late", ToJson(found.spared.end)},
                         {"flat_in_every_job", found.spared_flat}};
  return json;
}

std::string LineOf(int64_t kills, std::vector<Found>& found) {
  Times times;
  Differences differences;
  Throughput throughput;
  Holding services, spared;
  int64_t steps = 0, restarted = 0, faults = 0;
  for (const Found& one : found) {
    times.Add(one.times);
    differences.Add(one.differences);
    throughput.Add(one.throughput);
    services = MostGrown(services, one.all);
    spared = MostGrown(spared, one.spared);
    steps += one.steps;
    restarted += one.restarted;
    faults += one.fault.empty() ? 0 : 1;
  }
  return absl::StrCat(
      kills, " kills in ", found.size(), " layouts: to all others having stopped ",
      times.stopped.ToWords(), "; to the next decided step read by a watcher ",
      times.next_step.ToWords(), "; a return holds training up for ", times.pause.ToWords(), "; ",
      steps, " steps, layouts with a gap, a double or another loss: ", faults,
      absl::StrFormat("; largest differences %.1e in a loss, %.1e in a norm and %.1e in what is "
                      "saved at the end",
                      differences.loss, differences.norm, differences.model),
      "; processes that are new and were not killed: ", restarted, "; ", throughput.ToWords(),
      "; coordinator and daemons of the layout where they grew most ", ToWords(services),
      "; of the ranks that lived through all kills of their jobs the one that grew most ",
      ToWords(spared));
}

}  // namespace phalanx::e2e
