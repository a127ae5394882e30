#include "core/wire/incident_json.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "core/job/json.h"
#include "core/plan/layout_change.h"

namespace phalanx::wire {
namespace {

using job::Tree;

template <typename Values, typename Make>
Tree ListOf(const Values& values, Make make) {
  std::vector<Tree> items;
  for (const auto& value : values) items.push_back(make(value));
  return job::ListTree(std::move(items));
}

Tree TextOf(const std::string& text) { return job::TextTree(text); }
Tree NumberOf(int64_t number) { return job::NumberTree(number); }
// -1 stands for none.
Tree RankOf(int64_t rank) { return rank < 0 ? Tree() : job::NumberTree(rank); }

Tree TimeOf(const google::protobuf::Timestamp& time) {
  const absl::Time instant =
      absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
  return job::TextTree(absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", instant, absl::UTCTimeZone()));
}

Tree CauseOf(const v1::Incident& incident) {
  if (!incident.has_cause()) return Tree();
  const v1::FailureCause& cause = incident.cause();
  return job::MappingTree({{"name", TextOf(cause.cause())},
                           {"rank", RankOf(cause.rank())},
                           {"node", TextOf(cause.node())},
                           {"device", RankOf(incident.device())},
                           {"device_kind", TextOf(incident.device_kind())},
                           {"signal", NumberOf(cause.signal())},
                           {"exit_code", NumberOf(cause.exit_code())},
                           {"message", TextOf(cause.message())}});
}

Tree PhaseOf(const v1::Incident& incident, const v1::Incident::Phase& phase) {
  std::vector<Tree::Entry> entries = {
      {"name", TextOf(phase.name())},
      {"begin", phase.has_begin() ? NumberOf(phase.begin()) : Tree()},
      {"end", phase.has_end() ? NumberOf(phase.end()) : Tree()},
      {"slowest_rank", RankOf(phase.slowest_rank())}};
  if (!phase.has_end()) {
    const bool known = phase.name() == "safe_again" && !incident.not_safe().empty();
    entries.push_back({"reason", TextOf(known ? incident.not_safe() : "not known yet")});
  }
  return job::MappingTree(std::move(entries));
}

}  // namespace

std::string KindWord(const v1::Incident& incident) {
  return incident.kind() == v1::Incident::RETURN ? "return" : "loss";
}

std::string ConfidenceWord(const v1::Incident& incident) {
  return incident.confidence() == v1::Incident::LIKELY ? "likely" : "certain";
}

std::vector<std::string> ChangeWords(const v1::Incident& incident) {
  std::vector<plan::LayoutChange> changes;
  for (const v1::Incident::LayoutChange& change : incident.changes())
    changes.push_back({change.module(), change.replica(), change.from(), change.to()});
  return plan::ToWords(changes);
}

const v1::Incident::Phase* FindPhase(const v1::Incident& incident, const std::string& name) {
  const auto found =
      std::find_if(incident.phases().begin(), incident.phases().end(),
                   [&](const v1::Incident::Phase& phase) { return phase.name() == name; });
  return found == incident.phases().end() ? nullptr : &*found;
}

Tree IncidentTree(const v1::Incident& incident) {
  const bool blames = incident.has_cause() && incident.cause().rank() >= 0;
  return job::MappingTree({
      {"number", NumberOf(incident.number())},
      {"kind", TextOf(KindWord(incident))},
      {"summary", TextOf(incident.summary())},
      {"detected", TimeOf(incident.detected())},
      {"from_epoch", NumberOf(incident.from_epoch())},
      {"to_epoch", NumberOf(incident.to_epoch())},
      {"cause", CauseOf(incident)},
      {"first_failing_rank", blames ? NumberOf(incident.cause().rank()) : Tree()},
      {"confidence", incident.has_cause() ? TextOf(ConfidenceWord(incident)) : Tree()},
      {"evidence", ListOf(incident.evidence(), TextOf)},
      {"next", TextOf(incident.next())},
      {"lost", ListOf(incident.lost(), NumberOf)},
      {"returned", ListOf(incident.returned(), NumberOf)},
      {"changes", ListOf(ChangeWords(incident), TextOf)},
      {"decided_step", NumberOf(incident.decided_step())},
      {"steps_redone", NumberOf(incident.steps_redone())},
      {"communicators", TextOf(incident.standby() ? "standby" : "new")},
      {"phases",
       ListOf(incident.phases(),
              [&](const v1::Incident::Phase& phase) { return PhaseOf(incident, phase); })},
  });
}

std::string IncidentJson(const v1::Incident& incident) {
  return job::EmitJson(IncidentTree(incident));
}

}  // namespace phalanx::wire
