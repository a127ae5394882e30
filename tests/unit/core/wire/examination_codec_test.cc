#include "core/wire/examination_codec.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace phalanx::wire {
namespace {

using job::Finding;
using Verdict = Finding::Verdict;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

v1::MachineFinding* Add(v1::MachineExamination& to, const std::string& check) {
  v1::MachineFinding* finding = to.add_findings();
  finding->set_check(check);
  finding->set_verdict(v1::MachineFinding::VERDICT_WARNING);
  return finding;
}

TEST(ExaminationCodecTest, Findings_AreTheSameThereAndBack) {
  const std::vector<Finding> findings = {
      {.check = "driver", .verdict = Verdict::kSkipped, .found = "no GPU"},
      {.check = "clock", .found = "kept"},
      {.check = "limits", .verdict = Verdict::kWarning, .found = "open files 1", .next = "more"},
      {.check = "folders", .verdict = Verdict::kProblem, .found = "none"}};
  v1::MachineExamination message;
  ToProto(findings, message.mutable_findings());
  EXPECT_EQ(message.findings(3).verdict(), v1::MachineFinding::VERDICT_PROBLEM);
  EXPECT_EQ(FromProto(message.findings()), findings);
}

TEST(ExaminationCodecTest, TenThousandChecks_AreTheFirstFew) {
  v1::MachineExamination message;
  for (int i = 0; i < 10'000; ++i) Add(message, absl::StrCat("check-", i));
  const std::vector<Finding> findings = FromProto(message.findings());
  ASSERT_EQ(findings.size(), static_cast<size_t>(job::kFindingsMax));
  EXPECT_EQ(findings.back().check, "check-19");
}

TEST(ExaminationCodecTest, TextsOfAMebibyte_AreCut) {
  v1::MachineExamination message;
  v1::MachineFinding* finding = Add(message, "limits");
  finding->set_found(std::string(1 << 20, 'x'));
  finding->set_next(std::string(1 << 20, '\x01'));  // each of which is written out as four
  Add(message, std::string(1 << 20, 'c'));
  const std::vector<Finding> findings = FromProto(message.findings());
  ASSERT_EQ(findings.size(), 1u) << "a name is not cut to another check's";
  EXPECT_LE(findings[0].found.size(), job::kFoundBytesMax);
  EXPECT_LE(findings[0].next.size(), job::kNextBytesMax);
  v1::NodeExamination again;
  ToProto(job::NodeExamination{.findings = findings}, &again);
  EXPECT_EQ(FromProto(again).findings, findings) << "what was cut once stays as it is";
}

TEST(ExaminationCodecTest, TextsOfOthers_AreOnOneLineAndObeyedByNoTerminal) {
  v1::MachineExamination message;
  Add(message, "limits")->set_found("a\nnode limits  ok\x1b[2J");
  EXPECT_EQ(FromProto(message.findings()).at(0).found, "a\\nnode limits  ok\\x1b[2J");
}

TEST(ExaminationCodecTest, WhatNobodyCanSay_IsPassedOver) {
  v1::MachineExamination message;
  Add(message, "");
  Add(message, "a\nb");
  Add(message, "ports")->set_verdict(v1::MachineFinding::VERDICT_UNSPECIFIED);
  Add(message, "ports")->set_verdict(static_cast<v1::MachineFinding::Verdict>(77));
  Add(message, "ports")->set_found("first");
  Add(message, "ports")->set_found("second");
  const std::vector<Finding> findings = FromProto(message.findings());
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].found, "first");
}

TEST(ExaminationCodecTest, ClockOfANode_IsKnownWithinTheRoundTrip) {
  v1::MachineExamination message;
  message.mutable_sent()->set_seconds(absl::ToUnixSeconds(kNow) + 90);
  message.set_round_trip_seconds(0.5);
  const job::NodeExamination examination = FromProto(message, kNow);
  EXPECT_EQ(examination.received, kNow);
  EXPECT_EQ(examination.ahead_min, absl::Seconds(90));
  EXPECT_EQ(examination.ahead_max, absl::Seconds(90.5));
  v1::NodeExamination told;
  ToProto(examination, &told);
  EXPECT_EQ(told.clock_ahead_min_seconds(), 90);
  EXPECT_EQ(told.clock_ahead_max_seconds(), 90.5);
  EXPECT_EQ(FromProto(told), examination);
}

TEST(ExaminationCodecTest, ClocksThatNobodyCanHave_AreFarApart) {
  for (const int64_t seconds :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    v1::MachineExamination message;
    message.mutable_sent()->set_seconds(seconds);
    message.set_round_trip_seconds(std::numeric_limits<double>::quiet_NaN());
    const job::NodeExamination examination = FromProto(message, kNow);
    EXPECT_EQ(examination.ahead_min, examination.ahead_max);
    EXPECT_EQ(absl::AbsDuration(examination.ahead_min), absl::Hours(24 * 365 * 100));
  }
}

}  // namespace
}  // namespace phalanx::wire
