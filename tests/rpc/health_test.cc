// Whether a program lives and accepts work, as the HTTP port tells it.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <string>

#include "tests/rpc/plain_http.h"
#include "transport/http/http_server.h"

namespace phalanx::coordinator {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto part = [](const std::atomic<bool>& well, absl::string_view why) {
      return well ? absl::OkStatus() : absl::UnavailableError(why);
    };
    auto http =
        transport::HttpServer::Start({.metrics = [] { return std::string(); },
                                      .live =
                                          [this, part] {
                                            return Health{{"driver", part(lives_, "it hangs")}};
                                          },
                                      .ready =
                                          [this, part] {
                                            return Health{{"driver", part(lives_, "it hangs")},
                                                          {"store", part(stores_, "disk full")}};
                                          }});
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
  }
  std::string Ask(const std::string& path) const { return Get(http_->port(), path); }

  std::atomic<bool> lives_ = true, stores_ = true;
  std::unique_ptr<transport::HttpServer> http_;
};

TEST_F(HealthTest, Livez_TurnsFalseAndBack) {
  for (const char* path : {"/livez", "/healthz"}) {
    EXPECT_THAT(Ask(path), StartsWith("HTTP/1.1 200 OK\r\n")) << path;
    lives_ = false;
    EXPECT_THAT(Ask(path), StartsWith("HTTP/1.1 503 Service Unavailable\r\n")) << path;
    EXPECT_THAT(Ask(path), EndsWith("\r\n\r\nnot live: it hangs\n")) << path;
    lives_ = true;
    EXPECT_THAT(Ask(path), EndsWith("\r\n\r\nok\n")) << path;
  }
}

TEST_F(HealthTest, Readyz_SaysTheFirstReason_AndVerboseEveryPart) {
  EXPECT_THAT(Ask("/readyz"), EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(Ask("/readyz?verbose"),
              EndsWith("\r\n\r\n[+]driver ok\n[+]store ok\nreadyz check passed\n"));
  stores_ = false;
  EXPECT_THAT(Ask("/readyz"), HasSubstr("503"));
  EXPECT_THAT(Ask("/readyz"), EndsWith("\r\n\r\nnot ready: disk full\n"));
  EXPECT_THAT(Ask("/readyz?verbose"), HasSubstr("503"));
  EXPECT_THAT(Ask("/readyz?verbose"),
              EndsWith("\r\n\r\n[+]driver ok\n[-]store failed: disk full\nreadyz check failed\n"));
  EXPECT_THAT(Ask("/livez"), HasSubstr("200 OK")) << "to start it anew frees no disk";
  EXPECT_THAT(Ask("/livez?verbose"), EndsWith("\r\n\r\n[+]driver ok\nlivez check passed\n"));
}

}  // namespace
}  // namespace phalanx::coordinator
