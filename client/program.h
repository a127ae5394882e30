// client/program.h: the command line of `phalanx`. CLI11 throws, and is included only behind this
// header.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/config.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/list.h"
#include "core/job/injected_fault.h"
#include "transport/tls.h"

namespace phalanx::client {

// What the command line has, of all commands.
struct Flags {
  // Settings (client/config.h); empty: not given.
  std::string context, server, output, timeout, plaintext;
  transport::TlsFiles tls;  // of settings, as above
  std::string file;
  std::string job;
  std::string name;
  std::string path;
  std::string folder;
  PlanOptions plan;  // but for file, format and lost
  std::string svg;
  std::string shell;
  std::string since;
  std::string reason;
  std::string owner;
  std::string ttl;
  std::vector<std::string> settings, states, labels, types, modules, nodes;
  std::vector<int32_t> ranks;
  std::vector<std::string> lost;
  int32_t tail = 0;
  int32_t limit = 0;
  int32_t uses = 1;
  int64_t number = 0;
  bool wait = false, dry_run = false, check_data = false, follow = false, raw = false;
  bool watch = false, machine = false, previous = false, timestamps = false;
  bool allow_inject = false, force = false, no_headers = false, checkpoint = false;
  job::FaultText fault;
};

// Of each of several servers, a third of the timeout at most: a search for a layout may take as
// long, and is stopped where nobody waits for it.
inline constexpr absl::Duration kSubmitTurn = absl::InfiniteDuration();

// Not thread-safe.
class Program {
 public:
  int Main(int argc, char** argv);

 private:
  using Action = std::function<int(Io&)>;

  CLI::App* Add(const std::string& name, const std::string& description, Action action);
  CLI::App* AddTo(CLI::App& parent, const std::string& name, const std::string& description,
                  Action action);
  // A command that only has commands below it.
  CLI::App* AddGroup(const std::string& name, const std::string& description);
  // It uses no settings: a config file that is wrong does not keep it from running.
  void NeedsNoSettings(const CLI::App* command) { without_settings_.insert(command); }
  // It calls no coordinator: a server that may not be called does not keep it from running.
  void NeedsNoServer(const CLI::App* command) { without_server_.insert(command); }
  void AddFormat(CLI::App* command);
  // Of one whose table may go without its header.
  void AddNoHeaders(CLI::App* command);
  // JOB, or -f JOB; one of the two.
  void AddFile(CLI::App* command);
  void AddJob(CLI::App* command);
  void AddSince(CLI::App* command);

  void AddGlobalFlags();
  void AddLocalCommands();
  void AddCheckpoints();
  void AddConfig();
  void AddSubmit();
  void AddRerun();
  void AddList();
  void AddJobCommands();
  void AddEvents();
  void AddLogs();
  void AddIncidents();
  void AddInject();
  void AddNodes();
  void AddTokens();
  void AddOtherCommands();

  // A command that waits can be interrupted; the others end at once, as programs do.
  int Interruptible(const std::function<int(Stopper&)>& command);
  int RunChosen(Io& io);
  // What the parser does not understand, or help, told; the exit code.
  int TellUsage(const CLI::ParseError& error, absl::Span<const char* const> words) const;
  // `timeout`: unless a setting says another. `turn`: a third of that at most.
  ConnectionOptions Server(absl::Duration timeout = absl::Seconds(5),
                           absl::Duration turn = ConnectionOptions().turn) const;
  Format format() const { return settings_.OutputFormat(); }
  std::vector<CommandWords> Words() const;

  CLI::App app_{"Phalanx trains multimodal models on many devices.", "phalanx"};
  Flags flags_;
  std::set<const CLI::App*> without_settings_, without_server_;
  Action chosen_;
  const CLI::App* chosen_command_ = nullptr;
  Settings settings_;
};

// The folder that this program lies in, where the others are.
std::string ProgramFolder();
// What a check says of the value of a flag that breaks `rule`; empty where `rule` is: it is sound.
std::string FlagFault(const std::string& value, const std::string& rule);
// A variable of this process's environment.
const char* EnvironmentOf(const char* name);

}  // namespace phalanx::client
