// Files of certificates that are replaced while the gRPC port serves, and while somebody calls it.
// The same of other ports: http_access_test.cc, agent/metrics_test.cc; of whole processes:
// tests/e2e/join.
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

const std::string kList = "/phalanx.v1.JobService/ListJobs";

bool Becomes(bool wanted, const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (condition() != wanted && absl::Now() < deadline) continue;
  return condition() == wanted;
}

class ReloadTest : public AccessTest {
 protected:
  // The same texts in a folder of its own, where nothing else replaces them.
  static transport::TlsFiles CopyOf(transport::TlsFiles files) {
    const std::string folder = support::MakeFolder("reload");
    for (std::string* path : {&files.ca, &files.certificate, &files.key}) {
      const std::string copy = absl::StrCat(folder, path->substr(path->rfind('/')));
      support::ReplaceFile(copy, support::ReadFile(*path));
      *path = copy;
    }
    return files;
  }
  static std::string AuthorityOf(const support::Authority& authority) {
    return support::ReadFile(authority.folder() + "/ca.pem");
  }
  // Over a connection of its own.
  bool GetsIn(const transport::TlsFiles& who) { return Call(ChannelOf(who), kList).ok(); }

  // The server's file of authorities first gets one more, and then loses the one that it had.
  void ExpectAuthoritiesAreFollowed(const std::function<void(ServerOptions& options)>& change) {
    server_.reset();
    const transport::TlsFiles files = CopyOf(authority().Coordinator());
    Open([&](ServerOptions& options) {
      options.tls = files;
      options.revoked = "";
      change(options);
    });
    const support::Authority next;
    const transport::TlsFiles older = authority().User("olga", "operator");
    transport::TlsFiles newer = next.User("nora", "operator");
    newer.ca = older.ca;
    EXPECT_TRUE(GetsIn(older));
    EXPECT_FALSE(GetsIn(newer));
    const std::shared_ptr<grpc::Channel> open = ChannelOf(older);
    EXPECT_TRUE(Call(open, kList).ok());
    support::ReplaceFile(files.ca, AuthorityOf(authority()) + AuthorityOf(next));
    EXPECT_TRUE(Becomes(true, [&] { return GetsIn(newer); })) << "it was added";
    EXPECT_TRUE(GetsIn(older));
    support::ReplaceFile(files.ca, AuthorityOf(next));
    EXPECT_TRUE(Becomes(false, [&] { return GetsIn(older); })) << "its own was taken away";
    EXPECT_TRUE(GetsIn(newer));
    EXPECT_TRUE(Call(open, kList).ok()) << "what was open stays";
  }
};

TEST_F(ReloadTest, AuthoritiesOfTheServer_AreFollowedWithoutARestart) {
  ExpectAuthoritiesAreFollowed([](ServerOptions&) {});
}

TEST_F(ReloadTest, WhereNodesMayJoin_AuthoritiesAreFollowedToo) {
  const std::string tokens = support::MakeFolder("reload-tokens") + "/join-tokens";
  // Those who sign must be among the authorities at the start alone.
  ExpectAuthoritiesAreFollowed([&](ServerOptions& options) { LetNodesJoin(options, tokens); });
}

// gRPC by itself would let nobody in any more. It looks each second.
TEST_F(ReloadTest, FilesThatAreSpoiltOrOfOneAnotherNot_ChangeNothing) {
  server_.reset();
  const transport::TlsFiles files = CopyOf(authority().Coordinator());
  const std::string certificate = support::ReadFile(files.certificate);
  const std::string key = support::ReadFile(files.key);
  Open([&](ServerOptions& options) {
    options.tls = files;
    options.revoked = "";
  });
  const transport::TlsFiles olga = authority().User("olga", "operator");
  const auto stays_open = [&] {
    const absl::Time end = absl::Now() + absl::Seconds(4);
    bool open = true;
    while (open && absl::Now() < end) open = GetsIn(olga);
    return open;
  };
  support::ReplaceFile(files.certificate, "spoilt");
  EXPECT_TRUE(stays_open());
  support::ReplaceFile(files.certificate, certificate);
  support::ReplaceFile(files.ca, "spoilt");
  EXPECT_TRUE(stays_open());
  support::ReplaceFile(files.ca, AuthorityOf(authority()));
  support::ReplaceFile(files.key, support::ReadFile(olga.key));
  EXPECT_TRUE(stays_open()) << "a key of another certificate";
  // What is sound again is used.
  const support::Authority next;
  transport::TlsFiles newer = next.User("nora", "operator");
  newer.ca = olga.ca;
  support::ReplaceFile(files.key, key);
  support::ReplaceFile(files.ca, AuthorityOf(authority()) + AuthorityOf(next));
  EXPECT_TRUE(Becomes(true, [&] { return GetsIn(newer); }));
}

// Clients, workers and the coordinator that calls etcd have the same credentials.
TEST_F(ReloadTest, AuthorityOfACaller_IsAddedWithoutARestart) {
  const support::Authority foreign;
  foreign.Coordinator();
  const transport::TlsFiles files = CopyOf(authority().User("olga", "operator"));
  support::ReplaceFile(files.ca, AuthorityOf(foreign));
  const std::shared_ptr<grpc::Channel> to = ChannelOf(files);
  EXPECT_FALSE(Call(to, kList).ok()) << "our coordinator is unknown to it";
  support::ReplaceFile(files.ca, AuthorityOf(foreign) + AuthorityOf(authority()));
  EXPECT_TRUE(Becomes(true, [&] { return Call(to, kList).ok(); }));
}

TEST_F(ReloadTest, CertificateOfACaller_IsReplacedWithoutARestart) {
  const support::Authority foreign;
  const transport::TlsFiles sound = authority().User("olga", "operator");
  transport::TlsFiles files = foreign.User("olga", "operator");
  files.ca = sound.ca;
  files = CopyOf(files);
  const std::shared_ptr<grpc::Channel> to = ChannelOf(files);
  EXPECT_FALSE(Call(to, kList).ok()) << "the coordinator does not take it";
  support::ReplaceFile(files.key, support::ReadFile(sound.key));
  support::ReplaceFile(files.certificate, support::ReadFile(sound.certificate));
  EXPECT_TRUE(Becomes(true, [&] { return Call(to, kList).ok(); }));
}

}  // namespace
}  // namespace phalanx::coordinator
