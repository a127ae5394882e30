// An incident as JSON and as a picture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/job/json.h"
#include "core/wire/incident_json.h"
#include "core/wire/incident_svg.h"
#include "tests/unit/core/wire/xml.h"

namespace phalanx::wire {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

v1::Incident AnIncident() {
  v1::Incident incident;
  incident.set_number(2);
  incident.set_kind(v1::Incident::LOSS);
  incident.set_from_epoch(1);
  incident.set_to_epoch(2);
  incident.mutable_detected()->set_seconds(1'700'000'000);
  incident.mutable_detected()->set_nanos(125'000'000);
  incident.mutable_cause()->set_cause("RankKilled");
  incident.mutable_cause()->set_rank(3);
  incident.mutable_cause()->set_node("b");
  incident.mutable_cause()->set_signal(9);
  incident.mutable_cause()->set_message("rank 3 on node b was killed");
  incident.set_device(1);
  incident.set_device_kind("gpu");
  incident.set_confidence(v1::Incident::CERTAIN);
  incident.add_evidence("rank 3 on node b <died> & \"more\"");
  incident.add_lost(3);
  v1::Incident::LayoutChange& change = *incident.add_changes();
  change.set_module("vision");
  change.set_replica(-1);
  change.set_from(4);
  change.set_to(3);
  incident.set_decided_step(180);
  incident.set_steps_redone(1);
  incident.set_summary("rank 3 (node b, GPU 1) <died>; back after 0.9 s");
  incident.set_next("nothing");
  const auto add = [&](const char* name, int64_t begin, int64_t end, int32_t slowest) {
    v1::Incident::Phase& phase = *incident.add_phases();
    phase.set_name(name);
    phase.set_begin(begin);
    if (end >= 0) phase.set_end(end);
    phase.set_slowest_rank(slowest);
  };
  add("detected", 0, 0, -1);
  add("planned", 0, 20'000, -1);
  add("state_moved", 25'000, 800'000, 2);
  add("safe_again", 25'000, -1, -1);
  return incident;
}

TEST(IncidentJsonTest, Incident_IsWhatScriptsRelyOn) {
  EXPECT_EQ(IncidentJson(AnIncident()),
            R"({
  "number": 2,
  "kind": "loss",
  "summary": "rank 3 (node b, GPU 1) <died>; back after 0.9 s",
  "detected": "2023-11-14T22:13:20.125000Z",
  "from_epoch": 1,
  "to_epoch": 2,
  "cause": {
    "name": "RankKilled",
    "rank": 3,
    "node": "b",
    "device": 1,
    "device_kind": "gpu",
    "signal": 9,
    "exit_code": 0,
    "message": "rank 3 on node b was killed"
  },
  "first_failing_rank": 3,
  "confidence": "certain",
  "evidence": [
    "rank 3 on node b <died> & \"more\""
  ],
  "next": "nothing",
  "lost": [
    3
  ],
  "returned": [],
  "changes": [
    "vision dp 4 -> 3"
  ],
  "decided_step": 180,
  "steps_redone": 1,
  "communicators": "new",
  "phases": [
    {
      "name": "detected",
      "begin": 0,
      "end": 0,
      "slowest_rank": null
    },
    {
      "name": "planned",
      "begin": 0,
      "end": 20000,
      "slowest_rank": null
    },
    {
      "name": "state_moved",
      "begin": 25000,
      "end": 800000,
      "slowest_rank": 2
    },
    {
      "name": "safe_again",
      "begin": 25000,
      "end": null,
      "slowest_rank": null,
      "reason": "not known yet"
    }
  ]
}
)");
}

TEST(IncidentJsonTest, ReturnAndStateWithoutASecondHome_AreSaid) {
  v1::Incident incident = AnIncident();
  incident.set_kind(v1::Incident::RETURN);
  incident.clear_cause();
  incident.set_not_safe("module vision: one home");
  const std::string json = IncidentJson(incident);
  EXPECT_THAT(json, HasSubstr("\"kind\": \"return\""));
  EXPECT_THAT(json, HasSubstr("\"cause\": null"));
  EXPECT_THAT(json, HasSubstr("\"first_failing_rank\": null"));
  EXPECT_THAT(json, HasSubstr("\"reason\": \"module vision: one home\""));
}

TEST(IncidentSvgTest, EachPhase_HasABarOnOneAxis) {
  const std::string text = IncidentSvg("job-7", AnIncident());
  const std::optional<Xml> svg = XmlReader::Read(text);
  ASSERT_TRUE(svg.has_value()) << text;
  EXPECT_EQ(svg->attributes.at("xmlns"), "http://www.w3.org/2000/svg");
  std::vector<const Xml*> rows = svg->All("g");
  ASSERT_THAT(rows, SizeIs(4));
  EXPECT_EQ(rows[0]->children[1].text, "detected");
  EXPECT_EQ(rows[2]->children[1].text, "state_moved");
  EXPECT_EQ(rows[2]->children[3].text, "775.000 ms, last rank 2");
  EXPECT_EQ(rows[3]->children[2].Class(), "s o") << "it has no end yet";
  EXPECT_EQ(svg->children[0].text,
            "job-7, incident 2: rank 3 (node b, GPU 1) <died>; back after 0.9 s");
  EXPECT_THAT(text, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(text, Not(HasSubstr("<script")));
}

// State may have all its homes by and by, and the next incident may come first.
TEST(IncidentSvgTest, JobThatDoesNotGetSafeInIt_IsSaidToBeSoWithTheReason) {
  v1::Incident incident = AnIncident();
  ASSERT_EQ(incident.phases(3).name(), "safe_again");
  ASSERT_FALSE(incident.phases(3).has_end());
  incident.set_not_safe("incident 3 came before");
  const std::string text = IncidentSvg("job-7", incident);
  EXPECT_THAT(text, HasSubstr(">not reached</text>"));
  EXPECT_THAT(text, HasSubstr("to no end: incident 3 came before</title>"));
  incident.clear_not_safe();
  EXPECT_THAT(IncidentSvg("job-7", incident), HasSubstr(">not known yet</text>"));
}

TEST(IncidentSvgTest, NothingKnownYet_IsAPictureAllTheSame) {
  EXPECT_TRUE(XmlReader::Read(IncidentSvg("job-7", v1::Incident())).has_value());
}

}  // namespace
}  // namespace phalanx::wire
