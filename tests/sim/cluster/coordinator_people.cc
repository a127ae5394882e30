// What people ask of the coordinator, and what it answers.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/coordinator_host.h"

namespace phalanx::sim {

using coordinator::Token;

void CoordinatorHost::Submit(coordinator::JobRequestPtr request, const std::string& request_id,
                             Answer answer) {
  if (absl::Status accepting = Accepting(); !accepting.ok()) return answer(std::move(accepting));
  const Token token{++token_};
  waiting_[token] = {.request_id = request_id, .answer = std::move(answer)};
  answers_.Submit(token, request);
  Feed(coordinator::SubmitRequested{token, std::move(request), request_id});
}

void CoordinatorHost::Cancel(JobId job) {
  if (!Accepting().ok()) return;
  const Token token{++token_};
  waiting_[token] = {};
  answers_.Cancel(token, job);
  timeline_.Note("a user cancels job $0", job.value);
  Feed(coordinator::CancelRequested{token, job, false});
}

void CoordinatorHost::Suspend(JobId job, bool suspended) {
  if (!Accepting().ok()) return;
  const Token token{++token_};
  waiting_[token] = {};
  answers_.Suspend(token, job, suspended);
  timeline_.Note(suspended ? "a user suspends job $0" : "a user resumes job $0", job.value);
  Feed(coordinator::SuspensionRequested{token, job, suspended});
}

void CoordinatorHost::Delete(JobId job) {
  if (!Accepting().ok()) return;
  const Token token{++token_};
  waiting_[token] = {};
  answers_.Delete(token, job);
  timeline_.Note("a user deletes job $0", job.value);
  Feed(coordinator::DeleteRequested{token, job});
}

void CoordinatorHost::Mark(const NodeName& node, std::optional<coordinator::NodeMark> mark) {
  if (!Accepting().ok()) return;
  const Token token{++token_};
  waiting_[token] = {};
  const std::string text =
      !mark.has_value() ? ""
                        : absl::StrCat(mark->drains ? "drained: " : "cordoned: ", mark->reason);
  answers_.Mark(token, node, text);
  timeline_.Note("operators have $4", 0, 0, 0, 0,
                 absl::StrCat(node, mark.has_value() ? " " : " take jobs again", text));
  Feed(coordinator::NodeMarkRequested{token, node, std::move(mark)});
}

void CoordinatorHost::Reserve(const NodeName& node, bool reserves) {
  if (!Accepting().ok()) return;
  timeline_.Note(reserves ? "operators keep $4 in reserve" : "operators put $4 into service", 0, 0,
                 0, 0, node);
  const Token token{++token_};
  waiting_[token] = {};
  answers_.Reserve(token, node, reserves);
  std::optional<coordinator::ReserveMark> reserve;
  if (reserves) reserve = coordinator::ReserveMark{.reason = "spares"};
  Feed(coordinator::ReserveRequested{token, node, std::move(reserve)});
}

// False: nobody waits any more: it was refused while the store failed.
bool CoordinatorHost::TakeWaiting(Token token, Waiting* waiting) {
  const auto found = waiting_.find(token);
  if (found == waiting_.end()) return false;
  *waiting = std::move(found->second);
  waiting_.erase(found);
  return true;
}

void CoordinatorHost::Carry(const coordinator::AnswerJob& order) {
  Waiting waiting;
  if (!TakeWaiting(order.token, &waiting)) return;
  const auto stored = requests_.find(waiting.request_id);
  if (!order.job.ok() && stored != requests_.end()) {
    ledger_.Violate(absl::StrCat("request ", waiting.request_id, " has become ",
                                 ToString(stored->second),
                                 " and is refused: ", order.job.status().ToString()));
  }
  const JobId job = order.job.ok() ? (*order.job)->id : JobId{};
  answers_.Answered(order.token, order.job.ok(), job);
  if (order.job.ok() && stored != requests_.end() && stored->second != job)
    ledger_.Violate(absl::StrCat("request ", waiting.request_id, " is answered with two jobs"));
  if (!waiting.answer) return;
  waiting.answer(order.job.ok() ? absl::StatusOr<JobId>(job) : order.job.status());
}

void CoordinatorHost::Carry(const coordinator::AnswerNode& order) {
  Waiting waiting;
  if (TakeWaiting(order.token, &waiting)) answers_.Answered(order.token, order.node.ok());
}

// What the machine does not know any more the store deletes.
void CoordinatorHost::Carry(const coordinator::DeleteEndedJob& order) {
  const absl::Duration time = timeline_.Between(absl::Milliseconds(1), absl::Milliseconds(50));
  timeline_.After(time, [this, order, life = life_] {
    if (life != life_) return;
    const bool deleted = archived_.erase(order.job) != 0;
    Waiting waiting;
    if (TakeWaiting(order.token, &waiting)) answers_.Answered(order.token, deleted);
  });
}

}  // namespace phalanx::sim
