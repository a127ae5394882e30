// client/main.cc: the `phalanx` command: flags in, exit code out.
#include <google/protobuf/stubs/logging.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/doctor.h"
#include "client/exit_code.h"
#include "client/interrupt.h"
#include "client/output.h"
#include "client/program.h"
#include "client/top.h"
#include "core/base/cut_text.h"
#include "core/base/empty_flags.h"
#include "core/base/terminal_text.h"
#include "core/job/scalar.h"
#include "core/posix/signals.h"
#include "core/posix/unique_fd.h"
#include "transport/library_log.h"

namespace phalanx::client {
namespace {

constexpr size_t kFlagBytesShown = 64;

#ifndef PHALANX_VERSION
#define PHALANX_VERSION "unknown"
#endif

Io TerminalIo() {
  Io io{.out = std::cout, .talk = std::cerr};
  io.terminal = isatty(STDERR_FILENO) == 1;
  winsize size{};
  if (io.terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    io.columns = size.ws_col;
  }
  return io;
}

// Those that may stand behind it.
std::vector<const CLI::App*> CommandsOf(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

void TellUnknownCommand(const CLI::App& of, const std::string& known, const std::string& word) {
  std::vector<absl::string_view> names;
  for (const CLI::App* command : CommandsOf(of)) names.push_back(command->get_name());
  const auto near = job::NearestName(word, names);
  std::cerr << "unknown command '" << known << LineText(CutText(word, kFlagBytesShown)) << "'; "
            << (near.has_value() ? absl::StrCat("did you mean ", known, *near, "? ") : "")
            << "phalanx " << known << "--help lists them\n";
}

// Of `words`, the one that stands before the command and is none of the flags that may; empty:
// there is none.
std::string FlagBeforeItsCommand(const CLI::App& app, absl::Span<const char* const> words) {
  if (app.get_subcommands().empty()) return "";
  const std::string command = app.get_subcommands().front()->get_name();
  const std::vector<std::string> rest = app.remaining();
  for (const absl::string_view word : words) {
    if (word == command) break;
    if (absl::StartsWith(word, "-") && std::find(rest.begin(), rest.end(), word) != rest.end())
      return LineText(CutText(std::string(word), kFlagBytesShown));
  }
  return "";
}

// The parser's own words, which repeat what was given, on one line; then where help is.
std::string UsageText(const CLI::App* app, const CLI::Error& error) {
  const std::string what = error.what(), whole = CLI::FailureMessage::simple(app, error);
  return LineText(what) + whole.substr(what.size());
}

// Of a setting's flag.
std::function<std::string(const std::string&)> SettingCheck(absl::string_view setting) {
  return [field = FindSettingField(setting)](const std::string& value) {
    return FlagFault(value, field->fault(value));
  };
}

}  // namespace

std::string ProgramFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

std::string FlagFault(const std::string& value, const std::string& rule) {
  if (rule.empty()) return "";
  return absl::StrCat("\"", LineText(CutText(value, kFlagBytesShown)), "\": ", rule);
}

const char* EnvironmentOf(const char* name) { return std::getenv(name); }

CLI::App* Program::Add(const std::string& name, const std::string& description, Action action) {
  return AddTo(app_, name, description, std::move(action));
}

CLI::App* Program::AddTo(CLI::App& parent, const std::string& name, const std::string& description,
                         Action action) {
  CLI::App* command = parent.add_subcommand(name, description);
  // The global flags may also stand after the command.
  command->fallthrough();
  command->callback([this, command, action = std::move(action)] {
    chosen_ = action;
    chosen_command_ = command;
  });
  return command;
}

CLI::App* Program::AddGroup(const std::string& name, const std::string& description) {
  CLI::App* group = app_.add_subcommand(name, description);
  group->require_subcommand(1);
  group->fallthrough();
  return group;
}

void Program::AddFormat(CLI::App* command) {
  // The parser takes all behind -o for the value, and people are used to -o=json.
  command->add_option("-o", flags_.output, "table, wide, json, yaml or name")
      ->transform(
          [](const std::string& text) { return text.substr(absl::StartsWith(text, "=") ? 1 : 0); })
      ->check(CLI::IsMember({"table", "wide", "json", "yaml", "name"}))
      ->type_name("FORMAT");
}

void Program::AddNoHeaders(CLI::App* command) {
  command->add_flag("--no-headers", flags_.no_headers, "of a table only the rows");
}

void Program::AddFile(CLI::App* command) {
  command->add_option("JOB,-f,--filename", flags_.file, "job file; - is standard input")
      ->required();
}

void Program::AddJob(CLI::App* command) {
  command->add_option("JOB", flags_.job, "job-N, N, or a name (the newest job that has it)")
      ->required();
}

ConnectionOptions Program::Server(absl::Duration timeout, absl::Duration turn) const {
  // While one coordinator follows another nobody answers for some seconds.
  if (absl::StrContains(settings_.Of("server"), ',')) {
    timeout = std::max(timeout, absl::Seconds(10));
  }
  ConnectionOptions options = {.server = settings_.Of("server"),
                               .tls = settings_.Tls(),
                               .timeout = settings_.Timeout(timeout)};
  options.turn = std::max(options.turn, std::min(turn, options.timeout / 3));
  return options;
}

int Program::Interruptible(const std::function<int(Stopper&)>& command) {
  Stopper stopper;
  const Interrupt interrupt({SIGINT, SIGTERM}, [&stopper](int) { stopper.Stop(); });
  return command(stopper);
}

void Program::AddOtherCommands() {
  CLI::App* top = Add("top", "Show live jobs and nodes, redrawn as they change", [this](Io& io) {
    return Interruptible([&](Stopper& stopper) {
      const bool terminal = isatty(STDOUT_FILENO) == 1;
      // Whoever looks on waits for a coordinator that restarts, as every watch does.
      Connection connection(Server(terminal ? absl::Minutes(1) : absl::Seconds(5)));
      return Top(connection, {.format = format(), .terminal = terminal}, stopper, io);
    });
  });
  AddFormat(top);
  CLI::App* doctor =
      Add("doctor", "Check this machine and its cluster, and say what is wrong", [this](Io& io) {
        Connection connection(Server());
        return Doctor(connection,
                      {.folder = flags_.folder,
                       .cluster = !flags_.machine,
                       .version = PHALANX_VERSION,
                       .format = format()},
                      io);
      });
  AddFormat(doctor);
  doctor->add_option("--folder", flags_.folder, "also try a folder that jobs are to share")
      ->type_name("DIR");
  doctor->add_flag("--machine", flags_.machine, "this machine alone: ask no coordinator");
  NeedsNoSettings(Add("version", "Print the version", [](Io& io) {
    io.out << "phalanx " << PHALANX_VERSION << "\n";
    return static_cast<int>(kSuccess);
  }));
  CLI::App* completion = Add("completion", "Print a completion script for a shell", [this](Io& io) {
    io.out << CompletionScript(flags_.shell, Words());
    return static_cast<int>(kSuccess);
  });
  NeedsNoSettings(completion);
  completion->add_option("SHELL", flags_.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

std::vector<CommandWords> Program::Words() const {
  const auto add_options = [](const CLI::App& app, std::set<std::string>* options) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) options->insert("--" + name);
      for (const std::string& name : option->get_snames()) options->insert("-" + name);
    }
  };
  std::vector<CommandWords> words;
  for (const CLI::App* command : CommandsOf(app_)) {
    CommandWords one{.name = command->get_name(), .description = command->get_description()};
    std::set<std::string> options;
    add_options(*command, &options);
    for (const CLI::App* below : CommandsOf(*command)) {
      one.commands.push_back(below->get_name());
      add_options(*below, &options);
    }
    one.options.assign(options.begin(), options.end());
    words.push_back(std::move(one));
  }
  return words;
}

void Program::AddGlobalFlags() {
  app_.add_option("--context", flags_.context,
                  "settings of this name in the config file; default: "
                  "PHALANX_CONTEXT, or the current one")
      ->type_name("NAME");
  app_.add_option("--server", flags_.server,
                  "address of the coordinator, or of several between commas; default: "
                  "PHALANX_SERVER, the context's, or 127.0.0.1:4444")
      ->check(SettingCheck("server"))
      ->type_name("HOST:PORT");
  app_.add_option(
          "--timeout", flags_.timeout,
          "how long to wait for an answer; default 5s, of submit and rerun 30s, of logs and "
          "list --watch 1m")
      ->check(SettingCheck("timeout"))
      ->type_name("DURATION");
  app_.add_option("--tls-ca", flags_.tls.ca,
                  "PEM file of the authorities whose certificate the coordinator must show; with "
                  "the two below: mutual TLS")
      ->type_name("FILE");
  app_.add_option("--tls-certificate", flags_.tls.certificate,
                  "PEM file of your own certificate, which says who you are")
      ->type_name("FILE");
  app_.add_option("--tls-key", flags_.tls.key, "PEM file of its private key")->type_name("FILE");
  app_.add_flag("--plaintext", flags_.plaintext,
                "talk to the coordinator without TLS, as without certificates: on loopback alone")
      ->check(SettingCheck("plaintext"));
}

// Reads what the command line does not say from the environment and the config file.
int Program::RunChosen(Io& io) {
  io.headers = !flags_.no_headers;
  if (without_settings_.contains(chosen_command_)) return chosen_(io);
  absl::StatusOr<Settings> settings = ResolveSettings({{"context", flags_.context},
                                                       {"server", flags_.server},
                                                       {"output", flags_.output},
                                                       {"timeout", flags_.timeout},
                                                       {"tls_ca", flags_.tls.ca},
                                                       {"tls_certificate", flags_.tls.certificate},
                                                       {"tls_key", flags_.tls.key},
                                                       {"plaintext", flags_.plaintext}},
                                                      EnvironmentOf);
  if (!settings.ok()) return FailSettings(settings.status(), io);
  settings_ = *std::move(settings);
  if (!without_server_.contains(chosen_command_) && !flags_.machine) {
    if (const absl::Status may = settings_.CheckServer(); !may.ok()) return FailSettings(may, io);
  }
  return chosen_(io);
}

int Program::TellUsage(const CLI::ParseError& error, absl::Span<const char* const> words) const {
  // The last command that was understood, and what comes behind it.
  const CLI::App* command = &app_;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::vector<std::string> rest = app_.remaining(/*recurse=*/true);
  if (!CommandsOf(*command).empty() && !rest.empty() && rest[0][0] != '-') {
    TellUnknownCommand(*command, command == &app_ ? "" : command->get_name() + " ", rest[0]);
    return kUsage;
  }
  if (const std::string flag = FlagBeforeItsCommand(app_, words); !flag.empty()) {
    std::cerr << flag << ": stands behind the command that it is of, as in phalanx list -o json; "
              << "phalanx --help has those that may stand before it\n";
    return kUsage;
  }
  // Help is data; everything else is a usage error.
  const bool helps = error.get_exit_code() == 0;
  if (const auto empty = EmptyFlagsOf(app_); !helps && !empty.empty())
    return TellEmptyFlags(empty, std::cerr);
  return app_.exit(error, std::cout, std::cerr) == 0 ? kSuccess : kUsage;
}

int Program::Main(int argc, char** argv) {
  AddGlobalFlags();
  app_.require_subcommand(1);
  app_.failure_message(UsageText);
  app_.set_help_all_flag("--help-all", "the help of every command");
  AddLocalCommands();
  AddCheckpoints();
  AddConfig();
  AddSubmit();
  AddRerun();
  AddList();
  AddJobCommands();
  AddEvents();
  AddLogs();
  AddIncidents();
  AddInject();
  AddNodes();
  AddTokens();
  AddOtherCommands();
  const absl::Span<const char* const> words(argv, static_cast<size_t>(argc));
  if (const auto empty = FlagsWithoutValue(words); !empty.empty())
    return TellEmptyFlags(empty, std::cerr);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return TellUsage(error, words);
  }
  if (const auto empty = EmptyFlagsOf(app_); !empty.empty())
    return TellEmptyFlags(empty, std::cerr);
  if (const auto no_text = FlagsOfNoText(app_); !no_text.empty())
    return TellEmptyFlags(no_text, std::cerr);
  Io io = TerminalIo();
  return RunChosen(io);
}

namespace {

// What was written to standard output may still fail to get there. A reader who has left has what
// it wanted, and is told nothing.
int Flushed(int code, const FdBuffer& written) {
  std::cout.flush();
  if (written.error() == 0) return code;
  pollfd reader{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  const bool left = poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0;
  if (!left) {
    std::cerr << "error: cannot write to standard output: " << std::strerror(written.error())
              << "; make room there, or write elsewhere\n";
  }
  return code == kSuccess ? kCannotCreate : code;
}

}  // namespace
}  // namespace phalanx::client

int main(int argc, char** argv) {
  phalanx::HoldStandardStreams();
  phalanx::LetWritesFail();
  phalanx::transport::SilenceGrpcLog();
  // Of texts that are no UTF-8, beside what the command itself says then.
  google::protobuf::SetLogHandler(nullptr);
  phalanx::client::FdBuffer written(STDOUT_FILENO);
  std::streambuf* const before = std::cout.rdbuf(&written);
  int code = phalanx::client::kInternal;
  try {
    code = phalanx::client::Flushed(phalanx::client::Program().Main(argc, argv), written);
  } catch (const std::exception& error) {
    std::cerr
        << "error: " << error.what()
        << "\nwhat to do: this is a fault of Phalanx: report it with what the command printed\n";
  }
  std::cout.rdbuf(before);
  return code;
}
