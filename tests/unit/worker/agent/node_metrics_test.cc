// What a node's daemon shows to Prometheus.
#include "worker/agent/node_metrics.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/build/build_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/tools.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const Instant kNow = absl::UnixEpoch() + absl::Hours(1);

// Of two devices: one is well, the other lost.
NodeFigures Figures() {
  NodeFigures figures;
  figures.machine.ranks = {{"running", 2}, {"idle", 0}};
  figures.machine.rank_starts = 5;
  figures.machine.rank_ends = {{"RankHung", 1}};
  figures.machine.session_open = true;
  figures.machine.heartbeats_late = 4;
  figures.machine.stalled = absl::Milliseconds(1500);
  figures.machine.devices.resize(2);
  figures.machine.devices[0].verdict = job::CheckVerdict::kPassed;
  figures.machine.devices[0].checked = kNow - absl::Seconds(90);
  figures.machine.devices[1].lost = true;
  figures.machine.devices[1].errors = {0, 0, 1};
  figures.machine.devices[1].last_xid = 79;
  figures.log_bytes_dropped = 12;
  figures.strangers = 3;
  figures.certificates = {{"tls", absl::FromUnixSeconds(1796000000)}};
  figures.device_watch = false;
  figures.memory_bytes = {1024, 0};
  figures.memory_used_bytes = {0, -1};
  figures.celsius = {41, 0};
  return figures;
}

std::vector<std::string> LinesOf(const NodeFigures& figures, const ProcessUsage& usage = {}) {
  return absl::StrSplit(MetricsText(figures, usage, kNow), '\n');
}

TEST(NodeMetricsTest, Text_HasWhatWasCounted) {
  const auto lines = LinesOf(Figures(), {.resident_bytes = 4096, .open_descriptors = 9});
  for (const char* line : {"phalanx_worker_resident_bytes 4096",
                           "phalanx_worker_open_descriptors 9",
                           "phalanx_worker_ranks{state=\"running\"} 2",
                           "phalanx_worker_ranks{state=\"idle\"} 0",
                           "phalanx_worker_rank_starts_total 5",
                           "phalanx_worker_rank_ends_total{cause=\"RankHung\"} 1",
                           "phalanx_worker_session_open 1",
                           "phalanx_worker_heartbeats_late_total 4",
                           "phalanx_worker_stalled_seconds_total 1.5",
                           "phalanx_worker_log_bytes_dropped_total 12",
                           "phalanx_worker_strangers_refused_total 3",
                           "phalanx_worker_certificate_expiration_timestamp_seconds{certificate="
                           "\"tls\"} 1796000000",
                           "phalanx_worker_device_watch 0",
                           "phalanx_worker_device_lost{device=\"0\"} 0",
                           "phalanx_worker_device_lost{device=\"1\"} 1",
                           "phalanx_worker_device_errors_total{device=\"1\",effect=\"lost\"} 1",
                           "phalanx_worker_device_last_xid{device=\"1\"} 79",
                           "phalanx_worker_device_check{device=\"0\",verdict=\"passed\"} 1",
                           "phalanx_worker_device_check_age_seconds{device=\"0\"} 90",
                           "phalanx_worker_device_memory_bytes{device=\"0\"} 1024",
                           "phalanx_worker_device_memory_used_bytes{device=\"0\"} 0",
                           "phalanx_worker_device_celsius{device=\"0\"} 41"})
    EXPECT_THAT(lines, Contains(line));
  EXPECT_THAT(lines, Contains(absl::StrCat("phalanx_worker_build_info{version=\"", BuildVersion(),
                                           "\",commit=\"", BuildCommit(), "\"} 1")));
}

TEST(NodeMetricsTest, WhatIsNotKnown_HasNoSample) {
  const std::string text = MetricsText(Figures(), {}, kNow);
  for (const char* start :
       {"phalanx_worker_device_last_xid{device=\"0\"", "phalanx_worker_device_check{device=\"1\"",
        "phalanx_worker_device_check_age_seconds{device=\"1\"",
        "phalanx_worker_device_memory_bytes{device=\"1\"",
        "phalanx_worker_device_memory_used_bytes{device=\"1\"",
        "phalanx_worker_device_celsius{device=\"1\""})
    EXPECT_THAT(text, Not(HasSubstr(start)));
  EXPECT_THAT(MetricsText({}, {}, kNow), Not(HasSubstr("device")));
}

TEST(NodeMetricsTest, Names_CarryTheirUnits) {
  int families = 0;
  for (const std::string& line : LinesOf(Figures())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() != 4 || words[1] != "TYPE") continue;
    ++families;
    EXPECT_TRUE(absl::StartsWith(words[2], "phalanx_worker_")) << line;
    EXPECT_EQ(absl::EndsWith(words[2], "_total"), words[3] == "counter") << line;
  }
  EXPECT_GT(families, 20);
}

TEST(NodeMetricsTest, Promtool_HasNothingToSay) {
  const std::string promtool = support::FindTool("promtool");
  PHALANX_SKIP_WITHOUT_TOOL(promtool.empty() ? "no promtool: scripts/setup brings it" : "");
  const std::string path = support::MakeFolder("node-metrics") + "/text";
  std::ofstream(path) << MetricsText(Figures(), {}, kNow);
  EXPECT_EQ(std::system(absl::StrCat(promtool, " check metrics < ", path).c_str()), 0);
}

}  // namespace
}  // namespace phalanx::agent
