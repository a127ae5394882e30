#include "core/wire/incident_svg.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "core/wire/incident_json.h"
#include "core/wire/xml_text.h"

namespace phalanx::wire {
namespace {

// Pixels.
constexpr double kBorder = 12, kLeft = 168, kPlot = 620, kNote = 190, kHead = 92, kRow = 26,
                 kBar = 18;
constexpr size_t kSummaryMax = 150;  // characters

std::string Tenths(double value) { return absl::StrFormat("%.1f", value); }

// One unit for a picture.
struct SpanClock {
  double scale = 1e-6;  // of microseconds
  const char* unit = "s";
  std::string Show(double microseconds, int decimals = 3) const {
    return absl::StrFormat("%.*f %s", decimals, microseconds * scale, unit);
  }
};

SpanClock ClockOf(double span) {
  return span >= 1e6 ? SpanClock() : SpanClock{.scale = 1e-3, .unit = "ms"};
}

class IncidentPicture {
 public:
  IncidentPicture(const std::string& title, const v1::Incident& incident)
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
  SpanClock clock_;
};

std::string IncidentPicture::Style() const {
  return "<style>text{font:11px sans-serif;fill:#24292f}.p{fill:#ffffff}.l{fill:#f3f5f7}"
         ".a{stroke:#c4cad0;stroke-width:1}.h{font-size:14px;font-weight:bold}.x{text-anchor:"
         "middle}"
         ".r{text-anchor:end}.b{fill:#1f6fb2}.d{fill:#a1303f}.s{fill:#2c7a3f}.o{fill-opacity:.35}"
         "@media(prefers-color-scheme:dark){.p{fill:#0d1117}.l{fill:#21262d}.a{stroke:#484f58}"
         "text{fill:#e6edf3}.b{fill:#58a6ff}.d{fill:#f47067}.s{fill:#57ab5a}}</style>\n";
}

// A line and a time at every round number, two to ten of them.
std::string IncidentPicture::Axis() const {
  const double span = span_ * clock_.scale;
  double tick = std::pow(10, std::floor(std::log10(span)));
  if (span / tick < 2) tick /= 5;
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(tick) + 1e-9)));
  const double foot = kHead + kRow * static_cast<double>(phases_.size());
  std::string text;
  for (int i = 0; i * tick <= span; ++i) {
    const std::string x = Tenths(X(i * tick / clock_.scale));
    absl::StrAppend(&text, "<path class=\"a\" d=\"M", x, " ", kHead - 6, "V", foot, "\"/>",
                    "<text class=\"x\" x=\"", x, "\" y=\"", kHead - 10, "\">",
                    absl::StrFormat("%.*f", i == 0 ? 0 : decimals, i * tick), "</text>\n");
  }
  return absl::StrCat(text, "<text class=\"r\" x=\"", kLeft - 8, "\" y=\"", kHead - 10, "\">",
                      clock_.unit, "</text>\n");
}

std::string IncidentPicture::Bar(const v1::Incident::Phase& phase, double y) const {
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
      "<g class=\"phase\" transform=\"translate(0 ", Tenths(y), ")\"><path class=\"l\" d=\"M",
      kLeft, " 0h", kPlot, "v", kBar, "H", kLeft, "z\"/><text class=\"r\" x=\"", kLeft - 8,
      "\" y=\"13\">", XmlText(phase.name()), "</text><path class=\"", colour,
      phase.has_end() ? "" : " o", "\" d=\"M", Tenths(X(begin)), " 0h", Tenths(width), "v", kBar,
      "h-", Tenths(width), "z\"><title>", XmlText(told), "</title></path><text x=\"",
      kLeft + kPlot + 8, "\" y=\"13\">", XmlText(note), "</text></g>\n");
}

std::string IncidentPicture::Draw() const {
  const double foot = kHead + kRow * static_cast<double>(phases_.size()) + kBorder;
  const std::string width = Tenths(kLeft + kPlot + kNote), height = Tenths(foot);
  const std::string heading = XmlText(absl::StrCat(title_, ", incident ", incident_.number()));
  std::string summary = incident_.summary();
  const std::string whole = XmlText(summary);
  if (summary.size() > kSummaryMax) {
    size_t cut = kSummaryMax - 3;
    while (cut > 0 && (static_cast<unsigned char>(summary[cut]) & 0xC0) == 0x80) --cut;
    summary = absl::StrCat(summary.substr(0, cut), "...");
  }
  std::string svg = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"",
      width, "\" height=\"", height, "\" role=\"img\">\n<title>", heading, ": ", whole,
      "</title>\n", Style(), "<path class=\"p\" d=\"M0 0H", width, "V", height, "H0z\"/>\n",
      "<text class=\"h\" x=\"", kBorder, "\" y=\"24\">", heading, "</text>\n<text x=\"", kBorder,
      "\" y=\"44\">", XmlText(summary), "<title>", whole, "</title></text>\n", Axis());
  double y = kHead;
  for (const v1::Incident::Phase* phase : phases_) {
    absl::StrAppend(&svg, Bar(*phase, y));
    y += kRow;
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace

std::string IncidentSvg(const std::string& title, const v1::Incident& incident) {
  return IncidentPicture(title, incident).Draw();
}

}  // namespace phalanx::wire
