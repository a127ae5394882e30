// Commands that ask no server.
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/checkpoints.h"
#include "client/plan_flags.h"
#include "client/program.h"
#include "client/rank_list.h"
#include "client/run.h"

namespace phalanx::client {

void Program::AddLocalCommands() {
  CLI::App* run =
      Add("run", "Train a job here: starts a coordinator and a worker of its own", [this](Io& io) {
        return Run({.file = flags_.file,
                    .output = flags_.folder,
                    .lost = *ParseRanks(flags_.lost),
                    .programs = ProgramFolder(),
                    .allow_inject = flags_.allow_inject},
                   io);
      });
  NeedsNoSettings(run);
  AddFile(run);
  run->add_option("--output", flags_.folder, "folder for the results; default: the job's")
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
  NeedsNoServer(plan);
  AddFile(plan);
  AddFormat(plan);
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
  NeedsNoServer(validate);
  AddFile(validate);
  AddFormat(validate);
  validate->add_flag("--check-data", flags_.check_data, "also read the shards and the tokenizer");
}

void Program::AddCheckpoints() {
  CLI::App* checkpoints = AddGroup("checkpoints", "Look at checkpoints as files; needs no server");
  CLI::App* list =
      AddTo(*checkpoints, "list", "List the checkpoints of a folder, newest first",
            [this](Io& io) { return CheckpointsList(flags_.path, format(), absl::Now(), io); });
  NeedsNoServer(list);
  list->add_option("DIR|JOB", flags_.path, "folder of checkpoints, or a job file that names it")
      ->required();
  AddFormat(list);
  AddNoHeaders(list);
  const auto add = [&](const char* name, const char* description,
                       int (*command)(const std::string&, Format, Io&)) {
    CLI::App* app = AddTo(*checkpoints, name, description,
                          [this, command](Io& io) { return command(flags_.path, format(), io); });
    NeedsNoServer(app);
    app->add_option("PATH", flags_.path, "a checkpoint, such as DIR/step-00000050.epoch-1")
        ->required();
    AddFormat(app);
  };
  add("verify", "Read every byte of a checkpoint and name what is damaged", CheckpointsVerify);
  add("show", "Show what a checkpoint holds", CheckpointsShow);
}

void Program::AddConfig() {
  CLI::App* config = AddGroup("config", "Which server this client talks to, and how it answers");
  CLI::App* show = AddTo(*config, "show", "Show the settings that hold, and where each is from",
                         [this](Io& io) { return ConfigShow(settings_, format(), io); });
  NeedsNoServer(show);
  AddFormat(show);
  // These must work whatever the context and the variables say.
  const auto add = [&](const char* name, const char* description,
                       int (*command)(const std::string&, const std::string&, Io&)) {
    CLI::App* app = AddTo(*config, name, description, [this, command](Io& io) {
      return command(ConfigPath(EnvironmentOf), flags_.name, io);
    });
    app->add_option("CONTEXT", flags_.name, "name of a context")->required();
    NeedsNoSettings(app);
  };
  CLI::App* list = AddTo(*config, "list", "List the contexts of the config file", [this](Io& io) {
    return ConfigList(ConfigPath(EnvironmentOf),
                      ParseFormat(flags_.output).value_or(Format::kTable), io);
  });
  AddFormat(list);
  AddNoHeaders(list);
  NeedsNoSettings(list);
  add("use", "Make a context the current one", ConfigUse);
  CLI::App* set =
      AddTo(*config, "set", "Set settings of a context, which is made if need be", [this](Io& io) {
        return ConfigSet(ConfigPath(EnvironmentOf), flags_.name, flags_.settings, io);
      });
  set->add_option("CONTEXT", flags_.name, "name of a context")->required();
  set->add_option("SETTING", flags_.settings,
                  "as NAME=VALUE, such as server=HOST:PORT; without a value it is taken out")
      ->required();
  NeedsNoSettings(set);
  add("delete", "Delete a context", ConfigDelete);
}

}  // namespace phalanx::client
