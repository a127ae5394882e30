// Commands about jobs of a coordinator.
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/exit_code.h"
#include "client/incidents.h"
#include "client/list.h"
#include "client/logs.h"
#include "client/node_commands.h"
#include "client/program.h"

namespace phalanx::client {
namespace {

// Of the question what would be refused: who is away is not waited for.
constexpr absl::Duration kDryRunTimeout = absl::Seconds(5);

// CLI11's own of these names are of all doubles, and say so of a value that breaks them.
constexpr int32_t kCountMax = std::numeric_limits<int32_t>::max();
CLI::Range NonNegative() { return CLI::Range(0, kCountMax, "NONNEGATIVE"); }
CLI::Range Positive() { return CLI::Range(1, kCountMax, "POSITIVE"); }

}  // namespace

void Program::AddSubmit() {
  CLI::App* submit = Add("submit", "Queue a job; prints its id", [this](Io& io) {
    return Interruptible([&](Stopper& stopper) {
      Connection connection(Server(flags_.dry_run ? kDryRunTimeout : kSubmitTimeout, kSubmitTurn));
      return Submit(connection,
                    {.file = flags_.file,
                     .directory = flags_.folder,
                     .name = flags_.name,
                     .format = format(),
                     .wait = flags_.wait,
                     .dry_run = flags_.dry_run,
                     .asks = !settings_.Of("server").empty()},
                    stopper, io);
    });
  });
  AddFile(submit);
  AddFormat(submit);
  submit
      ->add_option("--directory", flags_.folder,
                   "folder on the cluster's machines that the job's paths start from; default: "
                   "that of the file")
      ->type_name("DIR");
  submit->add_option("--name", flags_.name, "name of the job; default: that of the file")
      ->type_name("NAME");
  submit->add_flag("--wait", flags_.wait, "watch the job; the exit code is its outcome");
  submit->add_flag("--dry-run", flags_.dry_run,
                   "check the job file, and ask the coordinator that is named, if one is, what it "
                   "would refuse; submit nothing");
}

void Program::AddRerun() {
  CLI::App* rerun =
      Add("rerun", "Queue a job that has ended again; prints the new id", [this](Io& io) {
        return Interruptible([&](Stopper& stopper) {
          Connection connection(Server(kSubmitTimeout));
          return Rerun(
              connection,
              {.job = flags_.job, .name = flags_.name, .format = format(), .wait = flags_.wait},
              stopper, io);
        });
      });
  AddJob(rerun);
  AddFormat(rerun);
  rerun->add_option("--name", flags_.name, "name of the new job; default: the same")
      ->type_name("NAME");
  rerun->add_flag("--wait", flags_.wait, "watch the job; the exit code is its outcome");
}

void Program::AddList() {
  CLI::App* list = Add("list", "List jobs, newest first", [this](Io& io) {
    if (flags_.watch && flags_.limit > 0) {
      io.talk << "--limit: " << flags_.limit
              << ": does not go with -w, which shows every job that changes\n";
      return static_cast<int>(kUsage);
    }
    const auto run = [&](Stopper& stopper) {
      Connection connection(Server(flags_.watch ? absl::Minutes(1) : absl::Seconds(5)));
      return List(connection,
                  {.format = format(),
                   .limit = flags_.limit,
                   .phases = *ParsePhases(flags_.states),
                   .labels = *ParseSelector(flags_.labels),
                   .node = flags_.name,
                   .owner = flags_.owner,
                   .watch = flags_.watch},
                  stopper, io);
    };
    Stopper nobody;
    return flags_.watch ? Interruptible(run) : run(nobody);
  });
  AddFormat(list);
  AddNoHeaders(list);
  list->add_option("--limit", flags_.limit, "at most so many; 0, the default: all")
      ->check(NonNegative());
  list->add_option("--state", flags_.states, "only jobs in these states, such as queued,running")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        return std::string(ParsePhases({text}).status().message());
      })
      ->type_name("STATE,...");
  list->add_option("-l,--selector", flags_.labels, "only jobs with these labels, such as team=demo")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        return std::string(ParseSelector({text}).status().message());
      })
      ->type_name("KEY=VALUE,...");
  list->add_option("--node", flags_.name, "only jobs with devices of this node")->type_name("NODE");
  list->add_option("--owner", flags_.owner, "only jobs that this person submitted")
      ->type_name("NAME");
  list->add_flag("-w,--watch", flags_.watch, "then show a job again whenever its state changes");
}

void Program::AddEvents() {
  CLI::App* events = Add("events", "Show what happened to a job", [this](Io& io) {
    Connection connection(Server());
    std::optional<absl::Time> since;
    if (!flags_.since.empty()) since = ParseSince(flags_.since, absl::Now());
    return Events(connection,
                  {.job = flags_.job, .format = format(), .since = since, .types = flags_.types},
                  io);
  });
  AddJob(events);
  AddFormat(events);
  AddNoHeaders(events);
  AddSince(events);
  events
      ->add_option("--type", flags_.types, "only events of this type, such as NodeLost; repeatable")
      ->allow_extra_args(false)
      ->type_name("TYPE");
}

void Program::AddSince(CLI::App* command) {
  command->add_option("--since", flags_.since, "of the last 2h, or since 2026-01-31T12:00:00Z")
      ->check([](const std::string& text) {
        const bool fits = ParseSince(text, absl::UnixEpoch()).has_value();
        return FlagFault(
            text,
            fits ? "" : "must be a duration such as 2h, or a time such as 2026-01-31T12:00:00Z");
      })
      ->type_name("TIME");
}

void Program::AddJobCommands() {
  const auto add = [this](const char* name, const char* description,
                          int (*command)(Connection&, const std::string&, Format, Io&)) {
    CLI::App* app = Add(name, description, [this, command](Io& io) {
      Connection connection(Server());
      return command(connection, flags_.job, format(), io);
    });
    AddJob(app);
    AddFormat(app);
    return app;
  };
  AddNoHeaders(add("get", "Show one job", Get));
  CLI::App* describe =
      Add("describe", "Tell a job's whole story, or with `node NODE` a node's", [this](Io& io) {
        Connection connection(Server());
        if (flags_.name.empty()) return Describe(connection, flags_.job, format(), io);
        if (flags_.job == "node") return DescribeNode(connection, flags_.name, format(), io);
        io.talk << "describe takes one JOB, or node NODE\n"
                   "Run with --help or --help-all for more information.\n";
        return static_cast<int>(kUsage);
      });
  AddJob(describe);
  describe->add_option("NODE", flags_.name, "behind the word node: its name");
  AddFormat(describe);
  add("why", "Explain why a job is where it is", Why);
  CLI::App* cancel = Add("cancel", "End a job", [this](Io& io) {
    Connection connection(Server());
    return Cancel(connection,
                  {.job = flags_.job, .format = format(), .checkpoint = flags_.checkpoint}, io);
  });
  AddJob(cancel);
  AddFormat(cancel);
  cancel->add_flag("--checkpoint", flags_.checkpoint,
                   "with a checkpoint of its next step, if it trains");
  add("suspend", "Free a job's devices, its state saved, until it is resumed", Suspend);
  add("resume", "Let a suspended job go on", Resume);
  add("delete", "Delete a job that has ended", Delete);
  CLI::App* watch =
      Add("watch", "Follow a job to its end; the exit code is its outcome", [this](Io& io) {
        return Interruptible([&](Stopper& stopper) {
          Connection connection(Server());
          return Watch(connection, flags_.job, stopper, io);
        });
      });
  AddJob(watch);
}

void Program::AddLogs() {
  CLI::App* logs = Add("logs", "Show what a job's ranks wrote", [this](Io& io) {
    if (flags_.raw && isatty(STDOUT_FILENO) == 1) {
      io.talk << "--raw: what ranks write may control a terminal; send it to a file or a pipe\n";
      return static_cast<int>(kUsage);
    }
    return Interruptible([&](Stopper& stopper) {
      Connection connection(Server(kLogsTimeout));
      std::optional<absl::Time> since;
      if (!flags_.since.empty()) since = ParseSince(flags_.since, absl::Now());
      return Logs(connection,
                  {.job = flags_.job,
                   .ranks = flags_.ranks,
                   .modules = flags_.modules,
                   .nodes = flags_.nodes,
                   .epoch = flags_.number,
                   .previous = flags_.previous,
                   .follow = flags_.follow,
                   .tail = flags_.tail,
                   .raw = flags_.raw,
                   .since = since,
                   .timestamps = flags_.timestamps},
                  stopper, io);
    });
  });
  AddJob(logs);
  CLI::Option* follow =
      logs->add_flag("-f,--follow", flags_.follow, "wait for more until the job ends");
  CLI::Option* raw = logs->add_flag(
      "--raw", flags_.raw, "lines as they were written, control characters too; not to a terminal");
  AddSince(logs);
  logs->add_flag("--timestamps", flags_.timestamps, "each line with the time of its node's clock")
      ->excludes(raw);
  logs->add_option("--rank", flags_.ranks, "only this rank; repeatable")
      ->check(NonNegative())
      ->allow_extra_args(false);
  logs->add_option("--module", flags_.modules, "only the ranks of this module; repeatable")
      ->allow_extra_args(false)
      ->type_name("MODULE");
  logs->add_option("--node", flags_.nodes, "only what ranks wrote on this node; repeatable")
      ->allow_extra_args(false)
      ->type_name("NODE");
  logs->add_option("--tail", flags_.tail, "only the last so many lines of each rank")
      ->check(Positive());
  CLI::Option* epoch =
      logs->add_option("--epoch", flags_.number, "only what was written in it")->check(Positive());
  logs->add_flag("--previous", flags_.previous,
                 "only what was written in the epoch before the last")
      ->excludes(follow)
      ->excludes(epoch);
}

void Program::AddIncidents() {
  CLI::App* incidents = AddGroup("incidents", "Look at what befell a job");
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
  for (CLI::App* command : {list, show}) AddJob(command);
  show->add_option("N", flags_.number, "its number in the job, from 1")
      ->required()
      ->check(Positive());
  for (CLI::App* command : {list, show}) AddFormat(command);
  AddNoHeaders(list);
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
                   "kill, stop, hang, exit, xid:N, nan, slow:FACTOR, oom, partition, mute or throw")
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
  AddFormat(inject);
}

}  // namespace phalanx::client
