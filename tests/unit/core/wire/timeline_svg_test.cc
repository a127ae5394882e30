#include "core/wire/timeline_svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/specs.h"
#include "tests/unit/core/wire/pictured.h"
#include "tests/unit/core/wire/xml.h"

namespace phalanx::wire {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::NoArchitecture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string Draw(const Pictured& pictured) {
  return TimelineSvg(
      pictured.plan,
      {.bubble = pictured.preview.bubble, .lower_bound = pictured.preview.lower_bound},
      pictured.preview.timeline);
}

Xml MustRead(const std::string& svg) {
  const auto root = XmlReader::Read(svg);
  EXPECT_TRUE(root.has_value()) << svg.substr(0, 2000);
  return root.value_or(Xml());
}

std::vector<const Xml*> LanesOf(const Xml& svg) {
  std::vector<const Xml*> lanes = svg.All("g");
  std::erase_if(lanes, [](const Xml* group) { return group->Class() != "lane"; });
  return lanes;
}

// What the legend says, entry by entry.
std::vector<std::string> LegendOf(const Xml& svg) {
  std::vector<std::string> entries;
  for (const Xml* group : svg.All("g")) {
    if (group->Class().empty()) entries.push_back(group->children.back().text);
  }
  return entries;
}

// Where each text begins and ends, in pixels, with room for wide fonts.
void FindTexts(const Xml& element, double shift, std::vector<std::pair<double, double>>* spans) {
  const auto transform = element.attributes.find("transform");
  if (transform != element.attributes.end()) shift += std::stod(transform->second.substr(10));
  if (element.name == "text") {
    const std::string kind = element.Class();
    const std::string& text =
        element.children.empty() || !element.text.empty() ? element.text : element.children[0].text;
    const double width = (kind == "h" ? 9.2 : 6.3) * static_cast<double>(text.size());
    const double x = std::stod(element.attributes.at("x")) + shift;
    const double part = kind == "r" ? 1 : kind == "x" || kind[0] == 'n' ? 0.5 : 0;
    spans->emplace_back(x - part * width, x + (1 - part) * width);
  }
  for (const Xml& child : element.children) FindTexts(child, shift, spans);
}

std::string LabelOf(const Xml& lane) { return lane.children[1].children[0].text; }

// Boxes of a lane are the paths with a tooltip.
std::vector<const Xml*> BoxesOf(const Xml& root) {
  std::vector<const Xml*> boxes = root.All("path");
  std::erase_if(boxes, [](const Xml* path) { return path->children.empty(); });
  return boxes;
}

// Where a box begins and ends, in pixels; a gap of half a pixel follows.
std::pair<double, double> SpanOf(const Xml& box) {
  const std::string& d = box.attributes.at("d");
  const double begin = std::stod(d.substr(1));
  return {begin, begin + std::stod(d.substr(d.find('h') + 1))};
}

size_t PassesOf(const Pictured& pictured) {
  return static_cast<size_t>(std::count_if(
      pictured.preview.timeline.begin(), pictured.preview.timeline.end(), [](const auto& timed) {
        return schedule::IsPass(timed.instruction.op) && timed.end > timed.begin;
      }));
}

TEST(TimelineSvgTest, Examples_HaveALaneAClassAndABoxAPass) {
  for (const std::string& file : Examples()) {
    SCOPED_TRACE(file);
    const Pictured pictured = MustPicture(MustReadExample(file));
    std::set<Rank> ranks;
    for (const auto& timed : pictured.preview.timeline) ranks.insert(timed.rank);
    const Xml svg = MustRead(Draw(pictured));
    EXPECT_EQ(svg.attributes.at("xmlns"), "http://www.w3.org/2000/svg");
    EXPECT_THAT(LanesOf(svg), SizeIs(ranks.size()));
    EXPECT_THAT(BoxesOf(svg), SizeIs(PassesOf(pictured)));
    // A gigabyte of picture helps nobody, and nothing in it comes from elsewhere.
    EXPECT_LT(Draw(pictured).size(), 200'000u);
    EXPECT_TRUE(svg.All("script").empty() && svg.All("image").empty());
  }
}

TEST(TimelineSvgTest, Lanes_TellFirstRankAndHowManyAreAlike) {
  const Xml svg = MustRead(Draw(MustPicture(EncoderBesideLanguage())));
  const auto lanes = LanesOf(svg);
  ASSERT_THAT(lanes, SizeIs(3));
  EXPECT_EQ(LabelOf(*lanes[0]), "rank 0 x 4: vision stage 0");
  EXPECT_EQ(LabelOf(*lanes[1]), "rank 4 x 2: language stage 0");
  EXPECT_EQ(LabelOf(*lanes[2]), "rank 6 x 2: language stage 1");
}

TEST(TimelineSvgTest, Boxes_OfALane_FollowOneAnotherAndEndWithTheStep) {
  const Pictured pictured = MustPicture(EncoderBesideLanguage());
  const Xml svg = MustRead(Draw(pictured));
  double end = 0, left = 1e9;
  for (const Xml* lane : LanesOf(svg)) {
    double busy_to = 0;
    for (const Xml* box : BoxesOf(*lane)) {
      const auto [from, to] = SpanOf(*box);
      EXPECT_GE(from, busy_to - 0.02);
      busy_to = to;
      left = std::min(left, from);
    }
    end = std::max(end, busy_to);
  }
  // The encoder's first forward begins the step; the paper of a lane spans all of it.
  const auto [from, to] = SpanOf(LanesOf(svg)[0]->children[0]);
  EXPECT_NEAR(left, from, 0.02);
  EXPECT_NEAR(end, to - 0.5, 0.02);
}

TEST(TimelineSvgTest, Tooltip_NamesPassAndTimes) {
  const Pictured pictured =
      MustPicture(AJob().Module("language", NoArchitecture(4), {.pp = 2}).Batch(2, 1));
  const Xml svg = MustRead(Draw(pictured));
  const auto boxes = BoxesOf(*LanesOf(svg)[0]);
  EXPECT_EQ(boxes[0]->children[0].text, "F language 0 m0: 0.00 layer passes to 2.00 layer passes");
}

TEST(TimelineSvgTest, Title_HasScheduleStepBubbleAndBound) {
  Pictured pictured =
      MustPicture(AJob().Module("language", NoArchitecture(2), {.pp = 2}).Batch(3, 1));
  pictured.preview.lower_bound = 0.125;
  const Xml svg = MustRead(Draw(pictured));
  ASSERT_EQ(svg.children[0].name, "title");
  // (2 - 1 + 3 microbatches) x 3 layer passes; one of four places in time is empty.
  EXPECT_EQ(svg.children[0].text,
            absl::StrCat(pictured.plan.spec.name,
                         ": 1f1b, 3 microbatches in 12.00 layer passes, bubble 25.0 % (lower "
                         "bound 12.5 %)"));
}

TEST(TimelineSvgTest, Colours_TellModulesAndKindsApart) {
  const Xml svg = MustRead(Draw(MustPicture(EncoderBesideLanguage())));
  const std::string style = svg.All("style")[0]->text;
  std::set<std::string> classes, colours;
  for (const Xml* box : BoxesOf(svg)) classes.insert(box->Class());
  EXPECT_THAT(classes, ElementsAre("m0k0", "m0k1", "m0k2", "m1k0", "m1k1", "m1k2"));
  for (const std::string& name : classes) {
    const size_t at = style.find(absl::StrCat(".", name, "{fill:"));
    ASSERT_NE(at, std::string::npos);
    colours.insert(style.substr(at + 12, 7));
  }
  EXPECT_EQ(colours.size(), classes.size());
  EXPECT_THAT(style, HasSubstr("prefers-color-scheme:dark"));
}

TEST(TimelineSvgTest, Numbers_StandInWideBoxesOnly) {
  const Xml wide = MustRead(Draw(MustPicture(EncoderBesideLanguage())));
  std::set<std::string> numbers;
  for (const Xml* text : wide.All("text")) {
    if (absl::StartsWith(text->Class(), "n ")) numbers.insert(text->text);
  }
  EXPECT_THAT(numbers, ElementsAre("0", "1", "2"));
  const Xml narrow = MustRead(
      Draw(MustPicture(AJob().Module("language", NoArchitecture(2), {.pp = 2}).Batch(480, 1))));
  for (const Xml* text : narrow.All("text")) EXPECT_FALSE(absl::StartsWith(text->Class(), "n "));
}

TEST(TimelineSvgTest, Legend_TellsColoursNumbersAndChunks) {
  EXPECT_THAT(LegendOf(MustRead(Draw(MustPicture(EncoderBesideLanguage())))),
              ElementsAre("vision forward", "vision backward, inputs", "vision backward, weights",
                          "language forward", "language backward, inputs",
                          "language backward, weights", "microbatch"));
  job::JobSpec spec = AJob().Module("language", NoArchitecture(6), {.pp = 2}).Batch(4, 1);
  spec.schedule = {.name = job::ScheduleName::kInterleaved, .chunks = 3};
  EXPECT_THAT(LegendOf(MustRead(Draw(MustPicture(spec)))),
              ElementsAre("language forward", "language backward", "microbatch",
                          "chunks 1 to 2, the higher the later"));
}

TEST(TimelineSvgTest, Texts_StayOnThePaper) {
  std::vector<Pictured> pictures;
  for (const std::string& file : Examples()) pictures.push_back(MustPicture(MustReadExample(file)));
  job::JobSpec lengthy =
      AJob()
          .Module("a-vision-encoder-of-a-name", ClipVision(), {.dp = 4})
          .Module("a-language-model-of-a-name", Llama(), {.pp = 4})
          .Edge("a-vision-encoder-of-a-name", "a-language-model-of-a-name", {.projector = 32})
          .Batch(2, 1);
  lengthy.name = std::string(63, 'm');
  lengthy.modules[1].offset = 0;
  pictures.push_back(MustPicture(lengthy));
  for (const Pictured& pictured : pictures) {
    SCOPED_TRACE(pictured.plan.spec.name);
    const Xml svg = MustRead(Draw(pictured));
    const double width = std::stod(svg.attributes.at("width"));
    std::vector<std::pair<double, double>> spans;
    FindTexts(svg, 0, &spans);
    EXPECT_GT(spans.size(), 8u);
    for (const auto& [begin, end] : spans) {
      EXPECT_GE(begin, 0);
      EXPECT_LE(end, width);
    }
  }
}

TEST(TimelineSvgTest, IdleDevices_AreCountedBelow) {
  job::JobSpec spec = EncoderBesideLanguage();
  spec.modules[1].offset = 5;
  spec.resources.devices = spec.World();
  EXPECT_THAT(Draw(MustPicture(spec)), HasSubstr(">1 device is idle. <"));
}

TEST(TimelineSvgTest, LargePlan_IsBoundedAndSaysWhatIsLeftOut) {
  const Pictured deep =
      MustPicture(AJob().Module("language", NoArchitecture(80), {.pp = 80}).Batch(4, 1));
  const std::string svg = Draw(deep);
  EXPECT_THAT(LanesOf(MustRead(svg)), SizeIs(kLanesMax));
  EXPECT_THAT(svg, HasSubstr("16 of 80 lanes are left out."));
  const Pictured lengthy =
      MustPicture(AJob().Module("language", NoArchitecture(2), {.pp = 2}).Batch(2000, 1));
  const Xml cut = MustRead(Draw(lengthy));
  for (const Xml* lane : LanesOf(cut)) EXPECT_LE(BoxesOf(*lane).size(), kDrawnPassesMax);
  EXPECT_THAT(Draw(lengthy), HasSubstr(" of 6003.00 layer passes are drawn."));
  EXPECT_THAT(Draw(MustPicture(EncoderBesideLanguage())), Not(HasSubstr("left out")));
}

TEST(TimelineSvgTest, Timeline_OfAllRanks_GivesTheSameLanes) {
  Pictured pictured = MustPicture(EncoderBesideLanguage());
  const std::string preview = Draw(pictured);
  const auto programs = schedule::BuildStep(pictured.plan);
  ASSERT_TRUE(programs.ok()) << programs.status();
  pictured.preview.timeline =
      schedule::Simulate(pictured.plan, *programs, schedule::CostFromShapes(pictured.plan))
          .timeline;
  EXPECT_EQ(Draw(pictured), preview);
  EXPECT_EQ(Draw(pictured), Draw(pictured));
}

TEST(TimelineSvgTest, Timeline_WithoutPasses_IsStillAPicture) {
  Pictured pictured = MustPicture(EncoderBesideLanguage());
  pictured.preview.timeline.clear();
  EXPECT_THAT(LanesOf(MustRead(Draw(pictured))), SizeIs(0));
}

}  // namespace
}  // namespace phalanx::wire
