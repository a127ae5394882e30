// Nodes that get their certificates for tokens, as people set them up from docs/security.md.
#include <signal.h>
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/authority.h"
#include "tests/support/etcd.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/tools.h"

namespace phalanx::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Flags(const transport::TlsFiles& files) {
  return {"--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key};
}
std::vector<std::string> Joined(std::vector<std::string> all,
                                const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class JoinTest : public ::testing::Test {
 protected:
  void SetUp() override { StartCoordinator(SignerFlags()); }

  std::vector<std::string> SignerFlags() const {
    return {"--join-ca-certificate",   authority_.folder() + "/ca.pem",
            "--join-ca-key",           authority_.folder() + "/ca-key.pem",
            "--join-certificate-life", life_};
  }
  void StartCoordinator(const std::vector<std::string>& more) {
    coordinator_.reset();
    coordinator_ = Launch(folder_ + "/store", more, server_);
  }
  // Returns once it serves or stands by. `address`: of its gRPC; empty: on a free port, and then
  // that.
  std::unique_ptr<support::Process> Launch(const std::string& store,
                                           const std::vector<std::string>& more,
                                           std::string& address) {
    const std::string ready = absl::StrCat(folder_, "/ready-", ++starts_, ".json");
    auto coordinator = std::make_unique<support::Process>(
        Joined(Joined({support::Program("phalanx-coordinator"), "--listen",
                       address.empty() ? "127.0.0.1:0" : address, "--http", "127.0.0.1:0",
                       "--store", store, "--ready-file", ready},
                      Flags(coordinator_files_)),
               more),
        mark_, log(), log());
    support::AwaitFile(ready, *coordinator);
    const std::string text = support::ReadText(ready);
    address = std::vector<std::string>(absl::StrSplit(text, '"'))[3];
    return coordinator;
  }
  std::string log() const { return folder_ + "/coordinator.log"; }

  support::Finished Phalanx(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), support::Program("phalanx"));
    return support::RunToEnd(Joined(
        Joined(std::move(arguments), {"--server", server_, "--timeout", "60s"}), Flags(olga_)));
  }
  // The token that the command prints.
  std::string Create(const std::vector<std::string>& more = {}) {
    const support::Finished made = Phalanx(Joined({"token", "create"}, more));
    EXPECT_EQ(made.exit_code, 0) << made.talk;
    return std::string(absl::StripSuffix(made.out, "\n"));
  }
  static std::string IdOf(const std::string& token) { return token.substr(4, 16); }
  std::string TokenFile(const std::string& token) {
    const std::string file = absl::StrCat(folder_, "/token-", ++files_);
    support::WriteFile(file, token + "\n");
    chmod(file.c_str(), 0600);
    return file;
  }
  std::vector<std::string> Worker(const std::string& node, const std::vector<std::string>& more) {
    return Joined({support::Program("phalanx-worker"), "--coordinator", server_, "--node", node,
                   "--state", StateOf(node), "--rank-program", "/bin/true", "--check-interval", "0",
                   "--write-folder", folder_, "--tls-ca", authority_.folder() + "/ca.pem"},
                  more);
  }
  std::string StateOf(const std::string& node) const { return absl::StrCat(folder_, "/", node); }
  // Returns once the coordinator has let it in.
  std::unique_ptr<support::Process> Start(const std::string& node,
                                          const std::vector<std::string>& more) {
    const std::string ready = absl::StrCat(folder_, "/worker-", ++starts_, ".json");
    const std::string worker_log = absl::StrCat(folder_, "/", node, ".log");
    auto worker = std::make_unique<support::Process>(
        Joined(Worker(node, more), {"--ready-file", ready}), mark_, worker_log, worker_log);
    support::AwaitFile(ready, *worker);
    return worker;
  }

  const support::Authority authority_;
  const transport::TlsFiles coordinator_files_ = authority_.Coordinator();
  const transport::TlsFiles olga_ = authority_.User("olga", "operator");
  const std::string folder_ = support::MakeFolder("e2e-join");
  const std::string mark_ = support::NewMark();
  std::string server_, life_ = "1h";
  int starts_ = 0, files_ = 0;
  std::unique_ptr<support::Process> coordinator_;
};

TEST_F(JoinTest, Worker_JoinsWithAToken_AndComesBackWithItsCertificate) {
  const std::string token = Create();
  std::unique_ptr<support::Process> worker = Start("new", {"--join-token-file", TokenFile(token)});
  EXPECT_THAT(Phalanx({"nodes"}).out, HasSubstr("new"));
  struct stat status {};
  ASSERT_EQ(stat((StateOf("new") + "/identity.pem").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_THAT(Phalanx({"token", "list"}).out,
              AllOf(HasSubstr(IdOf(token)), HasSubstr("used"), HasSubstr("1/1"), HasSubstr("new")));

  // Once in the state folder, the certificate is enough; a token that was used does no harm.
  worker->Signal(SIGTERM);
  EXPECT_EQ(worker->WaitExitCode(), 0);
  worker = Start("new", {});
  worker->Signal(SIGTERM);
  EXPECT_EQ(worker->WaitExitCode(), 0);
  worker = Start("new", {"--join-token-file", TokenFile(token)});

  const support::Finished replayed =
      support::RunToEnd(Worker("evil", {"--join-token-file", TokenFile(token)}));
  EXPECT_EQ(replayed.exit_code, 1);
  EXPECT_THAT(replayed.talk, AllOf(HasSubstr("cannot join the coordinator at"),
                                   HasSubstr("is used up: node new has joined with it")));
  EXPECT_THAT(Phalanx({"nodes"}).out, Not(HasSubstr("evil")));
  EXPECT_THAT(support::ReadText(log()),
              AllOf(HasSubstr("method=Join token=" + IdOf(token) + " node=\"new\" outcome=OK"),
                    HasSubstr("method=Join node=\"evil\" outcome=UNAUTHENTICATED"),
                    Not(HasSubstr(token.substr(21)))));
  EXPECT_THAT(support::ReadText(folder_ + "/store/join-tokens"), Not(HasSubstr(token.substr(21))));
}

TEST_F(JoinTest, TokenThatIsRevoked_EndsItsSessions_AlsoBehindARestart) {
  const std::string token = Create({"--node", "gone", "--ttl", "10m"});
  std::unique_ptr<support::Process> worker = Start("gone", {"--join-token-file", TokenFile(token)});
  const support::Finished revoked = Phalanx({"token", "revoke", IdOf(token)});
  EXPECT_EQ(revoked.exit_code, 0) << revoked.talk;
  EXPECT_THAT(revoked.talk, HasSubstr("and so are the certificates of gone"));
  support::AwaitText(folder_ + "/gone.log", "revoked", *worker);
  worker.reset();

  coordinator_->Signal(SIGKILL);
  coordinator_->Wait();
  StartCoordinator(SignerFlags());
  const std::string again = folder_ + "/again.log";
  worker = std::make_unique<support::Process>(Worker("gone", {}), mark_, again, again);
  support::AwaitText(again, "revoked", *worker);
  worker.reset();
  worker = Start("gone", {"--join-token-file", TokenFile(Create({"--node", "gone"}))});
  EXPECT_THAT(Phalanx({"nodes"}).out, HasSubstr("gone"));
}

// Two coordinators over one etcd; the second one stands by at first.
class SeveralJoinTest : public JoinTest {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
    store_ = support::SharedEtcd().NewPlace();
    for (Seat& seat : seats_) Start(seat);
    server_ = absl::StrCat(seats_[0].address, ",", seats_[1].address);
  }
  struct Seat {
    std::string address;
    std::unique_ptr<support::Process> process;
  };
  void Start(Seat& seat) { seat.process = Launch(store_, SignerFlags(), seat.address); }
  using JoinTest::Start;
  static void Kill(Seat& seat) {
    seat.process->Signal(SIGKILL);
    seat.process->Wait();
  }

  std::string store_;
  Seat seats_[2];
};

TEST_F(SeveralJoinTest, TokenOfOneLeader_IsGoodUnderTheNext_Once) {
  const std::string token = Create();
  Kill(seats_[0]);
  const std::unique_ptr<support::Process> worker =
      Start("new", {"--join-token-file", TokenFile(token)});
  EXPECT_THAT(Phalanx({"nodes"}).out, HasSubstr("new"));
  Start(seats_[0]);
  Kill(seats_[1]);
  EXPECT_THAT(Phalanx({"token", "list"}).out,
              AllOf(HasSubstr(IdOf(token)), HasSubstr("used"), HasSubstr("new")));
  const support::Finished replayed =
      support::RunToEnd(Worker("evil", {"--join-token-file", TokenFile(token)}));
  EXPECT_EQ(replayed.exit_code, 1);
  EXPECT_THAT(replayed.talk, HasSubstr("is used up: node new has joined with it"));
  EXPECT_FALSE(worker->watch().HasEnded());
}

TEST_F(SeveralJoinTest, TokenThatIsRevoked_IsRefusedByTheNextLeader) {
  const std::string token = Create({"--node", "gone"});
  EXPECT_EQ(Phalanx({"token", "revoke", IdOf(token)}).exit_code, 0);
  Kill(seats_[0]);
  const support::Finished refused =
      support::RunToEnd(Worker("gone", {"--join-token-file", TokenFile(token)}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.talk, HasSubstr("is revoked"));
}

TEST_F(JoinTest, Certificate_IsRenewedBeforeItExpires) {
  life_ = "10s";
  StartCoordinator(SignerFlags());
  const std::unique_ptr<support::Process> worker =
      Start("new", {"--join-token-file", TokenFile(Create())});
  support::AwaitText(folder_ + "/new.log", "certificate renewed", *worker);
  EXPECT_THAT(support::ReadText(log()), HasSubstr("role=worker method=RenewCertificate token="));
  EXPECT_FALSE(worker->watch().HasEnded());
}

// A worker that does not know the coordinator, nor is known to it, until its files are replaced.
TEST_F(JoinTest, FilesInPlaceOfOthers_AreUsedByAWorkerThatRuns) {
  const support::Authority foreign;
  const transport::TlsFiles sound = authority_.Worker("moved");
  const transport::TlsFiles files = foreign.Worker("moved");
  const std::string ready = folder_ + "/moved.json", worker_log = folder_ + "/moved.log";
  const support::Process worker(
      Joined({support::Program("phalanx-worker"), "--coordinator", server_, "--node", "moved",
              "--state", StateOf("moved"), "--rank-program", "/bin/true", "--check-interval", "0",
              "--write-folder", folder_, "--ready-file", ready},
             Flags(files)),
      mark_, worker_log, worker_log);
  // The coordinator has seen that it was not accepted.
  support::AwaitText(log(), "method=handshake port=grpc", *coordinator_);
  EXPECT_FALSE(worker.watch().HasEnded());
  EXPECT_THAT(Phalanx({"nodes"}).out, Not(HasSubstr("moved")));
  support::ReplaceFile(files.ca, support::ReadText(foreign.folder() + "/ca.pem") +
                                     support::ReadText(authority_.folder() + "/ca.pem"));
  support::ReplaceFile(files.key, support::ReadText(sound.key));
  support::ReplaceFile(files.certificate, support::ReadText(sound.certificate));
  support::AwaitFile(ready, worker);
  EXPECT_THAT(Phalanx({"nodes"}).out, HasSubstr("moved"));
}

TEST_F(JoinTest, WorkerWhoseCertificateHasExpired_SaysSo_AndComesBackWithTheNext) {
  const transport::TlsFiles files = authority_.Worker("late", -1);
  const std::string ready = folder_ + "/late.json", worker_log = folder_ + "/late.log";
  const support::Process worker(
      Joined({support::Program("phalanx-worker"), "--coordinator", server_, "--node", "late",
              "--state", StateOf("late"), "--rank-program", "/bin/true", "--check-interval", "0",
              "--write-folder", folder_, "--ready-file", ready},
             Flags(files)),
      mark_, worker_log, worker_log);
  support::AwaitText(worker_log,
                     absl::StrCat("--tls-certificate: ", files.certificate, ": expired at 20"),
                     worker);
  authority_.Worker("late");
  support::AwaitFile(ready, worker);
}

TEST_F(JoinTest, WhatIsMissingOrWrong_IsNamed) {
  const support::Finished none = support::RunToEnd(Worker("new", {}));
  EXPECT_EQ(none.exit_code, client::kUsage) << none.talk;
  const auto fault = [&](const std::string& file) {
    return support::RunToEnd(Worker("new", {"--join-token-file", file})).talk;
  };
  EXPECT_THAT(fault("/nowhere"), HasSubstr("--join-token-file: /nowhere: cannot be opened"));
  EXPECT_THAT(fault(TokenFile("secret")), HasSubstr("must be a token as phalanx token create"));
  const std::string open = TokenFile(Create());
  chmod(open.c_str(), 0644);
  EXPECT_THAT(fault(open), HasSubstr("everybody may read it"));

  const support::Finished sam = support::RunToEnd(
      Joined({support::Program("phalanx"), "token", "create", "--server", server_},
             Flags(authority_.User("sam", "submitter"))));
  EXPECT_EQ(sam.exit_code, client::kNotAllowed);
  EXPECT_EQ(sam.out, "");
  EXPECT_EQ(Phalanx({"token", "create", "--ttl", "soon"}).exit_code, client::kUsage);
  EXPECT_EQ(Phalanx({"token", "revoke", "0123456789abcdef"}).exit_code, client::kFailure);

  StartCoordinator({});
  const support::Finished refused = Phalanx({"token", "create"});
  EXPECT_EQ(refused.exit_code, client::kFailure);
  EXPECT_THAT(refused.talk, HasSubstr("--join-ca-certificate and --join-ca-key"));
}

}  // namespace
}  // namespace phalanx::e2e
