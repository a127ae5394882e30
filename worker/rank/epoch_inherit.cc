// Copies of state that lie on a node where nobody works any more: a process there gives them, and
// ranks of other nodes take what they inherit (core/plan/copy_takers.h). They meet as ranks do that
// connect (worker/comm/links.h), under keys of their own.
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/plan/copy_takers.h"
#include "core/plan/memory_estimate.h"
#include "worker/checkpoint/copy_link.h"
#include "worker/checkpoint/host_load.h"
#include "worker/comm/links.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {
namespace {

// Each taker comes once it is connected with the others, which may take a minute, and a keeper as
// late as its daemon has started it.
constexpr absl::Duration kMeetTimeout = absl::Minutes(5);
// Of a copy, where its plan expects less than half as much: what a plan says is an estimate.
constexpr int64_t kCopyBytesMaxLeast = int64_t{1} << 30;

plan::RankList KeepersOf(const v1::CopiesSource& source) {
  plan::RankList keepers;
  for (const int32_t keeper : source.keepers()) keepers.push_back(Rank{keeper});
  return keepers;
}

// Copies that another node has and does not give are state that is lost, whatever the reason.
absl::Status OfOthers(const absl::Status& status) {
  if (status.ok() || absl::IsCancelled(status)) return status;
  return job::WithKind(job::FailureKind::kStateLost,
                       absl::FailedPreconditionError(absl::StrCat(
                           "copies of state that another node has: ", status.message())));
}

}  // namespace

absl::StatusOr<std::map<int32_t, UniqueFd>> EpochRun::MeetForCopies(
    Rank taker, const std::vector<int32_t>& others) {
  comm::WorldOptions options;
  options.setup_timeout = kMeetTimeout;
  options.stop = stopping_.get_token();
  options.strangers = [this](int64_t refused, const std::string& last) {
    TellStrangers(channel_, whose(), refused, last);
  };
  if (!order_.address().empty()) options.interface_address = order_.address();
  PrefixedRendezvous rendezvous(rendezvous_, absl::StrCat("copies/", taker.value, "/"));
  return comm::ConnectLinks(order_.rank(), others, rendezvous, options);
}

absl::StatusOr<EpochRun::Inheritance> EpochRun::MeetKeepers(const v1::CopiesSource& source,
                                                            const plan::Plan& before) {
  Inheritance inheritance;
  for (const auto& inherited : plan::CopiesToInherit(before, plan_, KeepersOf(source))) {
    if (inherited.taker.value == order_.rank())
      inheritance.ranks[inherited.keeper.value].push_back(inherited.of);
  }
  if (inheritance.ranks.empty()) return inheritance;
  std::vector<int32_t> keepers;
  for (const auto& [keeper, ranks] : inheritance.ranks) keepers.push_back(keeper);
  auto links = MeetForCopies(Rank{order_.rank()}, keepers);
  if (!links.ok()) return OfOthers(links.status());
  inheritance.links = *std::move(links);
  return inheritance;
}

absl::Status EpochRun::TakeInherited(const v1::CopiesSource& source, const plan::Plan& before,
                                     const Inheritance& inheritance, train::TrainingState& training,
                                     std::set<int32_t>& copied) {
  if (inheritance.ranks.empty()) return absl::OkStatus();
  const std::string& began_with = order_.assign().checkpoint().path();
  const std::vector<std::string> folders = ReadFolders();
  int64_t bytes = 0;
  for (const auto& [keeper, ranks] : inheritance.ranks) {
    for (const Rank of : ranks) {
      const int64_t expected = plan::EstimateMemory(before, of).host.copies;  // two buffers
      const auto pair = checkpoint::TakeCopy(inheritance.links.at(keeper).get(),
                                             {.store = order_.store(),
                                              .job = order_.assign().job(),
                                              .epoch = Epoch{source.epoch()},
                                              .rank = of},
                                             std::max(expected, kCopyBytesMaxLeast),
                                             {.stop = stopping_.get_token()});
      if (!pair.ok()) return OfOthers(pair.status());
      copied.insert(of.value);
      if (!pair->has_value()) {
        RETURN_IF_ERROR(OfCheckpoint(OfCopies(checkpoint::AddUntrained(
            before, of, began_with, training, folders, stopping_.get_token()))));
        continue;
      }
      const auto buffer = (*pair)->BufferOf(start_.decision.step);
      if (buffer.ok()) bytes += buffer->bytes;
      RETURN_IF_ERROR(OfCheckpoint(
          OfCopies(checkpoint::AddCopy(**pair, start_.decision.step, before, began_with, training,
                                       folders, stopping_.get_token()))));
    }
  }
  LogPhase(absl::StrCat("has been given ", bytes, " bytes of copies by nodes without work"));
  return absl::OkStatus();
}

absl::Status EpochRun::KeepCopies() {
  RETURN_IF_ERROR(MakePlanOfOrder());
  RETURN_IF_ERROR(FindCopies());
  RETURN_IF_ERROR(AwaitBegin());
  v1::CopiesSource source;
  std::vector<checkpoint::HostCopyPair> copies;
  {
    const MutexLock lock(&mu_);
    source = told_->copies();
    copies = std::exchange(copies_, {});
  }
  ASSIGN_OR_RETURN(const plan::Plan before, PlanOfCopies(source));
  std::map<int32_t, std::set<Rank>> by_taker;
  for (const auto& inherited : plan::CopiesToInherit(before, plan_, KeepersOf(source))) {
    if (inherited.keeper.value == order_.rank())
      by_taker[inherited.taker.value].insert(inherited.of);
  }
  Log(absl::StrCat("has copies of state for ", by_taker.size(), " ranks of other nodes"));
  if (by_taker.empty()) return absl::OkStatus();
  std::vector<int32_t> takers;
  for (const auto& [taker, ranks] : by_taker) takers.push_back(taker);
  // All at once: none of them waits for another one to come, or for its turn.
  std::vector<absl::Status> given(takers.size());
  {
    std::vector<std::jthread> givers;
    for (size_t i = 0; i < takers.size(); ++i) {
      givers.emplace_back([&, i] {
        pthread_setname_np(pthread_self(), "gives-copies");
        const std::set<Rank>& may_have = by_taker.at(takers[i]);
        const auto find = [&](Rank rank) -> const checkpoint::HostCopyPair* {
          if (!may_have.contains(rank)) return nullptr;
          const auto found = std::find_if(copies.begin(), copies.end(), [&](const auto& pair) {
            return pair.rank() == rank && pair.epoch().value == source.epoch();
          });
          return found == copies.end() ? nullptr : &*found;
        };
        const auto links = MeetForCopies(Rank{takers[i]}, {takers[i]});
        given[i] = links.ok()
                       ? checkpoint::GiveCopies(links->at(takers[i]).get(), start_.decision.step,
                                                find, {.stop = stopping_.get_token()})
                       : links.status();
      });
    }
  }
  for (const absl::Status& one : given) RETURN_IF_ERROR(one);
  LogPhase("has given its copies of state");
  return absl::OkStatus();
}

}  // namespace phalanx::rank
