#include "worker/train/copy_exchange.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/status.h"

namespace phalanx::train {
namespace {

int64_t ElementsOf(const std::vector<plan::CopyRun>& runs) {
  int64_t elements = 0;
  for (const plan::CopyRun& run : runs) elements += run.count;
  return elements;
}

// Calls visit(run, its part of `packed`).
template <typename Visit>
void ForPacked(const std::vector<plan::CopyRun>& runs, const at::Tensor& packed, Visit visit) {
  int64_t at = 0;
  for (const plan::CopyRun& run : runs) {
    visit(run, packed.narrow(0, at, run.count));
    at += run.count;
  }
}

}  // namespace

void CopyExchange::Add(const plan::Copy& copy, PartState* lead, PartState* follower, int32_t peer) {
  Link link{.lead = lead, .follower = follower, .peer = peer, .runs = copy.runs};
  std::copy_if(copy.runs.begin(), copy.runs.end(), std::back_inserter(link.folded),
               [](const plan::CopyRun& run) { return run.folds; });
  if (lead == nullptr || follower == nullptr) {
    PartState& own = lead != nullptr ? *lead : *follower;
    link.gradients = at::empty({ElementsOf(link.folded)}, own.gradients().options());
    link.weights = at::empty({ElementsOf(link.runs)}, own.weights().options());
  }
  links_.push_back(std::move(link));
}

absl::Status CopyExchange::Exchange(at::Tensor Link::*packed, PartState* Link::*sender) {
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  for (Link& link : links_) {
    at::Tensor& tensor = link.*packed;
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (link.*sender != nullptr) {
      sends.push_back({link.peer, tensor.const_data_ptr(), bytes});
    } else {
      receives.push_back({link.peer, tensor.mutable_data_ptr(), bytes});
    }
  }
  if (sends.empty() && receives.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(communicator_->Exchange(sends, receives));
  RETURN_IF_ERROR(communicator_->Flush());
  return communicator_->Join();
}

absl::Status CopyExchange::Fold() {
  for (Link& link : links_) {
    if (link.lead != nullptr) continue;
    ForPacked(link.folded, link.gradients, [&](const plan::CopyRun& run, at::Tensor to) {
      to.copy_(link.follower->gradients().narrow(0, run.offset, run.count));
    });
  }
  RETURN_IF_ERROR(Exchange(&Link::gradients, &Link::follower));
  for (Link& link : links_) {
    if (link.lead == nullptr) continue;
    const auto sum = [&](const plan::CopyRun& run) {
      return link.lead->gradients().narrow(0, run.lead_offset, run.count);
    };
    if (link.follower != nullptr) {
      for (const plan::CopyRun& run : link.folded) {
        sum(run).add_(link.follower->gradients().narrow(0, run.offset, run.count));
      }
      continue;
    }
    ForPacked(link.folded, link.gradients,
              [&](const plan::CopyRun& run, const at::Tensor& from) { sum(run).add_(from); });
  }
  return absl::OkStatus();
}

absl::Status CopyExchange::Spread() {
  const auto lead = [](Link& link, const plan::CopyRun& run) {
    return link.lead->weights().narrow(0, run.lead_offset, run.count);
  };
  const auto follower = [](Link& link, const plan::CopyRun& run) {
    return link.follower->weights().narrow(0, run.offset, run.count);
  };
  for (Link& link : links_) {
    if (link.lead == nullptr || link.follower != nullptr) continue;
    ForPacked(link.runs, link.weights,
              [&](const plan::CopyRun& run, at::Tensor to) { to.copy_(lead(link, run)); });
  }
  RETURN_IF_ERROR(Exchange(&Link::weights, &Link::lead));
  for (Link& link : links_) {
    if (link.follower == nullptr) continue;
    if (link.lead != nullptr) {
      for (const plan::CopyRun& run : link.runs) follower(link, run).copy_(lead(link, run));
      continue;
    }
    ForPacked(link.runs, link.weights, [&](const plan::CopyRun& run, const at::Tensor& from) {
      follower(link, run).copy_(from);
    });
  }
  return absl::OkStatus();
}

}  // namespace phalanx::train
