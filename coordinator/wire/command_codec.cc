#include "coordinator/wire/command_codec.h"

#include <variant>

#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/incident_codec.h"
#include "core/wire/fault_codec.h"
#include "core/wire/incident_json.h"
#include "core/wire/layout_codec.h"

namespace phalanx::coordinator {
namespace {

class CommandEncoder {
 public:
  explicit CommandEncoder(v1::Command& out) : out_(out) {}

  void operator()(const PrepareData& command) {
    v1::PrepareData* to = out_.mutable_prepare_data();
    to->set_job(command.job.value);
    ToProto(command.request->document, to->mutable_document());
    to->set_choose_checkpoint(command.choose_checkpoint);
    to->set_owner(command.request->owner);
  }
  void operator()(const Assign& command) {
    v1::Assign* to = out_.mutable_assign();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    ToProto(command.request->document, to->mutable_document());
    wire::ToProto(*command.layout, to->mutable_layout());
    to->set_plan_digest(command.plan_digest);
    if (command.checkpoint.has_value()) ToProto(*command.checkpoint, to->mutable_checkpoint());
    to->set_writes_checkpoints(command.request->checkpoints);
    to->set_goes_on(command.goes_on);
    to->set_beside(command.beside);
    to->set_from_copies(command.from_copies);
    for (const Rank keeper : command.keepers) to->add_keepers(keeper.value);
    to->set_standby(command.standby);
    to->set_fence(command.fence);
    to->set_owner(command.request->owner);
  }
  void operator()(const PrepareStandby& command) {
    v1::PrepareStandby* to = out_.mutable_prepare_standby();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    to->set_set(command.set);
    wire::ToProto(*command.layout, to->mutable_layout());
    to->set_plan_digest(command.plan_digest);
    to->set_attempt(command.attempt);
  }
  void operator()(const BeginEpoch& command) {
    v1::BeginEpoch* to = out_.mutable_begin_epoch();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    ToProto(command.start, to->mutable_begins());
    to->set_ends(command.ends);
    if (!command.copies.has_value()) return;
    v1::CopiesSource* copies = to->mutable_copies();
    copies->set_epoch(command.copies->epoch.value);
    wire::ToProto(*command.copies->layout, copies->mutable_layout());
    copies->set_plan_digest(command.copies->plan_digest);
    for (const Rank keeper : command.copies->keepers) copies->add_keepers(keeper.value);
  }
  void operator()(const Rendezvous& command) {
    v1::Rendezvous* to = out_.mutable_rendezvous();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    to->mutable_entries()->insert(command.entries->begin(), command.entries->end());
  }
  void operator()(const StopRanks& command) {
    v1::Stop* to = out_.mutable_stop();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    ToProto(command.grace, to->mutable_grace());
    to->set_reason(command.reason);
  }
  void operator()(const FetchLogs& command) {
    v1::FetchLogs* to = out_.mutable_fetch_logs();
    to->set_fetch_id(command.fetch_id);
    to->set_job(command.job.value);
    to->mutable_ranks()->Assign(command.ranks.begin(), command.ranks.end());
    to->set_follow(command.follow);
    to->set_ended(command.ended);
    to->set_tail(command.tail);
    to->mutable_after()->insert(command.after.begin(), command.after.end());
  }
  void operator()(const PublishCheckpoint& command) {
    v1::PublishCheckpoint* to = out_.mutable_publish_checkpoint();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    to->set_rank(command.rank);
    to->set_step(command.step);
    to->set_parts_digest(command.parts_digest);
  }
  void operator()(const Wish& command) {
    v1::Wish* to = out_.mutable_wish();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
  }
  void operator()(const WriteIncident& command) {
    v1::WriteIncident* to = out_.mutable_write_incident();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    to->set_rank(command.rank);
    to->set_number(command.incident->number);
    to->set_output(command.output);
    v1::Incident incident;
    ToProto(*command.incident, &incident);
    to->set_text(wire::IncidentJson(incident));
  }
  void operator()(const InjectFault& command) {
    v1::InjectFault* to = out_.mutable_inject_fault();
    to->set_job(command.job.value);
    to->set_epoch(command.epoch.value);
    wire::ToProto(command.fault, to->mutable_fault());
  }
  void operator()(const TryPeer& command) {
    v1::TryPeer* to = out_.mutable_try_peer();
    to->set_word(command.word);
    to->set_peer(command.listens_at);
  }

 private:
  v1::Command& out_;
};

}  // namespace

void ToProto(uint64_t command_number, const Command& command, v1::Command* out) {
  out->set_command_number(command_number);
  std::visit(CommandEncoder(*out), command);
}

}  // namespace phalanx::coordinator
