// Flags of phalanx-coordinator, and what it says of a start that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite_backend.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CoordinatorFlagsTest : public ::testing::Test {
 protected:
  std::string talk() const { return folder_ + "/talk"; }

  const std::string folder_ = support::MakeFolder("coordinator-flags");
  const std::string mark_ = support::NewMark();
};

TEST_F(CoordinatorFlagsTest, FlagsThatCannotBe_AreUsageAndMakeNoStore) {
  const std::string store = support::MakeFolder("flags") + "/none";
  for (const auto& [flag, value] : {std::pair("--listen", "nowhere"),
                                    {"--heartbeat-interval", "0s"},
                                    {"--heartbeat-timeout", "5s"},
                                    {"--share-half-life", "-1s"},
                                    {"--quotas", "/nowhere"}}) {
    const support::Finished start =
        support::RunToEnd({support::Program("phalanx-coordinator"), "--store", store, flag, value});
    EXPECT_EQ(start.exit_code, 2) << flag;
    EXPECT_THAT(start.talk, HasSubstr(flag));
  }
  EXPECT_FALSE(std::filesystem::exists(store));
}

// No folder "http:" is made, in which it would lie.
TEST_F(CoordinatorFlagsTest, StoreOfAnUnknownScheme_IsUsage) {
  const std::string folder = support::MakeFolder("scheme"),
                    program = support::Program("phalanx-coordinator");
  const auto refused = [&](const std::string& flags) {
    const support::Finished start =
        support::RunToEnd({"/bin/sh", "-c", "cd \"$0\" && exec \"$1\" " + flags, folder, program});
    EXPECT_EQ(start.exit_code, 2) << flags;
    return start.talk;
  };
  const std::string rule = ": must be a folder, or etcd://HOST:PORT[,HOST:PORT...]/PREFIX";
  EXPECT_THAT(refused("--store http://x"), HasSubstr("--store: http://x" + rule));
  EXPECT_THAT(refused("--store file:///x --check-store"), HasSubstr("--store: file:///x" + rule));
  EXPECT_THAT(refused("--store s --copy-store-to ETCD://x"),
              HasSubstr("--copy-store-to: ETCD://x" + rule));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(CoordinatorFlagsTest, HeartbeatInterval_HasALeast) {
  const auto start = [this](const std::string& interval, const std::string& timeout) {
    return support::RunToEnd({support::Program("phalanx-coordinator"), "--store", folder_,
                              "--check-store", "--heartbeat-interval", interval,
                              "--heartbeat-timeout", timeout});
  };
  ASSERT_TRUE(SqliteBackend::Open(folder_ + "/journal.db").ok());
  for (const std::string interval : {"1ns", "99ms"}) {
    const support::Finished refused = start(interval, "15s");
    EXPECT_EQ(refused.exit_code, 2) << interval;
    EXPECT_THAT(refused.talk,
                HasSubstr("--heartbeat-interval: " + interval + ": must be at least 100ms"));
  }
  EXPECT_EQ(start("100ms", "200ms").exit_code, 0);
}

TEST_F(CoordinatorFlagsTest, FlagsWithAnEmptyValue_AreUsage_ToldAllAtOnce) {
  const auto said = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), support::Program("phalanx-coordinator"));
    const support::Finished start = support::RunToEnd(flags);
    EXPECT_EQ(start.exit_code, 2);
    return start.talk;
  };
  const std::string rest = ": \"\": must have a value, or be left out\n";
  EXPECT_EQ(said({"--quotas", "", "--store", "", "--jobs-max", ""}),
            "--store: \"\": must have a value\n--jobs-max" + rest + "--quotas" + rest);
  EXPECT_EQ(said({"--store=", "--plaintext"}), "--store" + rest);
}

// Of each port, and of etcd; with the flag that asks for plaintext and without.
TEST_F(CoordinatorFlagsTest, PlaintextForOthers_IsRefusedAlsoWhereItIsAskedForByName) {
  const support::Authority authority;
  const transport::TlsFiles own = authority.Coordinator();
  const std::vector<std::string> certified = {"--tls-ca",      own.ca,      "--tls-certificate",
                                              own.certificate, "--tls-key", own.key};
  const std::string here = support::MakeFolder("flags") + "/none";
  const auto fault = [&](const std::string& store, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {support::Program("phalanx-coordinator"), "--store", store});
    const support::Finished start = support::RunToEnd(flags);
    EXPECT_EQ(start.exit_code, 2);
    EXPECT_FALSE(std::filesystem::exists(here));
    return start.talk;
  };
  const std::string listen = "--listen: 0.0.0.0:0: plaintext is for loopback alone",
                    http = "--http: 0.0.0.0:0: plaintext is for loopback alone",
                    etcd = "--store: 10.0.0.8:2379: plaintext is for loopback alone",
                    place = "etcd://127.0.0.1:2379,10.0.0.8:2379/phalanx";
  const auto has = [](const std::string& rule, const std::string& asked,
                      const std::string& remedy) {
    return HasSubstr(
        absl::StrCat(rule, asked.empty() ? "" : ", so " + asked + " does not go with it", remedy));
  };
  const std::string give = "; give --tls-ca, --tls-certificate and --tls-key: scripts/make_ca";
  EXPECT_THAT(fault(here, {"--listen", "0.0.0.0:0"}), has(listen, "", give));
  EXPECT_THAT(fault(here, {"--listen", "0.0.0.0:0", "--plaintext"}),
              has(listen, "--plaintext", give));
  EXPECT_THAT(fault(here, {"--http", "0.0.0.0:0"}), has(http, "", give));
  EXPECT_THAT(fault(here, {"--http", "0.0.0.0:0", "--plaintext"}), has(http, "--plaintext", give));
  std::vector<std::string> pages = certified;
  pages.insert(pages.end(), {"--http", "0.0.0.0:0", "--http-plaintext"});
  EXPECT_THAT(fault(here, pages), has(http, "--http-plaintext", "; leave --http-plaintext out"));
  const std::string give_etcd = "; give --etcd-ca, --etcd-certificate and --etcd-key: ";
  EXPECT_THAT(fault(place, {}), has(etcd, "", give_etcd));
  EXPECT_THAT(fault(place, {"--etcd-plaintext"}), has(etcd, "--etcd-plaintext", give_etcd));
}

TEST_F(CoordinatorFlagsTest, PlaintextOnLoopback_MayBeAskedForByName_AndCertificatesServeOthers) {
  const support::Authority authority;
  const transport::TlsFiles own = authority.Coordinator();
  const std::vector<std::string> certified = {"--tls-ca",      own.ca,      "--tls-certificate",
                                              own.certificate, "--tls-key", own.key};
  std::vector<std::string> plain = {"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                                    "--plaintext"};
  std::vector<std::string> others = certified, mixed = certified;
  others.insert(others.end(), {"--listen", "0.0.0.0:0", "--http", "0.0.0.0:0"});
  mixed.insert(mixed.end(), {"--listen", "0.0.0.0:0", "--http", "127.0.0.1:0", "--http-plaintext"});
  for (std::vector<std::string> flags : {plain, others, mixed}) {
    const std::string store = support::MakeFolder("served"), ready = store + "/ready.json";
    flags.insert(flags.begin(), {support::Program("phalanx-coordinator"), "--store", store,
                                 "--ready-file", ready});
    const support::Process serves(flags, mark_, talk(), talk());
    support::AwaitFile(ready, serves);
  }
}

TEST_F(CoordinatorFlagsTest, StoreBelowFoldersThatAreNotThere_IsMadeForItsOwnerAlone) {
  const std::string store = folder_ + "/not/there/store", ready = folder_ + "/ready.json";
  const support::Process serves(
      {support::Program("phalanx-coordinator"), "--store", store + "/", "--listen", "127.0.0.1:0",
       "--http", "127.0.0.1:0", "--ready-file", ready},
      mark_, talk(), talk());
  support::AwaitFile(ready, serves);
  EXPECT_EQ(std::filesystem::status(store).permissions(), std::filesystem::perms::owner_all);
}

TEST_F(CoordinatorFlagsTest, ReadyFileThatCannotBeWritten_IsOneErrorThatNamesTheFlag) {
  for (const auto& [ready, reason] :
       {std::pair(folder_ + "/none/ready.json", "No such file or directory"),
        {folder_, "Is a directory"}}) {
    const support::Finished start = support::RunToEnd(
        {support::Program("phalanx-coordinator"), "--store", folder_ + "/store", "--listen",
         "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", ready});
    EXPECT_EQ(start.exit_code, 1) << ready;
    EXPECT_THAT(start.talk, HasSubstr(absl::StrCat(" error coordinator --ready-file: cannot write ",
                                                   ready, ": ", reason, "\n")));
    const size_t error = start.talk.find(" error ");
    EXPECT_EQ(start.talk.find(" error ", error + 1), std::string::npos) << start.talk;
  }
}

TEST_F(CoordinatorFlagsTest, StoreThatCannotBeMadeOrWritten_IsOneErrorWithWhatToDo) {
  const std::string file = folder_ + "/file";
  support::WriteFile(file, "text");
  const std::string next =
      "; name a folder that the user of phalanx-coordinator may make and write in\n";
  for (const auto& [store, fault] :
       {std::pair(file, "--store: " + file + ": is no folder" + next),
        {file + "/below", "--store: " + file + "/below: cannot be made: Not a directory" + next},
        {file + "/a/b", "--store: " + file + "/a/b: cannot be made: Not a directory" + next},
        {std::string("/proc/none"), std::string("--store: /proc/none: cannot be made: ")},
        // Who is not root may not even try.
        {std::string("/proc/self"), std::string("cannot be written")}}) {
    const support::Finished start =
        support::RunToEnd({support::Program("phalanx-coordinator"), "--store", store, "--listen",
                           "127.0.0.1:0", "--http", "127.0.0.1:0"});
    EXPECT_EQ(start.exit_code, 1) << store;
    EXPECT_THAT(start.talk, HasSubstr(fault));
    const size_t error = start.talk.find(" error ");
    EXPECT_NE(error, std::string::npos) << start.talk;
    EXPECT_EQ(start.talk.find(" error ", error + 1), std::string::npos) << start.talk;
  }
}

TEST_F(CoordinatorFlagsTest, TlsWithoutAKey_IsUsage) {
  const support::Finished start =
      support::RunToEnd({support::Program("phalanx-coordinator"), "--store", folder_, "--tls-ca",
                         "/ca.pem", "--tls-certificate", "/own.pem"});
  EXPECT_EQ(start.exit_code, 2);
  EXPECT_THAT(start.talk, HasSubstr("--tls-key is missing"));
}

TEST_F(CoordinatorFlagsTest, RevokedCertificatesInPlaintext_AreUsage) {
  const support::Finished start = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", folder_, "--tls-revoked", "/r"});
  EXPECT_EQ(start.exit_code, 2);
  EXPECT_THAT(start.talk, HasSubstr("--tls-revoked: there are no certificates without --tls-ca"));
}

TEST_F(CoordinatorFlagsTest, QuotasThatAreNotSound_AreUsage_AndNamedAllAtOnce) {
  const std::string quotas = folder_ + "/quotas.yaml", store = folder_ + "/none";
  std::ofstream(quotas) << "default: {devices: 4}\nowners: {alice: {jobs_max: -1}}\n";
  const support::Finished start = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", store, "--quotas", quotas});
  EXPECT_EQ(start.exit_code, 2);
  EXPECT_THAT(start.talk, AllOf(HasSubstr(quotas + ":1: default.devices: 4: unknown field"),
                                HasSubstr(quotas + ":2: owners.alice.jobs_max: -1: must be")));
  EXPECT_FALSE(std::filesystem::exists(store));
}

}  // namespace
}  // namespace phalanx::coordinator
