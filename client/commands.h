// client/commands.h: what `phalanx` does, but for what has a header of its own: `run`,
// `list`, `logs`, `top`, `incidents`, `checkpoints`, `config`, `doctor` and what marks nodes.
//
// Each command returns the process's exit code (client/exit_code.h). Data goes to io.out,
// everything else to io.talk. Nothing here knows of argv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/plan_pictures.h"
#include "client/watch.h"
#include "core/job/injected_fault.h"

namespace phalanx::client {

struct SubmitOptions {
  std::string file;
  // Of the cluster's machines, where the job's paths start from; empty: the folder of the file.
  std::string directory;
  std::string name;  // of the job; empty: that of the file
  Format format = Format::kTable;
  bool wait = false;
  // Everything but the submit. The coordinator is asked, too, what it would refuse, where `asks`
  // says so; one that cannot be asked is told of, and is no failure.
  bool dry_run = false, asks = false;
};
int Submit(Connection& connection, const SubmitOptions& options, Stopper& stopper, Io& io);

struct ValidateOptions {
  std::string file;
  Format format = Format::kTable;  // json and yaml print the document with every default
  bool check_data = false;
  std::string worker;  // path of phalanx-worker, which reads shards and tokenizer
};
int Validate(const ValidateOptions& options, Io& io);

struct PlanOptions {
  std::string file;
  Format format = Format::kTable;
  std::string nodes;  // "4x8"; empty: one node with the devices that the job asks for
  // How many of `nodes` are in each failure domain, in order; the last number goes on. Empty: each
  // is one of its own.
  std::vector<int32_t> domain_nodes;
  // "80Gi": what each device has; a plan that needs more is refused. nullopt: not checked.
  std::optional<std::string> device_memory;
  // "1Ti": what each node has for second homes of optimizer state and copies for checkpoints; a
  // plan goes without the former where that is too little, and is refused for the latter. nullopt:
  // not checked.
  std::optional<std::string> host_memory;
  // Shown is the plan without these ranks' devices.
  std::vector<int32_t> lost;
  PictureFiles pictures;
  // Shown is not the plan of the job's layout but the fastest layouts that there are.
  bool search = false;
  // Of a search alone: devices, of nodes of 8, instead of `nodes`.
  std::optional<int32_t> devices;
  // The profile of devices that a step is predicted with: of a kind, or in a file. With neither a
  // plan has no prediction, and a search is of the nominal kind.
  std::optional<std::string> device_kind, device_profile;
  // Images or sounds of a sample, for a prediction or a search.
  std::optional<int32_t> items;
  // Of a search alone: the file that the job with the fastest layout is written to.
  std::optional<std::string> write;
  // A plan that takes longer says so on a terminal.
  absl::Duration note_delay = absl::Seconds(1);
};
int Plan(const PlanOptions& options, Io& io);

struct RerunOptions {
  std::string job;
  std::string name;  // of the new job; empty: that of the old one
  Format format = Format::kTable;
  bool wait = false;
};
// Submits the document of a job that has ended again, as a new job.
int Rerun(Connection& connection, const RerunOptions& options, Stopper& stopper, Io& io);

// In JSON and YAML a job's document is a document, under `document.text`.
int Get(Connection& connection, const std::string& job, Format format, Io& io);
int Describe(Connection& connection, const std::string& job, Format format, Io& io);
int Watch(Connection& connection, const std::string& job, Stopper& stopper, Io& io);

struct EventsOptions {
  std::string job;
  Format format = Format::kTable;
  std::optional<absl::Time> since;
  std::vector<std::string> types;  // empty: all
};
int Events(Connection& connection, const EventsOptions& options, Io& io);
// "2h" (before `now`) or RFC 3339. nullopt: neither.
std::optional<absl::Time> ParseSince(const std::string& text, absl::Time now);
int Why(Connection& connection, const std::string& job, Format format, Io& io);
struct CancelOptions {
  std::string job;
  Format format = Format::kTable;
  // A job that trains ends with a checkpoint of its next step, soon after the answer. Refused where
  // it has no checkpoint section.
  bool checkpoint = false;
};
int Cancel(Connection& connection, const CancelOptions& options, Io& io);
// The job leaves its devices, its state saved, and waits until it is resumed.
int Suspend(Connection& connection, const std::string& job, Format format, Io& io);
int Resume(Connection& connection, const std::string& job, Format format, Io& io);
int Delete(Connection& connection, const std::string& job, Format format, Io& io);
int Nodes(Connection& connection, Format format, Io& io);

struct InjectOptions {
  std::string job;
  job::FaultText fault;  // as its flags have it
  Format format = Format::kTable;
};
// Brings a fault about on a rank of a job that trains, where the coordinator allows it.
int Inject(Connection& connection, const InjectOptions& options, Io& io);

// Writes an error as people read it, one violation a line, and what to do next where it does not
// say so itself (client/advice.h); returns its exit code.
int Fail(const absl::Status& status, Io& io);
// The same of what a coordinator answered, or that none did.
int FailCall(const absl::Status& status, Io& io);
// The same of a call that changes something, which may have been carried out all the same.
int FailChange(const absl::Status& status, Io& io);
// The same for a job file that could not be loaded.
int FailFile(const absl::Status& status, Io& io);

}  // namespace phalanx::client
