#include "tests/bench/faults/throughput.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/faults/percentile.h"

namespace phalanx::e2e {
namespace {

constexpr double kDoubtMax = 0.05;

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 0.5);
}

const char* NameOf(Throughput::Verdict verdict) {
  switch (verdict) {
    case Throughput::Verdict::kShown:
      return "shown";
    case Throughput::Verdict::kRuledOut:
      return "ruled out";
    case Throughput::Verdict::kNeither:
      break;
  }
  return "neither";
}

}  // namespace

void Throughput::Add(std::vector<double> before, std::vector<double> after) {
  steps_ += static_cast<int64_t>(before.size() + after.size());
  const double ratio = MedianOf(std::move(before)) / MedianOf(after);
  ratios_.insert(std::upper_bound(ratios_.begin(), ratios_.end(), ratio), ratio);
  after_.insert(after_.end(), after.begin(), after.end());
}

void Throughput::Add(const Throughput& other) {
  ratios_.insert(ratios_.end(), other.ratios_.begin(), other.ratios_.end());
  std::sort(ratios_.begin(), ratios_.end());
  after_.insert(after_.end(), other.after_.begin(), other.after_.end());
  steps_ += other.steps_;
}

std::optional<Throughput::Interval> Throughput::Bounds() const {
  const auto pairs = static_cast<int64_t>(ratios_.size());
  // The median lies outside [k-th smallest, k-th largest] as often as fewer than k of so many
  // tosses of a coin show heads, on either side.
  double likelihood = std::exp2(-static_cast<double>(pairs)), doubt = 0;
  size_t k = 0;
  for (int64_t heads = 0; 2 * heads < pairs; ++heads) {
    doubt += 2 * likelihood;
    if (doubt > kDoubtMax) break;
    ++k;
    likelihood *= static_cast<double>(pairs - heads) / static_cast<double>(heads + 1);
  }
  if (k == 0) return std::nullopt;
  return Interval{ratios_[k - 1], ratios_[ratios_.size() - k]};
}

Throughput::Verdict Throughput::IsBack() const {
  const std::optional<Interval> bounds = Bounds();
  if (!bounds.has_value()) return Verdict::kNeither;
  if (bounds->high < kBack) return Verdict::kRuledOut;
  return bounds->low >= kBack ? Verdict::kShown : Verdict::kNeither;
}

double Throughput::HealthyStep() const { return after_.empty() ? 0 : 1e3 * MedianOf(after_); }

nlohmann::ordered_json Throughput::ToJson() const {
  nlohmann::ordered_json json = {{"pairs", ratios_.size()}, {"steps", steps_}};
  if (!ratios_.empty()) json["ratio"] = MedianOf(ratios_);
  const std::optional<Interval> bounds = Bounds();
  json["low"] = bounds.has_value() ? nlohmann::ordered_json(bounds->low) : nullptr;
  json["high"] = bounds.has_value() ? nlohmann::ordered_json(bounds->high) : nullptr;
  json["back"] = NameOf(IsBack());
  json["healthy_step_ms"] = HealthyStep();
  return json;
}

std::string Throughput::ToWords() const {
  if (ratios_.empty()) return "throughput: no pairs";
  std::string words = absl::StrFormat("%.1f %% of the throughput (", 100 * MedianOf(ratios_));
  if (const std::optional<Interval> bounds = Bounds())
    absl::StrAppendFormat(&words, "%.1f to %.1f, ", 100 * bounds->low, 100 * bounds->high);
  return absl::StrCat(words, ratios_.size(), " pairs)");
}

std::string Throughput::VerdictWords() const {
  return absl::StrFormat(
      "that %.0f %% are back is %s", 100 * kBack,
      IsBack() == Verdict::kNeither ? "neither shown nor ruled out" : NameOf(IsBack()));
}

}  // namespace phalanx::e2e
