#include "coordinator/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/build/build_info.h"
#include "tests/support/files.h"
#include "tests/support/tools.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What the text exposition format 0.0.4 says, read by its rules alone.
struct Exposition {
  std::map<std::string, std::string> types;  // of families
  std::map<std::string, double> samples;     // by name and labels, as written
  std::vector<std::string> errors;
};

// The family that a sample is of, or "".
std::string FamilyOf(const Exposition& exposition, absl::string_view name) {
  if (exposition.types.contains(std::string(name))) return std::string(name);
  for (absl::string_view suffix : {"_bucket", "_sum", "_count"}) {
    absl::string_view base = name;
    if (!absl::ConsumeSuffix(&base, suffix)) continue;
    const auto found = exposition.types.find(std::string(base));
    if (found != exposition.types.end() && found->second == "histogram") return found->first;
  }
  return "";
}

// Behind the labels, which begin with '{': npos where they do not end.
size_t EndOfLabels(absl::string_view text) {
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && text[i] == '}') {
      return i + 1;
    }
  }
  return absl::string_view::npos;
}

Exposition Parse(const std::string& text) {
  Exposition exposition;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "#")) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
      if (words.size() != 4 || (words[1] != "HELP" && words[1] != "TYPE")) {
        exposition.errors.push_back(std::string(line));
      } else if (words[1] == "TYPE" && !exposition.types.emplace(words[2], words[3]).second) {
        exposition.errors.push_back(absl::StrCat("typed twice: ", words[2]));
      }
      continue;
    }
    const size_t end_of_name = line.find_first_of("{ ");
    size_t end = end_of_name;
    if (end != line.npos && line[end] == '{') {
      const size_t length = EndOfLabels(line.substr(end));
      end = length == line.npos ? line.npos : end + length;
    }
    double value = 0;
    if (end == line.npos || FamilyOf(exposition, line.substr(0, end_of_name)).empty() ||
        !absl::SimpleAtod(absl::StripAsciiWhitespace(line.substr(end)), &value) ||
        !exposition.samples.emplace(line.substr(0, end), value).second) {
      exposition.errors.push_back(std::string(line));
    }
  }
  return exposition;
}

JobGauges Running(const std::string& name) {
  return {.job = name,
          .step = 12,
          .steps = 300,
          .loss = 2.5,
          .tokens_per_second = 4096,
          .step_seconds = 0.25,
          .epoch = 2};
}

// One of each.
void Fill(Metrics& metrics) {
  metrics.Rpc("GetJob", absl::StatusCode::kOk, absl::Milliseconds(2));
  metrics.Commit(true, 3, absl::Milliseconds(2));
  metrics.Commit(false, 0, absl::Milliseconds(2));
  metrics.JobStarted(absl::Seconds(1));
  metrics.JobRunning(absl::Seconds(1));
  metrics.JobEnded(job::JobPhase::kFailed, job::FailureKind::kNodeLost);
  metrics.Step(1024, 0.5);
  metrics.IncidentBegun("loss", "RankKilled");
  metrics.IncidentPhase("first_step", absl::Milliseconds(700));
  metrics.StepsRedone(1);
  metrics.Detected("RankKilled", absl::Milliseconds(30));
  metrics.Restarted("RankKilled", "standby");
  metrics.Ran(absl::Seconds(4), absl::Seconds(3));
  metrics.StoreBytes(4096);
  metrics.LateHeartbeat();
  metrics.Planned(absl::Milliseconds(20));
}

TEST(MetricsTest, Text_IsAsTheExpositionFormatSays) {
  Metrics metrics;
  Fill(metrics);
  const Exposition exposition =
      Parse(metrics.Text({.serving = true,
                          .certificates = {{"tls", absl::FromUnixSeconds(1796000000)}},
                          .running = {Running("a")}}));
  EXPECT_THAT(exposition.errors, ::testing::IsEmpty());
  EXPECT_EQ(exposition.types.at("phalanx_recovery_seconds"), "histogram");
  const auto& samples = exposition.samples;
  EXPECT_EQ(samples.at("phalanx_certificate_expiration_timestamp_seconds{certificate=\"tls\"}"),
            1796000000);
  EXPECT_EQ(samples.at("phalanx_serving"), 1);
  EXPECT_EQ(samples.at("phalanx_tokens_total"), 1024);
  EXPECT_EQ(samples.at("phalanx_step_seconds_total"), 0.5);
  EXPECT_EQ(samples.at("phalanx_steps_redone_total"), 1);
  EXPECT_EQ(samples.at("phalanx_goodput_ratio"), 0.75);
  EXPECT_EQ(samples.at("phalanx_store_bytes"), 4096);
  EXPECT_EQ(samples.at("phalanx_heartbeats_late_total"), 1);
  EXPECT_EQ(samples.at("phalanx_restarts_total{action=\"standby\",cause=\"RankKilled\"}"), 1);
  EXPECT_EQ(samples.at("phalanx_detection_seconds_count{cause=\"RankKilled\"}"), 1);
  EXPECT_EQ(samples.at("phalanx_incidents_total{cause=\"RankKilled\",kind=\"loss\"}"), 1);
  EXPECT_EQ(samples.at("phalanx_recovery_seconds_bucket{phase=\"first_step\",le=\"0.5\"}"), 0);
  EXPECT_EQ(samples.at("phalanx_recovery_seconds_bucket{phase=\"first_step\",le=\"1\"}"), 1);
}

TEST(MetricsTest, Names_CarryTheirUnits) {
  Metrics metrics;
  Fill(metrics);
  const Exposition exposition = Parse(metrics.Text({.running = {Running("a")}}));
  EXPECT_GT(exposition.types.size(), 20u);
  for (const auto& [name, type] : exposition.types) {
    EXPECT_TRUE(absl::StartsWith(name, "phalanx_")) << name;
    EXPECT_EQ(absl::EndsWith(name, "_total"), type == "counter") << name;
    EXPECT_TRUE(type != "histogram" || absl::EndsWith(name, "_seconds")) << name;
  }
}

TEST(MetricsTest, Devices_AreCountedByStateAndByTheirLastCheck) {
  Metrics metrics;
  const auto samples = Parse(metrics.Text({.devices_free = 3,
                                           .devices_used = 2,
                                           .devices_failed = 1,
                                           .devices_reserved = 4,
                                           .devices_cordoned = 6,
                                           .checks = {{job::CheckVerdict::kPassed, 4},
                                                      {job::CheckVerdict::kFailed, 1}},
                                           .devices_slow = 2,
                                           .warmest_celsius = 71}))
                           .samples;
  EXPECT_EQ(samples.at("phalanx_devices{state=\"free\"}"), 3);
  EXPECT_EQ(samples.at("phalanx_devices{state=\"failed\"}"), 1);
  EXPECT_EQ(samples.at("phalanx_devices{state=\"reserved\"}"), 4);
  EXPECT_EQ(samples.at("phalanx_devices{state=\"cordoned\"}"), 6);
  EXPECT_EQ(samples.at("phalanx_device_checks{verdict=\"passed\"}"), 4);
  EXPECT_EQ(samples.at("phalanx_device_checks{verdict=\"slow\"}"), 0);
  EXPECT_EQ(samples.at("phalanx_device_checks{verdict=\"failed\"}"), 1);
  EXPECT_EQ(samples.at("phalanx_slow_devices"), 2);
  EXPECT_EQ(samples.at("phalanx_warmest_device_celsius"), 71);
  EXPECT_FALSE(Parse(metrics.Text({})).samples.contains("phalanx_warmest_device_celsius"))
      << "the node that told of it has gone";
}

TEST(MetricsTest, WhatIsMeantToStandStill_HasSeriesOfItsOwn) {
  Metrics metrics;
  const auto samples =
      Parse(metrics.Text({.jobs_suspended = 2, .nodes_disconnected = 1, .nodes_cordoned = 3}))
          .samples;
  EXPECT_EQ(samples.at("phalanx_jobs_suspended"), 2);
  EXPECT_EQ(samples.at("phalanx_nodes{state=\"disconnected\"}"), 1);
  EXPECT_EQ(samples.at("phalanx_nodes{state=\"cordoned\"}"), 3);
}

TEST(MetricsTest, Build_HasVersionAndCommit) {
  Metrics metrics;
  const auto samples = Parse(metrics.Text({})).samples;
  const std::string build = absl::StrCat("phalanx_build_info{commit=\"", BuildCommit(),
                                         "\",version=\"", BuildVersion(), "\"}");
  EXPECT_EQ(samples.count(build), 1u) << metrics.Text({});
  EXPECT_FALSE(BuildCommit().empty());
}

TEST(MetricsTest, Process_IsAsTheSystemSays) {
  Metrics metrics;
  const auto samples =
      Parse(metrics.Text(
                {.usage = {.resident_bytes = 4096, .cpu_seconds = 1.5, .open_descriptors = 7}}))
          .samples;
  EXPECT_EQ(samples.at("phalanx_resident_bytes"), 4096);
  EXPECT_EQ(samples.at("phalanx_cpu_seconds_total"), 1.5);
  EXPECT_EQ(samples.at("phalanx_open_descriptors"), 7);
}

TEST(MetricsTest, Audit_CountsLinesThatWereNotTakenAndThoseThatWereNotWritten_AndItsFiles) {
  Metrics metrics;
  metrics.AuditLineNotKept();
  const auto samples =
      Parse(metrics.Text({.audit = {.not_written = 2, .files_done = 3, .files_refused = 5}}))
          .samples;
  EXPECT_EQ(samples.at("phalanx_audit_lines_not_kept_total"), 3);
  EXPECT_EQ(samples.at("phalanx_audit_files_filled_total{file=\"done\"}"), 3);
  EXPECT_EQ(samples.at("phalanx_audit_files_filled_total{file=\"workers\"}"), 0);
  EXPECT_EQ(samples.at("phalanx_audit_files_filled_total{file=\"refused\"}"), 5);
}

TEST(MetricsTest, RunningJob_HasItsLastStep_AndLeavesNothingBehind) {
  Metrics metrics;
  const std::string name = "odd\"name\\with\nlines";
  const Exposition with = Parse(metrics.Text({.running = {Running("a"), Running(name)}}));
  EXPECT_THAT(with.errors, ::testing::IsEmpty());
  EXPECT_EQ(with.samples.at("phalanx_job_loss{job_name=\"a\"}"), 2.5);
  EXPECT_EQ(with.samples.at("phalanx_job_step{job_name=\"a\"}"), 12);
  EXPECT_EQ(with.samples.at("phalanx_job_steps{job_name=\"a\"}"), 300);
  EXPECT_EQ(with.samples.at("phalanx_job_tokens_per_second{job_name=\"a\"}"), 4096);
  EXPECT_EQ(with.samples.at("phalanx_job_loss{job_name=\"odd\\\"name\\\\with\\nlines\"}"), 2.5);
  EXPECT_THAT(metrics.Text({}), Not(HasSubstr("phalanx_job_")));
}

TEST(MetricsTest, NonsenseOfAStep_DoesNotReachTheCounters) {
  Metrics metrics;
  metrics.Step(-5, -1);
  metrics.Step(0, std::numeric_limits<double>::quiet_NaN());
  metrics.Ran(absl::Seconds(-5), absl::Seconds(-1));
  metrics.Ran(absl::Seconds(1), absl::Seconds(std::numeric_limits<double>::infinity()));
  const auto samples = Parse(metrics.Text({})).samples;
  EXPECT_EQ(samples.at("phalanx_steps_total"), 2);
  EXPECT_EQ(samples.at("phalanx_tokens_total"), 0);
  EXPECT_EQ(samples.at("phalanx_useful_seconds_total"), 1);
  EXPECT_EQ(samples.at("phalanx_step_seconds_total"), 0);
}

TEST(MetricsTest, Promtool_HasNothingToSay) {
  const std::string promtool = support::FindTool("promtool");
  PHALANX_SKIP_WITHOUT_TOOL(promtool.empty() ? "no promtool: scripts/setup brings it" : "");
  Metrics metrics;
  Fill(metrics);
  const std::string path = support::MakeFolder("metrics") + "/text";
  std::ofstream(path) << metrics.Text({.running = {Running("a")}});
  EXPECT_EQ(std::system(absl::StrCat(promtool, " check metrics < ", path).c_str()), 0);
}

}  // namespace
}  // namespace phalanx::coordinator
