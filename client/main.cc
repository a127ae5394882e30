// client/main.cc: the `phalanx` command: flags in, exit code out.
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
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

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/checkpoints.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/exit_code.h"
#include "client/incidents.h"
#include "client/interrupt.h"
#include "client/logs.h"
#include "client/output.h"
#include "client/plan_flags.h"
#include "client/rank_list.h"
#include "client/run.h"
#include "core/base/host_port.h"
#include "core/job/injected_fault.h"
#include "core/job/scalar.h"
#include "core/posix/signals.h"

namespace phalanx::client {
namespace {

#ifndef PHALANX_VERSION
#define PHALANX_VERSION "unknown"
#endif

// Of commands that need more than an answer from memory: the store, or nodes.
constexpr absl::Duration kSubmitTimeout = absl::Seconds(30), kLogsTimeout = absl::Minutes(1);

struct Flags {
  std::string server;
  std::string timeout;  // empty: the command's own
  std::string format = "table";
  std::string file;
  std::string job;
  std::string path;
  std::string output;
  PlanOptions plan;  // but for file, format and lost
  std::string svg;
  std::string shell;
  std::vector<int32_t> ranks;
  std::vector<std::string> lost;
  int32_t tail = 0;
  int32_t limit = 0;
  int64_t number = 0;
  bool wait = false, dry_run = false, check_data = false, follow = false, raw = false;
  bool allow_inject = false;
  job::FaultText fault;
};

// The folder that this program lies in, where the others are.
std::string ProgramFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

Io TerminalIo() {
  Io io{.out = std::cout, .talk = std::cerr};
  io.terminal = isatty(STDERR_FILENO) == 1;
  winsize size{};
  if (io.terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    io.columns = size.ws_col;
  }
  return io;
}

void AddFormat(CLI::App* command, Flags& flags) {
  command->add_option("-o", flags.format, "table, wide, json, yaml or name")
      ->check(CLI::IsMember({"table", "wide", "json", "yaml", "name"}))
      ->type_name("FORMAT");
}

// FILE, or -f FILE; one of the two.
void AddFile(CLI::App* command, Flags& flags) {
  auto* file =
      command->add_option("JOB,-f,--filename", flags.file, "job file; - is standard input");
  file->required();
}

void AddJob(CLI::App* command, Flags& flags) {
  command->add_option("JOB", flags.job, "job-N, N, or a name (the newest job that has it)")
      ->required();
}

// Those that may stand behind it.
std::vector<const CLI::App*> CommandsOf(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

class Program {
 public:
  int Main(int argc, char** argv);

 private:
  using Action = std::function<int(Io&)>;

  CLI::App* Add(const std::string& name, const std::string& description, Action action);
  CLI::App* AddTo(CLI::App& parent, const std::string& name, const std::string& description,
                  Action action);
  void AddLocalCommands();
  void AddCheckpoints();
  void AddSubmit();
  void AddJobCommands();
  void AddLogs();
  void AddIncidents();
  void AddInject();
  void AddOtherCommands();
  // A command that waits can be interrupted; the others end at once, as programs do.
  int Interruptible(const std::function<int(Stopper&)>& command);
  // `timeout`: unless --timeout is given.
  ConnectionOptions Server(absl::Duration timeout = absl::Seconds(5)) const;
  Format format() const { return *ParseFormat(flags_.format); }
  std::vector<CommandWords> Words() const;

  CLI::App app_{"Phalanx trains multimodal models on many devices.", "phalanx"};
  Flags flags_;
  Action chosen_;
};

CLI::App* Program::Add(const std::string& name, const std::string& description, Action action) {
  return AddTo(app_, name, description, std::move(action));
}

CLI::App* Program::AddTo(CLI::App& parent, const std::string& name, const std::string& description,
                         Action action) {
  CLI::App* command = parent.add_subcommand(name, description);
  // The global flags may also stand after the command.
  command->fallthrough();
  command->callback([this, action = std::move(action)] { chosen_ = action; });
  return command;
}

ConnectionOptions Program::Server(absl::Duration timeout) const {
  return {.server = flags_.server, .timeout = job::ParseDuration(flags_.timeout).value_or(timeout)};
}

int Program::Interruptible(const std::function<int(Stopper&)>& command) {
  Stopper stopper;
  const Interrupt interrupt({SIGINT, SIGTERM}, [&stopper](int) { stopper.Stop(); });
  return command(stopper);
}

void Program::AddLocalCommands() {
  CLI::App* run =
      Add("run", "Train a job here: starts a coordinator and a worker of its own", [this](Io& io) {
        return Run({.file = flags_.file,
                    .output = flags_.output,
                    .lost = *ParseRanks(flags_.lost),
                    .programs = ProgramFolder(),
                    .allow_inject = flags_.allow_inject},
                   io);
      });
  AddFile(run, flags_);
  run->add_option("--output", flags_.output, "folder for the results; default: the job's")
      ->type_name("DIR");
  const auto add_lost = [this](CLI::App* command, const char* description) {
    command->add_option("--lost", flags_.lost, description)
        ->allow_extra_args(false)
        ->check([](const std::string& list) {
          return std::string(ParseRanks({list}).status().message());
        })
        ->type_name("RANK,...");
  };
  add_lost(run, "train without these ranks, as if their devices were gone");
  run->add_flag("--allow-inject", flags_.allow_inject,
                "let phalanx inject bring faults about; tells at which server");
  CLI::App* plan =
      Add("plan", "Show where every part of a job would run; needs no server", [this](Io& io) {
        PlanOptions options = flags_.plan;
        options.file = flags_.file;
        options.format = format();
        options.lost = *ParseRanks(flags_.lost);
        return Plan(options, io);
      });
  AddFile(plan, flags_);
  AddFormat(plan, flags_);
  AddPlanFlags(plan, flags_.plan);
  add_lost(plan, "show the plan that is left when these ranks' devices are gone");
  CLI::App* validate =
      Add("validate", "Check a job file; -o yaml prints it with every default", [this](Io& io) {
        return Validate({.file = flags_.file,
                         .format = format(),
                         .check_data = flags_.check_data,
                         .worker = ProgramFolder() + "/phalanx-worker"},
                        io);
      });
  AddFile(validate, flags_);
  AddFormat(validate, flags_);
  validate->add_flag("--check-data", flags_.check_data, "also read the shards and the tokenizer");
}

void Program::AddCheckpoints() {
  CLI::App* checkpoints =
      app_.add_subcommand("checkpoints", "Look at checkpoints as files; needs no server");
  checkpoints->require_subcommand(1);
  checkpoints->fallthrough();
  CLI::App* list =
      AddTo(*checkpoints, "list", "List the checkpoints of a folder, newest first",
            [this](Io& io) { return CheckpointsList(flags_.path, format(), absl::Now(), io); });
  list->add_option("DIR|JOB", flags_.path, "folder of checkpoints, or a job file that names it")
      ->required();
  AddFormat(list, flags_);
  const auto add = [&](const char* name, const char* description,
                       int (*command)(const std::string&, Format, Io&)) {
    CLI::App* app = AddTo(*checkpoints, name, description,
                          [this, command](Io& io) { return command(flags_.path, format(), io); });
    app->add_option("PATH", flags_.path, "a checkpoint, such as DIR/step-00000050.epoch-1")
        ->required();
    AddFormat(app, flags_);
  };
  add("verify", "Read every byte of a checkpoint and name what is damaged", CheckpointsVerify);
  add("show", "Show what a checkpoint holds", CheckpointsShow);
}

void Program::AddSubmit() {
  CLI::App* submit = Add("submit", "Queue a job; prints its id", [this](Io& io) {
    return Interruptible([&](Stopper& stopper) {
      Connection connection(Server(kSubmitTimeout));
      return Submit(
          connection,
          {.file = flags_.file, .format = format(), .wait = flags_.wait, .dry_run = flags_.dry_run},
          stopper, io);
    });
  });
  AddFile(submit, flags_);
  AddFormat(submit, flags_);
  submit->add_flag("--wait", flags_.wait, "watch the job; the exit code is its outcome");
  submit->add_flag("--dry-run", flags_.dry_run, "check the job file and submit nothing");
}

void Program::AddJobCommands() {
  CLI::App* list = Add("list", "List jobs, newest first", [this](Io& io) {
    Connection connection(Server());
    return List(connection, format(), flags_.limit, io);
  });
  AddFormat(list, flags_);
  list->add_option("--limit", flags_.limit, "at most so many; 0: all")
      ->check(CLI::NonNegativeNumber);
  const auto add = [this](const char* name, const char* description,
                          int (*command)(Connection&, const std::string&, Format, Io&)) {
    CLI::App* app = Add(name, description, [this, command](Io& io) {
      Connection connection(Server());
      return command(connection, flags_.job, format(), io);
    });
    AddJob(app, flags_);
    AddFormat(app, flags_);
  };
  add("get", "Show one job", Get);
  add("describe", "Tell a job's whole story", Describe);
  add("events", "Show what happened to a job", Events);
  add("why", "Explain why a job is where it is", Why);
  add("cancel", "End a job", Cancel);
  add("delete", "Delete a job that has ended", Delete);
  CLI::App* watch =
      Add("watch", "Follow a job to its end; the exit code is its outcome", [this](Io& io) {
        return Interruptible([&](Stopper& stopper) {
          Connection connection(Server());
          return Watch(connection, flags_.job, stopper, io);
        });
      });
  AddJob(watch, flags_);
}

void Program::AddLogs() {
  CLI::App* logs = Add("logs", "Show what a job's ranks wrote", [this](Io& io) {
    if (flags_.raw && isatty(STDOUT_FILENO) == 1) {
      io.talk << "--raw: what ranks write may control a terminal; send it to a file or a pipe\n";
      return static_cast<int>(kUsage);
    }
    return Interruptible([&](Stopper& stopper) {
      Connection connection(Server(kLogsTimeout));
      return Logs(connection,
                  {.job = flags_.job,
                   .ranks = flags_.ranks,
                   .follow = flags_.follow,
                   .tail = flags_.tail,
                   .raw = flags_.raw},
                  stopper, io);
    });
  });
  AddJob(logs, flags_);
  logs->add_flag("--follow", flags_.follow, "wait for more until the job ends");
  logs->add_flag("--raw", flags_.raw, "control characters as they were written; not to a terminal");
  logs->add_option("--rank", flags_.ranks, "only this rank; repeatable")
      ->check(CLI::NonNegativeNumber);
  logs->add_option("--tail", flags_.tail, "only the last so many lines of each rank")
      ->check(CLI::NonNegativeNumber);
}

void Program::AddIncidents() {
  CLI::App* incidents = app_.add_subcommand("incidents", "Look at what befell a job");
  incidents->require_subcommand(1);
  incidents->fallthrough();
  CLI::App* list = AddTo(*incidents, "list", "List losses and returns of ranks", [this](Io& io) {
    Connection connection(Server());
    return IncidentsList(connection, flags_.job, format(), io);
  });
  CLI::App* show = AddTo(*incidents, "show", "Show one of them, phase by phase", [this](Io& io) {
    Connection connection(Server());
    return IncidentsShow(
        connection,
        {.job = flags_.job, .number = flags_.number, .format = format(), .svg = flags_.svg}, io);
  });
  for (CLI::App* command : {list, show}) AddJob(command, flags_);
  show->add_option("N", flags_.number, "its number in the job, from 1")->required();
  for (CLI::App* command : {list, show}) AddFormat(command, flags_);
  show->add_option("--svg", flags_.svg, "draw its timeline; - is standard output")
      ->type_name("FILE");
}

void Program::AddInject() {
  CLI::App* inject = Add(
      "inject", "Bring a fault about on a rank of a job, where that is allowed", [this](Io& io) {
        Connection connection(Server());
        return Inject(connection, {.job = flags_.job, .fault = flags_.fault, .format = format()},
                      io);
      });
  inject->add_option("--job", flags_.job, "job-N, N, or a name (the newest job that has it)")
      ->required()
      ->type_name("JOB");
  inject->add_option("--rank", flags_.fault.rank, "on which it comes about")
      ->required()
      ->type_name("RANK");
  inject
      ->add_option("--fault", flags_.fault.fault,
                   "kill, stop, hang, exit, xid:N, nan, slow:FACTOR, oom or partition")
      ->required()
      ->type_name("FAULT");
  inject
      ->add_option("--at-step", flags_.fault.at_step,
                   "in this step or a later one; default: at once, or where --phase comes next")
      ->type_name("STEP");
  inject
      ->add_option("--phase", flags_.fault.phase,
                   "forward, backward, reduce, mirror, record, optimizer, gather, checkpoint or "
                   "recovery")
      ->type_name("PHASE");
  inject
      ->add_option("--for", flags_.fault.duration,
                   "how long stop, hang, slow and partition last; default: for good")
      ->type_name("DURATION");
  AddFormat(inject, flags_);
}

void Program::AddOtherCommands() {
  CLI::App* nodes = Add("nodes", "List nodes and who has their devices", [this](Io& io) {
    Connection connection(Server());
    return Nodes(connection, format(), io);
  });
  AddFormat(nodes, flags_);
  Add("version", "Print the version", [](Io& io) {
    io.out << "phalanx " << PHALANX_VERSION << "\n";
    return static_cast<int>(kSuccess);
  });
  CLI::App* completion = Add("completion", "Print a completion script for a shell", [this](Io& io) {
    io.out << CompletionScript(flags_.shell, Words());
    return static_cast<int>(kSuccess);
  });
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

int Program::Main(int argc, char** argv) {
  app_.add_option("--server", flags_.server, "address of the coordinator; default 127.0.0.1:4444")
      ->envname("PHALANX_SERVER")
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text, 1).status().message());
      })
      ->type_name("HOST:PORT");
  app_.add_option("--timeout", flags_.timeout,
                  "how long to wait for an answer; default 5s, of submit 30s, of logs 1m")
      ->check([](const std::string& text) {
        const auto timeout = job::ParseDuration(text);
        const bool fits = timeout && *timeout > absl::ZeroDuration() && *timeout <= absl::Hours(24);
        return fits ? "" : "must be a duration of at most 24h such as 5s";
      })
      ->type_name("DURATION");
  app_.require_subcommand(1);
  app_.set_help_all_flag("--help-all", "the help of every command");
  AddLocalCommands();
  AddCheckpoints();
  AddSubmit();
  AddJobCommands();
  AddLogs();
  AddIncidents();
  AddInject();
  AddOtherCommands();
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // The last command that was understood, and what comes behind it.
    const CLI::App* command = &app_;
    while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
    const std::vector<std::string> rest = app_.remaining(/*recurse=*/true);
    if (!CommandsOf(*command).empty() && !rest.empty() && rest[0][0] != '-') {
      const std::string known = command == &app_ ? "" : command->get_name() + " ";
      std::cerr << "unknown command '" << known << rest[0] << "'; phalanx " << known
                << "--help lists them\n";
      return kUsage;
    }
    // Help is data; everything else is a usage error.
    return app_.exit(error, std::cout, std::cerr) == 0 ? kSuccess : kUsage;
  }
  Io io = TerminalIo();
  return chosen_(io);
}

// What was written to standard output may still fail to get there. A reader who has left has what
// it wanted, and is told nothing.
int Flushed(int code, const FdBuffer& written) {
  std::cout.flush();
  if (written.error() == 0) return code;
  pollfd reader{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  const bool left = poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0;
  if (!left) {
    std::cerr << "error: cannot write to standard output: " << std::strerror(written.error())
              << "\n";
  }
  return code == kSuccess ? kCannotCreate : code;
}

}  // namespace
}  // namespace phalanx::client

int main(int argc, char** argv) {
  phalanx::LetWritesFail();
  phalanx::client::FdBuffer written(STDOUT_FILENO);
  std::streambuf* const before = std::cout.rdbuf(&written);
  int code = phalanx::client::kInternal;
  try {
    code = phalanx::client::Flushed(phalanx::client::Program().Main(argc, argv), written);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
  }
  std::cout.rdbuf(before);
  return code;
}
