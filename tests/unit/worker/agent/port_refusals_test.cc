// What the port for metrics has refused.
#include "worker/agent/port_refusals.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PortRefusalsTest, Each_IsCountedAndTold_InOneLine) {
  std::vector<std::string> lines;
  PortRefusals refusals([&](const std::string& line) { lines.push_back(line); });
  EXPECT_THAT(refusals.Text(), HasSubstr("_total{reason=\"expired\"} 0\n")) << "before the first";
  refusals.OfHandshake({.peer = "ipv4:10.0.0.9:51764",
                        .fault = transport::HandshakeFault::kPlaintext,
                        .reason = "what came first is no TLS"});
  refusals.OfRequest({}, absl::UnauthenticatedError("show a certificate"));
  refusals.OfRequest(
      {.uris = {"phalanx:viewer/a\n\x1b[2J" + std::string(100, 'b')}, .chain = "PEM"},
      absl::PermissionDeniedError("not a viewer's"));
  EXPECT_THAT(
      lines,
      ElementsAre("metrics refused peer=ipv4:10.0.0.9:51764 reason=\"what came first is no TLS\"",
                  "metrics refused who=- reason=\"show a certificate\"",
                  "metrics refused who=phalanx:viewer/a\\n\\x1b[2J" + std::string(43, 'b') +
                      " reason=\"not a viewer's\""));
  for (const char* reason : {"plaintext", "unauthenticated", "denied"}) {
    EXPECT_THAT(refusals.Text(), HasSubstr(std::string("_total{reason=\"") + reason + "\"} 1\n"));
  }
}

TEST(PortRefusalsTest, Flood_IsCounted_AndToldInAFewLines) {
  std::vector<std::string> lines;
  PortRefusals refusals([&](const std::string& line) { lines.push_back(line); });
  for (int i = 0; i < 1000; ++i)
    refusals.OfRequest({}, absl::DeadlineExceededError("the request did not come whole"));
  EXPECT_THAT(refusals.Text(), HasSubstr("_total{reason=\"too_slow\"} 1000\n"));
  EXPECT_LT(lines.size(), 100u);
}

}  // namespace
}  // namespace phalanx::agent
