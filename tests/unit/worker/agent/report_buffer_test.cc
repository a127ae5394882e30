#include "worker/agent/machine/report_buffer.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;

SendReport AReport(std::string text, int64_t job = 1, int64_t epoch = 1) {
  return {JobId{job}, Epoch{epoch}, 0, std::move(text)};
}

std::vector<std::string> TakeAll(ReportBuffer& buffer) {
  std::vector<std::string> texts;
  while (auto report = buffer.Next()) texts.push_back(std::get<std::string>(report->report));
  return texts;
}

TEST(ReportBufferTest, StepReports_BeyondTheBound_LoseTheOldest) {
  ReportBuffer buffer;
  buffer.Add(AReport("ready"), ReportKind::kOther);
  for (size_t i = 0; i <= ReportBuffer::kStepReportsMax; ++i) {
    buffer.Add(AReport(absl::StrCat(i)), ReportKind::kStep);
  }
  const std::vector<std::string> texts = TakeAll(buffer);
  ASSERT_EQ(texts.size(), ReportBuffer::kStepReportsMax + 1);
  EXPECT_EQ(texts[0], "ready");
  EXPECT_EQ(texts[1], "1");
}

TEST(ReportBufferTest, OtherReports_BeyondTheBound_LoseTheOldest) {
  ReportBuffer buffer;
  buffer.Add(AReport("step"), ReportKind::kStep);
  for (size_t i = 0; i <= ReportBuffer::kReportsMax; ++i) {
    buffer.Add(AReport(absl::StrCat(i)), ReportKind::kOther);
  }
  const std::vector<std::string> texts = TakeAll(buffer);
  ASSERT_EQ(texts.size(), ReportBuffer::kReportsMax + 1);
  EXPECT_EQ(texts[0], "step");
  EXPECT_EQ(texts[1], "1");
}

TEST(ReportBufferTest, ReportOnItsWay_IsNeverDropped) {
  ReportBuffer buffer;
  buffer.Add(AReport("first"), ReportKind::kStep);
  ASSERT_TRUE(buffer.Next().has_value());
  for (size_t i = 0; i < ReportBuffer::kStepReportsMax; ++i) {
    buffer.Add(AReport(absl::StrCat(i)), ReportKind::kStep);
  }
  buffer.ConfirmWritten();  // of "first", and of nothing else
  EXPECT_EQ(buffer.unwritten(), ReportBuffer::kStepReportsMax - 1);
  buffer.Rewind();
  EXPECT_EQ(std::get<std::string>(buffer.Next()->report), "first");
}

TEST(ReportBufferTest, Rewind_HandsOutAgain_WhatWasWrittenAndWhatWasNot) {
  ReportBuffer buffer;
  buffer.Add(AReport("a"), ReportKind::kOther);
  buffer.Add(AReport("b"), ReportKind::kEvent);
  buffer.Add(AReport("c"), ReportKind::kEvent);
  TakeAll(buffer);
  buffer.ConfirmWritten();
  buffer.ConfirmWritten();
  buffer.Rewind();
  EXPECT_THAT(TakeAll(buffer), ElementsAre("a", "c"));
}

TEST(ReportBufferTest, Retire_DropsWritten_AndKeepsUnwrittenUntilTheyAreWritten) {
  ReportBuffer buffer;
  buffer.Add(AReport("a"), ReportKind::kOther);
  buffer.Add(AReport("b"), ReportKind::kOther);
  buffer.Add(AReport("other job", 2), ReportKind::kOther);
  buffer.Add(AReport("newer epoch", 1, 2), ReportKind::kOther);
  buffer.Next();
  buffer.ConfirmWritten();
  buffer.Retire(JobId{1}, Epoch{1});
  buffer.Rewind();
  EXPECT_THAT(TakeAll(buffer), ElementsAre("b", "other job", "newer epoch"));
  for (int i = 0; i < 3; ++i) buffer.ConfirmWritten();
  buffer.Rewind();
  EXPECT_THAT(TakeAll(buffer), ElementsAre("other job", "newer epoch"));
}

}  // namespace
}  // namespace phalanx::agent
