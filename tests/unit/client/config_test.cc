// The config file, and which of flag, environment, file and default holds.
#include "client/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  Environment Variables() const {
    return [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    };
  }
  absl::StatusOr<Settings> Resolve(const std::map<std::string, std::string>& flags = {}) const {
    return ResolveSettings(flags, Variables());
  }

  const std::string folder_ = support::MakeFolder("config");
  const std::string path_ = folder_ + "/phalanx/config.yaml";
  std::map<std::string, std::string> variables_ = {{"XDG_CONFIG_HOME", folder_}};
  Captured captured_;
};

TEST_F(ConfigTest, Path_IsThatOfTheFirstVariableThatIsSet) {
  std::map<std::string, std::string> variables = {{"HOME", "/home/me"}};
  const Environment environment = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  EXPECT_EQ(ConfigPath(environment), "/home/me/.config/phalanx/config.yaml");
  variables["XDG_CONFIG_HOME"] = "/xdg";
  EXPECT_EQ(ConfigPath(environment), "/xdg/phalanx/config.yaml");
  variables["PHALANX_CONFIG"] = "/else.yaml";
  EXPECT_EQ(ConfigPath(environment), "/else.yaml");
  variables.clear();
  EXPECT_EQ(ConfigPath(environment), "");
}

TEST_F(ConfigTest, NoFile_MeansDefaults) {
  const absl::StatusOr<Settings> settings = Resolve();
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->Of("server"), "");
  EXPECT_EQ(settings->fields.at("server").from, "default");
  EXPECT_EQ(settings->OutputFormat(), Format::kTable);
  EXPECT_EQ(settings->Timeout(absl::Seconds(7)), absl::Seconds(7));
}

TEST_F(ConfigTest, FlagsGoBeforeTheEnvironmentAndThatBeforeTheFile) {
  ASSERT_EQ(ConfigSet(path_, "lab", {"server=file:1", "output=wide", "timeout=9s"}, captured_.io),
            kSuccess);
  absl::StatusOr<Settings> settings = Resolve();
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->Of("server"), "file:1");
  EXPECT_EQ(settings->fields.at("server").from, absl::StrCat(path_, ":5"));
  EXPECT_EQ(settings->OutputFormat(), Format::kWide);
  EXPECT_EQ(settings->Timeout(absl::Seconds(7)), absl::Seconds(9));
  variables_["PHALANX_SERVER"] = "variable:1";
  settings = Resolve();
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->Of("server"), "variable:1");
  EXPECT_EQ(settings->fields.at("server").from, "PHALANX_SERVER");
  settings = Resolve({{"server", "flag:1"}, {"output", ""}});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->Of("server"), "flag:1");
  EXPECT_EQ(settings->fields.at("server").from, "--server");
  EXPECT_EQ(settings->OutputFormat(), Format::kWide) << "a flag that was not given says nothing";
}

TEST_F(ConfigTest, Context_IsThatOfTheFlagTheVariableOrTheFile) {
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_EQ(ConfigSet(path_, name, {absl::StrCat("server=", name, ":1")}, captured_.io),
              kSuccess);
  }
  EXPECT_EQ(Resolve()->Of("server"), "a:1") << "the first one that is made is the current one";
  ASSERT_EQ(ConfigUse(path_, "b", captured_.io), kSuccess);
  EXPECT_EQ(Resolve()->Of("server"), "b:1");
  variables_["PHALANX_CONTEXT"] = "c";
  EXPECT_EQ(Resolve()->Of("server"), "c:1");
  EXPECT_EQ(Resolve({{"context", "a"}})->Of("server"), "a:1");
  const absl::StatusOr<Settings> none = Resolve({{"context", "bb"}});
  EXPECT_EQ(none.status().message(), path_ + " has no context \"bb\"; did you mean b?");
}

TEST_F(ConfigTest, VariableThatBreaksItsRule_IsNamed) {
  variables_["PHALANX_SERVER"] = "no port";
  const absl::Status status = Resolve().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(FailSettings(status, captured_.io), kUsage);
  EXPECT_EQ(captured_.talk.str(),
            "PHALANX_SERVER: no port: must be HOST:PORT such as 10.0.0.5:4444\n1 violation\n");
}

// Opening it would wait for somebody who writes.
TEST_F(ConfigTest, Pipe_IsRefusedAtOnce) {
  variables_["PHALANX_CONFIG"] = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(variables_["PHALANX_CONFIG"].c_str(), 0600), 0);
  EXPECT_EQ(Resolve().status().message(), "cannot read " + folder_ +
                                              "/pipe: is a pipe; PHALANX_CONFIG names another "
                                              "file");
}

TEST_F(ConfigTest, EverythingThatIsWrongWithTheFile_IsToldWithFileLineFieldValueAndRule) {
  variables_["PHALANX_CONFIG"] = folder_ + "/bad.yaml";
  const std::string& bad = variables_["PHALANX_CONFIG"];
  support::WriteFile(bad,
                     "current: labb\n"
                     "contexts:\n"
                     "  lab:\n"
                     "    server: 10.0.0.5\n"
                     "    outptu: json\n"
                     "  \"two words\": {}\n"
                     "contxts: {}\n");
  const absl::Status status = Resolve().status();
  EXPECT_EQ(FailSettings(status, captured_.io), kBadConfig);
  EXPECT_EQ(
      captured_.talk.str(),
      absl::StrCat("error: ", bad,
                   ":4: contexts.lab.server: 10.0.0.5: must be HOST:PORT such as "
                   "10.0.0.5:4444\n",
                   bad, ":5: contexts.lab.outptu: json: unknown field; did you mean output?\n", bad,
                   ":6: contexts.two words: a context has a name of at most 63 letters, "
                   "digits, '-', '_' and '.'\n",
                   bad, ":7: contxts: unknown field; did you mean contexts?\n", bad,
                   ":1: current: labb: must be the name of one of the contexts\n"
                   "correct the file, or name another one with PHALANX_CONFIG\n"));
  support::WriteFile(bad, "contexts: [\n");
  EXPECT_THAT(Resolve().status().message(), HasSubstr(bad + ":"));
  EXPECT_THAT(Resolve().status().message(), HasSubstr("line "));
}

TEST_F(ConfigTest, SettingThatIsGivenTwice_IsNone) {
  EXPECT_EQ(ConfigSet(path_, "lab", {"server=a:1", "output=json", "server=b:2"}, captured_.io),
            kUsage);
  EXPECT_EQ(captured_.talk.str(), "server: b:2: is given twice\n1 violation\n");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ConfigTest, Set_ThatIsWrong_TellsAllAndChangesNothing) {
  EXPECT_EQ(ConfigSet(path_, "lab", {"server=x", "colour=red", "timeout"}, captured_.io), kUsage);
  EXPECT_EQ(captured_.talk.str(),
            "server: x: must be HOST:PORT such as 10.0.0.5:4444\n"
            "SETTING: colour=red: must be one of server, output, timeout, tls_ca, tls_certificate, "
            "tls_key, plaintext, then = and its value\n"
            "SETTING: timeout: must be one of server, output, timeout, tls_ca, tls_certificate, "
            "tls_key, plaintext, then = and its value\n"
            "3 violations\n");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ConfigTest, Set_WithoutAValue_TakesTheSettingOut) {
  ConfigSet(path_, "lab", {"server=a:1", "output=json"}, captured_.io);
  ConfigSet(path_, "lab", {"output="}, captured_.io);
  const absl::StatusOr<Config> config = ReadConfig(path_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->contexts.at("lab").size(), 1u);
  EXPECT_EQ(config->contexts.at("lab").at("server").text, "a:1");
}

TEST_F(ConfigTest, FileAndItsFolder_AreTheOwnersAlone) {
  const mode_t before = umask(0);
  ConfigSet(path_, "lab", {"server=a:1"}, captured_.io);
  umask(before);
  struct stat file = {}, folder = {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  ASSERT_EQ(stat((folder_ + "/phalanx").c_str(), &folder), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_EQ(folder.st_mode & 0777, 0700u);
}

TEST_F(ConfigTest, SetOfManyAtOnce_LosesNone) {
  ConfigSet(path_, "lab", {"server=a:1"}, captured_.io);
  std::vector<std::thread> setters;
  for (int i = 0; i < 8; ++i) {
    setters.emplace_back([this, i] {
      Captured captured;
      ConfigSet(path_, absl::StrCat("lab", i), {"server=a:1"}, captured.io);
    });
  }
  for (std::thread& setter : setters) setter.join();
  const absl::StatusOr<Config> config = ReadConfig(path_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->contexts.size(), 9u);
}

TEST_F(ConfigTest, FileThatIsALink_StaysOne) {
  support::WriteFile(folder_ + "/real.yaml", "");
  std::filesystem::create_symlink(folder_ + "/real.yaml", folder_ + "/link.yaml");
  ConfigSet(folder_ + "/link.yaml", "lab", {"server=a:1"}, captured_.io);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/link.yaml"));
  EXPECT_THAT(support::ReadFile(folder_ + "/real.yaml"), HasSubstr("a:1"));
}

TEST_F(ConfigTest, UseAndDelete_OfWhatIsNotThere_SayWhatIs) {
  ConfigSet(path_, "lab", {"server=a:1"}, captured_.io);
  Captured use, gone, last;
  EXPECT_EQ(ConfigUse(path_, "la", use.io), kBadConfig);
  EXPECT_EQ(use.talk.str(), "error: " + path_ +
                                " has no context \"la\"; phalanx config list shows those that "
                                "there are\n");
  EXPECT_EQ(ConfigDelete(path_, "lab", last.io), kSuccess);
  EXPECT_EQ(last.talk.str(),
            "deleted context lab; none is the current one now, phalanx config use NAME chooses "
            "one\n");
  EXPECT_EQ(ConfigDelete(path_, "lab", gone.io), kBadConfig);
  EXPECT_TRUE(Resolve().ok());
}

TEST_F(ConfigTest, Show_NamesWhereEachValueIsFrom) {
  ConfigSet(path_, "lab", {"server=10.0.0.5:4444"}, captured_.io);
  variables_["PHALANX_TIMEOUT"] = "8s";
  const absl::StatusOr<Settings> settings = Resolve({{"output", "table"}});
  ASSERT_TRUE(settings.ok()) << settings.status();
  Captured table, json;
  EXPECT_EQ(ConfigShow(*settings, Format::kTable, table.io), kSuccess);
  EXPECT_EQ(table.out.str(), absl::StrCat("SETTING  VALUE          FROM\n"
                                          "context  lab            ",
                                          path_,
                                          ":1\n"
                                          "server   10.0.0.5:4444  ",
                                          path_,
                                          ":4\n"
                                          "output   table          -o\n"
                                          "timeout  8s             PHALANX_TIMEOUT\n"));
  ConfigShow(*settings, Format::kJson, json.io);
  EXPECT_THAT(json.out.str(), HasSubstr("\"server\": {\n    \"value\": \"10.0.0.5:4444\""));
}

TEST_F(ConfigTest, Certificates_AreFromFlagsThenVariablesThenTheContext) {
  ConfigSet(path_, "lab",
            {"server=a:1", "tls_ca=/f/ca", "tls_certificate=/f/own", "tls_key=/f/key"},
            captured_.io);
  variables_["PHALANX_TLS_CERTIFICATE"] = "/v/own";
  variables_["PHALANX_TLS_KEY"] = "/v/key";
  const absl::StatusOr<Settings> settings = Resolve({{"tls_key", "key"}});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->Tls().ca, "/f/ca");
  EXPECT_EQ(settings->Tls().certificate, "/v/own");
  EXPECT_EQ(settings->Tls().key, "key");
  Captured shown, listed;
  ConfigShow(*settings, Format::kTable, shown.io);
  EXPECT_THAT(shown.out.str(), ContainsRegex("tls_certificate +/v/own +PHALANX_TLS_CERTIFICATE"));
  ConfigList(path_, Format::kTable, listed.io);
  EXPECT_THAT(listed.out.str(), HasSubstr("TLS_CERTIFICATE"));
}

TEST_F(ConfigTest, CertificateBesideTheWorkingFolder_IsRefusedOutsideOfFlags) {
  EXPECT_EQ(ConfigSet(path_, "lab", {"tls_ca=ca.pem"}, captured_.io), kUsage);
  EXPECT_THAT(captured_.talk.str(), HasSubstr("tls_ca: ca.pem: must be an absolute path"));
}

TEST_F(ConfigTest, Plaintext_IsFromTheFlagThenTheVariableThenTheContext) {
  variables_["PHALANX_CONFIG"] = folder_ + "/lab.yaml";
  support::WriteFile(variables_["PHALANX_CONFIG"],
                     "current: lab\ncontexts:\n  lab: {server: train:4444, plaintext: true}\n");
  const auto message = [this](const std::map<std::string, std::string>& flags = {}) {
    return std::string(Resolve(flags)->CheckServer().message());
  };
  EXPECT_EQ(Resolve()->fields.at("plaintext").from, folder_ + "/lab.yaml:3");
  EXPECT_THAT(message(), HasSubstr("so " + folder_ + "/lab.yaml:3: plaintext does not go"));
  variables_["PHALANX_PLAINTEXT"] = "false";
  EXPECT_THAT(message(), HasSubstr("plaintext is for loopback alone; give"));
  EXPECT_THAT(message({{"plaintext", "true"}}), HasSubstr("so --plaintext does not go"));
  variables_["PHALANX_PLAINTEXT"] = "true";
  EXPECT_THAT(message(), HasSubstr("so PHALANX_PLAINTEXT does not go"));
  EXPECT_THAT(message({{"plaintext", "false"}}),
              HasSubstr("plaintext is for loopback alone; give"));
  variables_["PHALANX_PLAINTEXT"] = "yes";
  EXPECT_THAT(Resolve().status().message(),
              HasSubstr("PHALANX_PLAINTEXT: yes: must be true or false"));
  EXPECT_EQ(ConfigSet(path_, "lab", {"plaintext=1"}, captured_.io), kUsage);
  EXPECT_THAT(captured_.talk.str(), HasSubstr("plaintext: 1: must be true or false"));
}

TEST_F(ConfigTest, ServerBeyondLoopback_IsCalledWithCertificatesAlone) {
  const auto fault = [this](const std::map<std::string, std::string>& flags) {
    const absl::StatusOr<Settings> settings = Resolve(flags);
    return std::string(settings.ok() ? settings->CheckServer().message()
                                     : settings.status().message());
  };
  for (const char* here : {"", "127.0.0.1:4444", "localhost:4444", "[::1]:1,127.0.0.2:1"}) {
    EXPECT_EQ(fault({{"server", here}}), "") << here;
    EXPECT_EQ(fault({{"server", here}, {"plaintext", "true"}}), "") << here;
  }
  const std::string remedy =
      "; give --tls-ca, --tls-certificate and --tls-key: scripts/make_ca makes them for "
      "development";
  const std::string begin = ": plaintext is for loopback alone", rule = begin + remedy;
  EXPECT_EQ(fault({{"server", "train:4444"}}), "--server: train:4444" + rule);
  EXPECT_EQ(fault({{"server", "127.0.0.1:1,10.0.0.5:1"}}), "--server: 10.0.0.5:1" + rule);
  variables_["PHALANX_SERVER"] = "train:4444";
  EXPECT_EQ(fault({}), "PHALANX_SERVER: train:4444" + rule);
  variables_.erase("PHALANX_SERVER");
  ConfigSet(path_, "lab", {"server=train:4444"}, captured_.io);
  EXPECT_EQ(fault({}), path_ + ":4: server: train:4444" + rule);
  EXPECT_EQ(fault({{"plaintext", "true"}}), path_ + ":4: server: train:4444" + begin +
                                                ", so --plaintext does not go with it" + remedy);
  EXPECT_THAT(fault({{"tls_ca", "ca.pem"}}), HasSubstr("--tls-certificate is missing"));
  ConfigSet(path_, "lab", {"tls_key=/key"}, captured_.io);
  EXPECT_THAT(fault({}), HasSubstr("--tls-ca is missing"));
  EXPECT_EQ(fault({{"plaintext", "true"}}),
            "--plaintext: does not go with " + path_ + ":5: tls_key; leave one of them out");
  variables_["PHALANX_TLS_CA"] = "/ca";
  EXPECT_EQ(fault({{"plaintext", "true"}}),
            "--plaintext: does not go with PHALANX_TLS_CA; leave one of them out");
  EXPECT_THAT(fault({{"plaintext", "false"}}), HasSubstr("--tls-certificate is missing"));
}

TEST_F(ConfigTest, List_MarksTheCurrentOne) {
  Captured none, table, name;
  EXPECT_EQ(ConfigList(path_, Format::kTable, none.io), kSuccess);
  EXPECT_EQ(none.talk.str(), "no contexts; phalanx config set NAME server=HOST:PORT makes one\n");
  ConfigSet(path_, "lab", {"server=a:1"}, captured_.io);
  ConfigSet(path_, "prod", {"server=b:1", "output=json"}, captured_.io);
  ConfigList(path_, Format::kTable, table.io);
  EXPECT_EQ(table.out.str(),
            "CURRENT  NAME  SERVER  OUTPUT  TIMEOUT\n"
            "*        lab   a:1     -       -\n"
            "         prod  b:1     json    -\n");
  ConfigList(path_, Format::kName, name.io);
  EXPECT_EQ(name.out.str(), "lab\nprod\n");
  Captured rows;
  rows.io.headers = false;
  ConfigList(path_, Format::kTable, rows.io);
  EXPECT_EQ(rows.out.str(),
            "*        lab   a:1     -       -\n"
            "         prod  b:1     json    -\n");
}

}  // namespace
}  // namespace phalanx::client
