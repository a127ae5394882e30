#include "core/wire/incident_svg.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "core/wire/incident_json.h"

namespace phalanx::wire {
namespace {

// Pixels.
constexpr double kMargin = 12, kLeft = 168, kPlot = 620, kNote = 190, kTop = 92, kRow = 26,
                 kBar = 18;
constexpr size_t kSummaryMax = 150;  // characters

std::string Escape(absl::string_view text) {
  std::string plain(text);
  // XML has no place for control characters.
  std::replace_if(
      plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return absl::StrReplaceAll(plain,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Pixels(double value) { return absl::StrFormat("%.1f", value); }

// One unit for a picture.
struct Clock {
  double scale = 1e-6;  // of microseconds
  const char* unit = "s";
  std::string Show(double microseconds, int decimals = 3) const {
    return absl::StrFormat("%.*f %s", decimals, microseconds * scale, unit);
  }
};

Clock ClockOf(double span) { return span >= 1e6 ? Clock() : Clock{.scale = 1e-3, .unit = "ms"}; }

class Picture {
 public:
  Picture(const std::string& title, const v1::Incident& incident)
      : title_(title), incident_(incident) {
    for (const v1::Incident::Phase& phase : incident.phases()) {
      if (!phase.has_begin()) continue;
      phases_.push_back(&phase);
      span_ = std::max({span_, static_cast<double>(phase.begin()),
                        phase.has_end() ? static_cast<double>(phase.end()) : 0});
    }
    clock_ = ClockOf(span_);
    span_ *= 1.04;  // room behind the last end
  }

  std::string Draw() const;

 private:
  double X(double time) const { return kLeft + kPlot * time / span_; }
  std::string Style() const;
  std::string Axis() const;
  std::string Bar(const v1::Incident::Phase& phase, double y) const;

  const std::string& title_;
  const v1::Incident& incident_;
  std::vector<const v1::Incident::Phase*> phases_;  // those that began
  double span_ = 1;
  Clock clock_;
};

std::string Picture::Style() const {
  return "<style>text{font:11px sans-serif;fill:#24292f}.p{fill:#ffffff}.l{fill:#f3f5f7}"
         ".a{stroke:#c4cad0;stroke-width:1}.h{font-size:14px;font-weight:bold}.x{text-anchor:"
         "middle}"
         ".r{text-anchor:end}.b{fill:#1f6fb2}.d{fill:#a1303f}.s{fill:#2c7a3f}.o{fill-opacity:.35}"
         "@media(prefers-color-scheme:dark){.p{fill:#0d1117}.l{fill:#21262d}.a{stroke:#484f58}"
         "text{fill:#e6edf3}.b{fill:#58a6ff}.d{fill:#f47067}.s{fill:#57ab5a}}</style>\n";
}

// A line and a time at every round number, two to ten of them.
std::string Picture::Axis() const {
  const double span = span_ * clock_.scale;
  double tick = std::pow(10, std::floor(std::log10(span)));
  if (span / tick < 2) tick /= 5;
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(tick) + 1e-9)));
  const double foot = kTop + kRow * static_cast<double>(phases_.size());
  std::string text;
  for (int i = 0; i * tick <= span; ++i) {
    const std::string x = Pixels(X(i * tick / clock_.scale));
    absl::StrAppend(&text, "<path class=\"a\" d=\"M", x, " ", kTop - 6, "V", foot, "\"/>",
                    "<text class=\"x\" x=\"", x, "\" y=\"", kTop - 10, "\">",
                    absl::StrFormat("%.*f", i == 0 ? 0 : decimals, i * tick), "</text>\n");
  }
  return absl::StrCat(text, "<text class=\"r\" x=\"", kLeft - 8, "\" y=\"", kTop - 10, "\">",
                      clock_.unit, "</text>\n");
}

std::string Picture::Bar(const v1::Incident::Phase& phase, double y) const {
  const auto begin = static_cast<double>(phase.begin());
  const double end = phase.has_end() ? static_cast<double>(phase.end()) : span_;
  const double width = std::max(1.5, X(end) - X(begin));
  const char* colour = phase.name() == "detected" ? "d" : phase.name() == "safe_again" ? "s" : "b";
  const bool reasoned = phase.name() == "safe_again" && !incident_.not_safe().empty();
  std::string note = phase.has_end() ? clock_.Show(end - begin)
                     : reasoned      ? "not reached"  // why is in its title
                                     : "not known yet";
  if (phase.slowest_rank() >= 0) absl::StrAppend(&note, ", last rank ", phase.slowest_rank());
  const std::string told = absl::StrCat(
      phase.name(), ": ", clock_.Show(begin), " to ",
      phase.has_end() ? clock_.Show(end)
                      : absl::StrCat("no end", reasoned ? ": " + incident_.not_safe() : ""));
  return absl::StrCat(
      "<g class=\"phase\" transform=\"translate(0 ", Pixels(y), ")\"><path class=\"l\" d=\"M",
      kLeft, " 0h", kPlot, "v", kBar, "H", kLeft, "z\"/><text class=\"r\" x=\"", kLeft - 8,
      "\" y=\"13\">", Escape(phase.name()), "</text><path class=\"", colour,
      phase.has_end() ? "" : " o", "\" d=\"M", Pixels(X(begin)), " 0h", Pixels(width), "v", kBar,
      "h-", Pixels(width), "z\"><title>", Escape(told), "</title></path><text x=\"",
      kLeft + kPlot + 8, "\" y=\"13\">", Escape(note), "</text></g>\n");
}

std::string Picture::Draw() const {
  const double foot = kTop + kRow * static_cast<double>(phases_.size()) + kMargin;
  const std::string width = Pixels(kLeft + kPlot + kNote), height = Pixels(foot);
  const std::string heading = Escape(absl::StrCat(title_, ", incident ", incident_.number()));
  std::string summary = incident_.summary();
  const std::string whole = Escape(summary);
  if (summary.size() > kSummaryMax) {
    size_t cut = kSummaryMax - 3;
    while (cut > 0 && (static_cast<unsigned char>(summary[cut]) & 0xC0) == 0x80) --cut;
    summary = absl::StrCat(summary.substr(0, cut), "...");
  }
  std::string svg = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"",
      width, "\" height=\"", height, "\" role=\"img\">\n<title>", heading, ": ", whole,
      "</title>\n", Style(), "<path class=\"p\" d=\"M0 0H", width, "V", height, "H0z\"/>\n",
      "<text class=\"h\" x=\"", kMargin, "\" y=\"24\">", heading, "</text>\n<text x=\"", kMargin,
      "\" y=\"44\">", Escape(summary), "<title>", whole, "</title></text>\n", Axis());
  double y = kTop;
  for (const v1::Incident::Phase* phase : phases_) {
    absl::StrAppend(&svg, Bar(*phase, y));
    y += kRow;
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace

std::string IncidentSvg(const std::string& title, const v1::Incident& incident) {
  return Picture(title, incident).Draw();
}

}  // namespace phalanx::wire
