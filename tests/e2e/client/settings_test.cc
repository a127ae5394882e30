// Flags, environment and config file of the `phalanx` command, in processes of their own.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SettingsTest : public ::testing::Test {
 protected:
  // With the variables and the command line given; nothing of this process's own settings.
  support::Finished Phalanx(std::vector<std::string> variables,
                            const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv = {"/usr/bin/env", "-u", "PHALANX_SERVER",
                                     "PHALANX_CONFIG=" + path_};
    argv.insert(argv.end(), variables.begin(), variables.end());
    argv.push_back(support::Program("phalanx"));
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return support::RunToEnd(argv);
  }

  const std::string path_ = support::MakeFolder("e2e-settings") + "/config.yaml";
};

TEST_F(SettingsTest, FlagGoesBeforeVariableAndThatBeforeTheContext) {
  ASSERT_EQ(Phalanx({}, {"config", "set", "lab", "server=file:1", "output=json"}).exit_code, 0);
  EXPECT_THAT(Phalanx({}, {"config", "show"}).out, HasSubstr("\"value\": \"file:1\""));
  EXPECT_THAT(Phalanx({}, {"config", "show", "-o", "table"}).out,
              AllOf(HasSubstr("server   file:1 "), HasSubstr(" " + path_ + ":5\n")));
  EXPECT_THAT(Phalanx({"PHALANX_SERVER=variable:1"}, {"config", "show", "-o", "table"}).out,
              HasSubstr("variable:1"));
  EXPECT_THAT(Phalanx({"PHALANX_SERVER=variable:1"},
                      {"--server", "flag:1", "config", "show", "-o", "table"})
                  .out,
              HasSubstr("flag:1"));
}

TEST_F(SettingsTest, ServerOfTheContext_IsTheOneThatIsAsked) {
  ASSERT_EQ(Phalanx({}, {"config", "set", "lab", "server=127.0.0.1:1", "timeout=100ms"}).exit_code,
            0);
  const support::Finished list = Phalanx({}, {"list"});
  EXPECT_EQ(list.exit_code, 69);
  EXPECT_THAT(list.talk, HasSubstr("the coordinator at 127.0.0.1:1 does not answer"));
  EXPECT_THAT(list.talk, HasSubstr("what to do: "));
}

// To 0.0.0.0 a machine reaches itself, where nobody listens at port 1.
TEST_F(SettingsTest, ServerBeyondLoopback_IsNotCalledInPlaintext_AskedOrNot) {
  const std::vector<std::vector<std::string>> commands = {
      {"list"},
      {"get", "7"},
      {"watch", "7"},
      {"logs", "7"},
      {"nodes"},
      {"top"},
      {"doctor"},
      {"incidents", "list", "7"},
      {"token", "create"},
      {"cordon", "a", "--reason", "b"},
      {"rerun", "7"},
      {"submit", "/nonexistent.yaml"},
      {"inject", "--job", "7", "--rank", "0", "--fault", "kill"}};
  for (const std::vector<std::string>& command : commands) {
    const support::Finished refused = Phalanx({"PHALANX_SERVER=0.0.0.0:1"}, command);
    EXPECT_EQ(refused.exit_code, 2) << command[0];
    EXPECT_THAT(refused.talk,
                HasSubstr("PHALANX_SERVER: 0.0.0.0:1: plaintext is for loopback alone; give "
                          "--tls-ca, --tls-certificate and --tls-key: scripts/make_ca"))
        << command[0];
    EXPECT_EQ(refused.out, "") << command[0];
  }
  const std::vector<std::string> list = {"list", "--timeout", "100ms"};
  const support::Finished asked =
      Phalanx({"PHALANX_SERVER=0.0.0.0:1", "PHALANX_PLAINTEXT=true"}, list);
  EXPECT_EQ(asked.exit_code, 2);
  EXPECT_THAT(asked.talk, HasSubstr("so PHALANX_PLAINTEXT does not go with it; give --tls-ca"));
  const support::Finished flag =
      Phalanx({"PHALANX_SERVER=0.0.0.0:1"}, {"--plaintext", "list", "--timeout", "100ms"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_THAT(flag.talk, HasSubstr("so --plaintext does not go with it; give --tls-ca"));
  const transport::TlsFiles sam = support::Authority().User("sam", "submitter");
  EXPECT_EQ(Phalanx({"PHALANX_SERVER=0.0.0.0:1"},
                    {"--tls-ca", sam.ca, "--tls-certificate", sam.certificate, "--tls-key", sam.key,
                     "list", "--timeout", "100ms"})
                .exit_code,
            69);
  EXPECT_EQ(Phalanx({"PHALANX_SERVER=127.0.0.1:1", "PHALANX_PLAINTEXT=true"}, list).exit_code, 69);
  EXPECT_EQ(Phalanx({"PHALANX_SERVER=127.0.0.1:1"}, {"--plaintext", "list", "--timeout", "100ms"})
                .exit_code,
            69);
  EXPECT_EQ(Phalanx({"PHALANX_PLAINTEXT=yes"}, list).exit_code, 2);
  EXPECT_EQ(Phalanx({}, {"--plaintext=yes", "list"}).exit_code, 2);
  const support::Finished both = Phalanx({}, {"--plaintext", "--tls-ca", "ca.pem", "list"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.talk, HasSubstr("--plaintext: does not go with --tls-ca; leave one of them"));
}

// Before anybody is called: nobody listens at port 1.
TEST_F(SettingsTest, OwnFilesOfCertificatesThatAreSpoilt_AreNamedWithTheRule) {
  const support::Authority authority;
  const transport::TlsFiles good = authority.User("sam", "submitter");
  const std::string bad = authority.folder() + "/bad.pem";
  const auto list = [&](const transport::TlsFiles& files) {
    return Phalanx({}, {"--server", "127.0.0.1:1", "--timeout", "100ms", "--tls-ca", files.ca,
                        "--tls-certificate", files.certificate, "--tls-key", files.key, "list"});
  };
  EXPECT_EQ(list(good).exit_code, 69);
  EXPECT_THAT(list(good).talk, HasSubstr("each side's certificate holds"));
  support::WriteFile(bad, "spoilt\n");
  struct Row {
    std::string transport::TlsFiles::*file;
    std::string path, said;
  };
  for (const auto& [file, path, said] : std::vector<Row>{
           {&transport::TlsFiles::ca, bad, "--tls-ca: " + bad + ": must begin with a certificate"},
           {&transport::TlsFiles::certificate, bad,
            "--tls-certificate: " + bad + ": must begin with a certificate in PEM"},
           {&transport::TlsFiles::key, bad,
            "--tls-key: " + bad + ": must be a private key in PEM, without a password"},
           {&transport::TlsFiles::key, authority.User("sue", "submitter").key,
            "-key.pem: is not the key of " + good.certificate},
           {&transport::TlsFiles::ca, "/nowhere", "--tls-ca: /nowhere: cannot be read: No such"},
           {&transport::TlsFiles::ca, "/", "--tls-ca: /: "}}) {
    transport::TlsFiles files = good;
    files.*file = path;
    const support::Finished refused = list(files);
    EXPECT_EQ(refused.exit_code, 2) << path;
    EXPECT_THAT(refused.talk, AllOf(HasSubstr("error: "), HasSubstr(said),
                                    HasSubstr("what to do: correct the file or name another one")));
    EXPECT_EQ(refused.out, "");
  }
  const transport::TlsFiles old = authority.User("old", "submitter", -1);
  const support::Finished expired = list(old);
  EXPECT_EQ(expired.exit_code, 69);
  EXPECT_THAT(expired.talk,
              AllOf(HasSubstr("--tls-certificate: " + old.certificate + ": expired at 20"),
                    HasSubstr("what to do: ask for a certificate that holds")));
}

TEST_F(SettingsTest, CommandsThatCallNobody_RunWhateverTheServer) {
  const std::vector<std::string> elsewhere = {"PHALANX_SERVER=0.0.0.0:1"};
  EXPECT_EQ(Phalanx(elsewhere, {"config", "show"}).exit_code, 0);
  EXPECT_THAT(Phalanx(elsewhere, {"doctor", "--machine", "-o", "json"}).out,
              HasSubstr("\"check\": \"limits\""));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"plan", "/nonexistent.yaml"},
                                             {"validate", "/nonexistent.yaml"},
                                             {"checkpoints", "list", "/nonexistent"},
                                             {"checkpoints", "show", "/nonexistent"}}) {
    EXPECT_NE(Phalanx(elsewhere, command).exit_code, 2) << command[0];
  }
}

TEST_F(SettingsTest, FileThatIsWrong_StopsWhatNeedsItAndNothingElse) {
  support::WriteFile(path_, "contexts:\n  lab: {servr: a:1}\n");
  const support::Finished list = Phalanx({}, {"list"});
  EXPECT_EQ(list.exit_code, 78);
  EXPECT_THAT(list.talk, HasSubstr(path_ + ":2: contexts.lab.servr: a:1: unknown field; did you "
                                           "mean server?"));
  EXPECT_EQ(Phalanx({}, {"version"}).exit_code, 0);
}

TEST_F(SettingsTest, BadFlagsAndVariables_AreUsage) {
  EXPECT_EQ(Phalanx({}, {"--server", "x", "list"}).exit_code, 2);
  EXPECT_EQ(Phalanx({"PHALANX_SERVER=x"}, {"list"}).exit_code, 2);
  EXPECT_EQ(Phalanx({}, {"list", "--state", "asleep"}).exit_code, 2);
  EXPECT_EQ(Phalanx({}, {"list", "-l", "team"}).exit_code, 2);
  EXPECT_EQ(Phalanx({}, {"events", "7", "--since", "yesterday"}).exit_code, 2);
}

TEST_F(SettingsTest, BadFlags_AreToldWithTheirValueAndTheRule) {
  EXPECT_THAT(Phalanx({}, {"--server", "x", "list"}).talk,
              HasSubstr("--server: \"x\": must be HOST:PORT such as 10.0.0.5:4444"));
  EXPECT_THAT(Phalanx({}, {"events", "7", "--since", "yesterday"}).talk,
              HasSubstr("--since: \"yesterday\": must be a duration such as 2h"));
  EXPECT_THAT(Phalanx({}, {"list", "--limit", "-1"}).talk,
              HasSubstr("--limit: Value -1 not in range 0 to 2147483647"));
  EXPECT_THAT(Phalanx({}, {"logs", "7", "--epoch", "99999999999"}).talk,
              HasSubstr("--epoch: Value 99999999999 not in range 1 to 2147483647"));
  const support::Finished tail = Phalanx({}, {"logs", "7", "--tail", "0"});
  EXPECT_EQ(tail.exit_code, 2);
  EXPECT_THAT(tail.talk, HasSubstr("--tail: Value 0 not in range 1 to 2147483647"));
}

// As where a script's variable is not set.
TEST_F(SettingsTest, FlagsWithAnEmptyValue_AreUsage_ToldAllAtOnce) {
  const std::string left_out = ": \"\": must have a value, or be left out\n";
  const auto said = [&](const std::vector<std::string>& arguments) {
    const support::Finished refused = Phalanx({}, arguments);
    EXPECT_EQ(refused.exit_code, 2) << arguments[0];
    EXPECT_EQ(refused.out, "") << arguments[0];
    return refused.talk;
  };
  EXPECT_EQ(said({"rerun", "7", "--name", ""}), "--name" + left_out);
  EXPECT_EQ(said({"rerun", "--name=", "7"}), "--name" + left_out);
  EXPECT_EQ(said({"submit", "/nonexistent.yaml", "--directory", ""}), "--directory" + left_out);
  EXPECT_EQ(said({"plan", "/nonexistent.yaml", "--svg", "", "--device-memory", "", "--lost", ""}),
            "--device-memory" + left_out + "--svg" + left_out + "--lost" + left_out);
  EXPECT_EQ(said({"doctor", "--folder", "", "--machine"}), "--folder" + left_out);
  EXPECT_EQ(
      said({"--tls-ca", "", "--server", "", "list", "--owner", "", "--limit", ""}),
      "--server" + left_out + "--tls-ca" + left_out + "--limit" + left_out + "--owner" + left_out);
  EXPECT_EQ(said({"get", ""}), "JOB: \"\": must have a value\n");
  EXPECT_EQ(Phalanx({"PHALANX_SERVER="}, {"config", "show"}).exit_code, 0) << "a variable may be";
}

TEST_F(SettingsTest, FormatBehindAnEqualsSign_IsTheFormat) {
  EXPECT_EQ(Phalanx({}, {"config", "show", "-o=json"}).out,
            Phalanx({}, {"config", "show", "-o", "json"}).out);
  const support::Finished refused = Phalanx({}, {"config", "show", "-o=xml"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.talk, HasSubstr("-o: xml not in {table,wide,json,yaml,name}"));
  EXPECT_EQ(Phalanx({}, {"config", "show", "-o="}).exit_code, 2);
}

// A line of theirs must not pass for one of ours, nor a control character for a command.
TEST_F(SettingsTest, LineEndsInWhatIsGiven_AreWrittenOut) {
  const std::string evil = "a\nb\x1b[2J", shown = "a\\nb\\x1b[2J";
  for (const std::vector<std::string>& words : {std::vector<std::string>{evil},
                                                {"token", evil},
                                                {"list", evil},
                                                {"list", "-o", evil},
                                                {"list", "--state", evil},
                                                {"logs", "7", "--since", evil},
                                                {"validate", evil},
                                                {"submit", evil},
                                                {"config", "use", evil},
                                                {"--context", evil, "list"}}) {
    const std::string talk = Phalanx({}, words).talk;
    EXPECT_THAT(talk, AllOf(HasSubstr(shown), testing::Not(HasSubstr("\x1b")),
                            testing::Not(HasSubstr("a\n"))))
        << words[0];
  }
}

TEST_F(SettingsTest, LimitOfAWatchedList_IsUsage) {
  const support::Finished refused = Phalanx({}, {"list", "--limit", "1", "-w"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.talk, "--limit: 1: does not go with -w, which shows every job that changes\n");
}

TEST_F(SettingsTest, JobBehindRank_IsTheJob) {
  const support::Finished logs =
      Phalanx({}, {"--server", "127.0.0.1:1", "--timeout", "100ms", "logs", "--rank", "0", "demo"});
  EXPECT_EQ(logs.exit_code, 69);
  EXPECT_THAT(logs.talk, HasSubstr("the coordinator at 127.0.0.1:1 does not answer"));
}

TEST_F(SettingsTest, Doctor_OfThisMachineAlone_AsksNobody) {
  const support::Finished doctor = Phalanx({}, {"doctor", "--machine", "-o", "json"});
  EXPECT_THAT(doctor.out, HasSubstr("\"check\": \"limits\""));
  EXPECT_EQ(doctor.out.find("\"coordinator\""), std::string::npos);
}

}  // namespace
}  // namespace phalanx::e2e
