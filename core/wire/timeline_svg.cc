#include "core/wire/timeline_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/schedule/pipeline.h"
#include "core/wire/plan_text.h"
#include "core/wire/timeline_names.h"
#include "core/wire/xml_text.h"

namespace phalanx::wire {
namespace {

using schedule::Op;
using schedule::TimedInstruction;

// Pixels.
constexpr double kMargin = 12, kRight = 26, kTop = 82, kLane = 28, kBox = 22;
constexpr double kGlyph = 6.3, kDigit = 5.8;  // widths at 11 and 10 pixels
constexpr double kPlotMin = 900, kPlotMax = 1800;
constexpr size_t kLabelMax = 60;  // characters

// Forward, backward for inputs, backward for weights: of one module after the other.
constexpr std::array<std::array<const char*, 3>, 6> kColours = {{
    {"#1f6fb2", "#82b9e6", "#c3dcf2"},
    {"#b8540a", "#f0a264", "#f8d2b1"},
    {"#2c7a3f", "#82c795", "#c2e5cb"},
    {"#8a3fa0", "#ca98da", "#e3c9eb"},
    {"#a1303f", "#e88c99", "#f5c6cd"},
    {"#5f5a14", "#c7bf63", "#e4dfae"},
}};

size_t KindOf(Op op) { return op == Op::kForward ? 0 : op == Op::kBackwardInput ? 1 : 2; }

std::string Pixels(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

// How the times of a picture are written: all in one unit.
struct TimelineClock {
  double scale = 1;  // of seconds
  const char* unit = "";
  int decimals = 2;

  std::string Show(double time) const {
    return absl::StrFormat("%.*f%s%s", decimals, time * scale, *unit == '\0' ? "" : " ", unit);
  }
};

TimelineClock ClockOf(const plan::Plan& plan, double step) {
  const bool known =
      std::all_of(plan.spec.modules.begin(), plan.spec.modules.end(),
                  [](const auto& module) { return job::TraitsOf(module.architecture).known(); });
  if (!known) return {.unit = "layer passes"};
  if (step >= 1) return {.unit = "s", .decimals = 3};
  return step >= 1e-3 ? TimelineClock{.scale = 1e3, .unit = "ms", .decimals = 3}
                      : TimelineClock{.scale = 1e6, .unit = "us"};
}

struct Lane {
  Rank rank;
  int64_t alike = 1;
  std::vector<const TimedInstruction*> passes;  // that take time, in order of begin
};

std::vector<Lane> LanesOf(const plan::Plan& plan, const std::vector<TimedInstruction>& timeline) {
  const schedule::Pipeline pipeline = schedule::MakePipeline(plan);
  std::map<Rank, Lane> lanes;
  std::map<Rank, int32_t> class_of;
  std::map<int32_t, Rank> shown;  // the lowest rank of each class that the timeline has
  for (const TimedInstruction& timed : timeline) {
    const auto [entry, added] = class_of.try_emplace(timed.rank, -1);
    if (!added) continue;
    entry->second = schedule::ClassOf(pipeline, plan, timed.rank);
    const auto [first, is_first] = shown.try_emplace(entry->second, timed.rank);
    if (!is_first) first->second = std::min(first->second, timed.rank);
  }
  shown.erase(-1);
  for (const auto& [rank_class, rank] : shown) {
    lanes[rank] = {rank, pipeline.classes[static_cast<size_t>(rank_class)].ranks, {}};
  }
  for (const TimedInstruction& timed : timeline) {
    const auto lane = lanes.find(timed.rank);
    if (lane == lanes.end() || !schedule::IsPass(timed.instruction.op)) continue;
    if (timed.end > timed.begin) lane->second.passes.push_back(&timed);
  }
  std::vector<Lane> list;
  for (auto& [rank, lane] : lanes) {
    std::stable_sort(lane.passes.begin(), lane.passes.end(),
                     [](const auto* a, const auto* b) { return a->begin < b->begin; });
    list.push_back(std::move(lane));
  }
  return list;
}

class TimelinePicture {
 public:
  TimelinePicture(const plan::Plan& plan, const PlanFigures& figures,
                  const std::vector<TimedInstruction>& timeline)
      : plan_(plan), figures_(figures), lanes_(LanesOf(plan, timeline)) {
    for (const TimedInstruction& timed : timeline) {
      if (schedule::IsPass(timed.instruction.op)) passes_ = std::max(passes_, timed.end);
    }
    clock_ = ClockOf(plan, passes_);
    Crop();
    Measure();
  }

  std::string Draw() const;

 private:
  void Crop();
  void Measure();
  double X(double time) const { return left_ + (end_ > 0 ? time / end_ * plot_ : 0); }
  std::string Figures() const;
  std::string Label(const Lane& lane) const;
  std::string Style() const;
  std::string Axis() const;
  std::string DrawLane(const Lane& lane, double y) const;
  std::string DrawPass(const TimedInstruction& pass) const;
  std::string Legend(double& y) const;
  std::string LeftOut() const;

  const plan::Plan& plan_;
  const PlanFigures& figures_;
  std::vector<Lane> lanes_;
  size_t lanes_all_ = 0;
  double passes_ = 0, end_ = 0;  // of all passes and of what is drawn
  TimelineClock clock_;
  double left_ = 0, plot_ = 0;
};

void TimelinePicture::Crop() {
  lanes_all_ = lanes_.size();
  if (lanes_.size() > kLanesMax) lanes_.resize(kLanesMax);
  end_ = passes_;
  for (const Lane& lane : lanes_) {
    if (lane.passes.size() > kDrawnPassesMax)
      end_ = std::min(end_, lane.passes[kDrawnPassesMax]->begin);
  }
  for (Lane& lane : lanes_) {
    std::erase_if(lane.passes, [this](const auto* pass) { return pass->end > end_; });
  }
}

void TimelinePicture::Measure() {
  size_t label = 12, passes = 0;
  for (const Lane& lane : lanes_) {
    label = std::max(label, std::min(Label(lane).size(), kLabelMax));
    passes = std::max(passes, lane.passes.size());
  }
  left_ = kMargin + kGlyph * static_cast<double>(label) + 8;
  // Room for the number of each microbatch, were all passes of a lane alike.
  const double digits = static_cast<double>(absl::StrCat(plan_.microbatches - 1).size());
  plot_ = std::clamp((kDigit * digits + 5) * static_cast<double>(passes), kPlotMin, kPlotMax);
}

std::string TimelinePicture::Figures() const {
  return absl::StrFormat("%s, %d %s in %s, bubble %.1f %% (lower bound %.1f %%)",
                         ScheduleText(plan_.spec.schedule), plan_.microbatches,
                         plan_.microbatches == 1 ? "microbatch" : "microbatches",
                         clock_.Show(passes_), 100 * figures_.bubble, 100 * figures_.lower_bound);
}

std::string TimelinePicture::Label(const Lane& lane) const {
  return absl::StrCat("rank ", lane.rank.value,
                      lane.alike > 1 ? absl::StrCat(" x ", lane.alike) : "", ": ",
                      PlacesTitle(plan_, lane.rank));
}

std::string TimelinePicture::Style() const {
  std::string style =
      "text{font:11px sans-serif;fill:#24292f}"
      ".p{fill:#ffffff}.l{fill:#f3f5f7}.a{stroke:#c4cad0;stroke-width:1}"
      ".h{font-size:14px;font-weight:bold}.n{font-size:10px;text-anchor:middle;"
      "pointer-events:none}.x{text-anchor:middle}.r{text-anchor:end}"
      "@media(prefers-color-scheme:dark){.p{fill:#0d1117}.l{fill:#21262d}.a{stroke:#484f58}"
      "text{fill:#e6edf3}}"
      // On boxes, whose colours are the same on both papers.
      "text.d{fill:#1b1f24}text.w{fill:#ffffff}.c{fill:#1b1f24;fill-opacity:.45;"
      "pointer-events:none}";
  for (size_t m = 0; m < std::min(plan_.modules.size(), kColours.size()); ++m) {
    for (size_t kind = 0; kind < 3; ++kind) {
      absl::StrAppend(&style, ".m", m, "k", kind, "{fill:", kColours[m][kind], "}");
    }
  }
  return absl::StrCat("<style>", style, "</style>\n");
}

// A line and a time at every round number, five to ten of them.
std::string TimelinePicture::Axis() const {
  std::string text;
  const double span = end_ * clock_.scale;
  if (!(span > 0)) return text;
  double tick = std::pow(10, std::floor(std::log10(span)));
  if (span / tick < 5) tick /= span / tick < 2 ? 5 : 2;
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(tick) + 1e-9)));
  const double foot = kTop + kLane * static_cast<double>(lanes_.size());
  for (int i = 0; i * tick <= span * (1 + 1e-9); ++i) {
    const std::string x = Pixels(X(i * tick / clock_.scale));
    absl::StrAppend(&text, "<path class=\"a\" d=\"M", x, " ", kTop - 6, "V", foot, "\"/>",
                    "<text class=\"x\" x=\"", x, "\" y=\"", kTop - 10, "\">",
                    absl::StrFormat("%.*f", i == 0 ? 0 : decimals, i * tick), "</text>\n");
  }
  absl::StrAppend(&text, "<text class=\"r\" x=\"", Pixels(left_ - 8), "\" y=\"", kTop - 10, "\">",
                  clock_.unit, "</text>\n");
  return text;
}

std::string TimelinePicture::DrawPass(const TimedInstruction& pass) const {
  const schedule::Instruction& what = pass.instruction;
  const double x = X(pass.begin), width = X(pass.end) - x;
  const size_t kind = KindOf(what.op);
  // Less than the pass, so that neighbours stay apart; of a thin one not much less, or it pales.
  const std::string drawn = Pixels(width - std::min(0.5, 0.15 * width));
  std::string text =
      absl::StrCat("<path class=\"m", static_cast<size_t>(what.module) % kColours.size(), "k", kind,
                   "\" d=\"M", Pixels(x), " 0h", drawn, "v", kBox, "H", Pixels(x), "z\"><title>",
                   XmlText(InstructionTitle(plan_, what)), ": ", clock_.Show(pass.begin), " to ",
                   clock_.Show(pass.end), "</title></path>");
  const int32_t chunks = plan_.modules[static_cast<size_t>(what.module)].chunks();
  if (what.chunk > 0) {
    const double height = 6.0 * what.chunk / (chunks - 1);
    absl::StrAppend(&text, "<path class=\"c\" d=\"M", Pixels(x), " ", kBox, "v-", Pixels(height),
                    "h", drawn, "V", kBox, "z\"/>");
  }
  const std::string number = absl::StrCat(what.microbatch);
  if (width >= kDigit * static_cast<double>(number.size()) + 2) {
    absl::StrAppend(&text, "<text class=\"n ", kind == 0 ? "w" : "d", "\" x=\"",
                    Pixels(x + width / 2), "\" y=\"14\">", number, "</text>");
  }
  return absl::StrCat(text, "\n");
}

std::string TimelinePicture::DrawLane(const Lane& lane, double y) const {
  std::string label = Label(lane);
  const std::string full = label;
  if (label.size() > kLabelMax) label = absl::StrCat(label.substr(0, kLabelMax - 2), "..");
  std::string text =
      absl::StrCat("<g class=\"lane\" transform=\"translate(0 ", Pixels(y),
                   ")\"><path class=\"l\" d=\"M", Pixels(left_), " 0h", Pixels(plot_), "v", kBox,
                   "H", Pixels(left_), "z\"/>", "<text class=\"r\" x=\"", Pixels(left_ - 8),
                   "\" y=\"15\">", XmlText(label), "<title>", XmlText(full), "</title></text>\n");
  for (const TimedInstruction* pass : lane.passes) absl::StrAppend(&text, DrawPass(*pass));
  return absl::StrCat(text, "</g>\n");
}

// Only what the picture has: passes that take no time have no colour. Moves `y`, the line of the
// first row, to that of the last one.
std::string TimelinePicture::Legend(double& y) const {
  constexpr const char* kKinds[] = {"forward", "backward, inputs", "backward, weights"};
  std::set<std::pair<int32_t, size_t>> used;
  for (const Lane& lane : lanes_) {
    for (const TimedInstruction* pass : lane.passes) {
      used.insert({pass->instruction.module, KindOf(pass->instruction.op)});
    }
  }
  std::string text;
  double x = left_;
  const auto add = [&](const std::string& glyph, const std::string& name) {
    const double width = 26 + kGlyph * static_cast<double>(name.size());
    if (x > left_ && x + width > left_ + plot_) {
      x = left_;
      y += 18;
    }
    absl::StrAppend(&text, "<g transform=\"translate(", Pixels(x), " ", Pixels(y - 9), ")\">",
                    glyph, "<text x=\"15\" y=\"9\">", XmlText(name), "</text></g>\n");
    x += width;
  };
  for (const auto& [module, kind] : used) {
    // Where a module's weight passes take no time its backward is not divided.
    const bool whole = kind == 1 && !used.contains({module, 2});
    const std::string name =
        absl::StrCat(plan_.module_spec(module).name, " ", whole ? "backward" : kKinds[kind]);
    add(absl::StrCat("<path class=\"m", static_cast<size_t>(module) % kColours.size(), "k", kind,
                     "\" d=\"M0 0h11v11h-11z\"/>"),
        name);
  }
  if (used.empty()) return text;
  add("<text class=\"n\" x=\"5\" y=\"9\">0</text>", "microbatch");
  const int32_t chunks =
      std::max_element(plan_.modules.begin(), plan_.modules.end(), [](auto& a, auto& b) {
        return a.chunks() < b.chunks();
      })->chunks();
  if (chunks > 1) {
    add("<path class=\"l\" d=\"M0 0h11v11h-11z\"/><path class=\"c\" d=\"M0 11v-6h11v6z\"/>",
        chunks == 2 ? "chunk 1"
                    : absl::StrCat("chunks 1 to ", chunks - 1, ", the higher the later"));
  }
  return text;
}

std::string TimelinePicture::LeftOut() const {
  std::string text;
  if (const size_t idle = plan_.layout.idle.size(); idle > 0) {
    text = absl::StrCat(idle, idle == 1 ? " device is" : " devices are", " idle. ");
  }
  if (lanes_all_ > lanes_.size()) {
    absl::StrAppend(&text, lanes_all_ - lanes_.size(), " of ", lanes_all_, " lanes are left out. ");
  }
  if (end_ < passes_) {
    absl::StrAppend(&text, "Only the first ", clock_.Show(end_), " of ", clock_.Show(passes_),
                    " are drawn.");
  }
  return text;
}

std::string TimelinePicture::Draw() const {
  double y = kTop + kLane * static_cast<double>(lanes_.size()) + 18;
  std::string foot = Legend(y);
  if (const std::string note = LeftOut(); !note.empty()) {
    y += 20;
    absl::StrAppend(&foot, "<text class=\"note\" x=\"", Pixels(left_), "\" y=\"", Pixels(y), "\">",
                    note, "</text>\n");
  }
  const std::string width = Pixels(left_ + plot_ + kRight), height = Pixels(y + kMargin);
  const std::string name = XmlText(plan_.spec.name), figures = XmlText(Figures());
  std::string svg =
      absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height,
                   "\" width=\"", width, "\" height=\"", height, "\" role=\"img\">\n<title>", name,
                   ": ", figures, "</title>\n", Style());
  absl::StrAppend(&svg, "<path class=\"p\" d=\"M0 0H", width, "V", height,
                  "H0z\"/>\n<text class=\"h\" x=\"", kMargin, "\" y=\"24\">", name,
                  "</text>\n<text x=\"", kMargin, "\" y=\"42\">", figures, "</text>\n", Axis());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    absl::StrAppend(&svg, DrawLane(lanes_[i], kTop + kLane * static_cast<double>(i)));
  }
  return absl::StrCat(svg, foot, "</svg>\n");
}

}  // namespace

std::string TimelineSvg(const plan::Plan& plan, const PlanFigures& figures,
                        const std::vector<TimedInstruction>& timeline) {
  return TimelinePicture(plan, figures, timeline).Draw();
}

}  // namespace phalanx::wire
