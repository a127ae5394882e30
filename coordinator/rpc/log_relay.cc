#include "coordinator/rpc/log_relay.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

void LogPipe::AddSource(const std::string& fetch_id) {
  MutexLock lock(&mu_);
  sources_.insert(fetch_id);
}

void LogPipe::Seal() {
  {
    MutexLock lock(&mu_);
    sealed_ = true;
  }
  wake_();
}

bool LogPipe::Push(v1::GetLogsResponse chunk, std::function<void()> resume) {
  bool more = true;
  {
    MutexLock lock(&mu_);
    if (closed_) return true;
    bytes_ += chunk.text().size();
    chunks_.push_back(std::move(chunk));
    if (chunks_.size() >= kChunksMax || bytes_ >= kBytesMax) {
      more = false;
      resumes_.push_back(std::move(resume));
    }
  }
  wake_();
  return more;
}

void LogPipe::EndSource(const std::string& fetch_id, const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (sources_.erase(fetch_id) == 0) return;
    status_.Update(status);
  }
  wake_();
}

void LogPipe::Close() {
  std::vector<std::function<void()>> resumes;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    chunks_.clear();
    resumes = std::exchange(resumes_, {});
  }
  for (auto& resume : resumes) resume();
}

bool LogPipe::closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

std::optional<v1::GetLogsResponse> LogPipe::Take(std::optional<absl::Status>& end) {
  std::vector<std::function<void()>> resumes;
  std::optional<v1::GetLogsResponse> chunk;
  {
    MutexLock lock(&mu_);
    if (chunks_.empty()) {
      const bool failed = failure_ == Failure::kEndsAll && !status_.ok();
      if (sealed_ && (sources_.empty() || failed)) end = status_;
      return std::nullopt;
    }
    chunk = std::move(chunks_.front());
    chunks_.pop_front();
    bytes_ -= chunk->text().size();
    if (chunks_.size() < kChunksMax / 2 && bytes_ < kBytesMax)
      resumes = std::exchange(resumes_, {});
  }
  for (auto& resume : resumes) resume();
  return chunk;
}

LogRelay::Source LogRelay::TakeLocked(std::map<std::string, Fetch>::iterator fetch) {
  const auto node = nodes_.find(fetch->second.source.node);
  node->second.erase(fetch->second.number);
  if (node->second.empty()) nodes_.erase(node);
  Source source = std::move(fetch->second.source);
  fetches_.erase(fetch);
  return source;
}

std::string LogRelay::MostReadLocked(const std::map<uint64_t, std::string>& of_node) const {
  std::map<std::string, size_t> counts;
  size_t most = 0;
  for (const auto& [number, id] : of_node)
    most = std::max(most, ++counts[fetches_.at(id).source.person]);
  for (const auto& [number, id] : of_node) {
    if (counts[fetches_.at(id).source.person] == most) return id;
  }
  return {};
}

void LogRelay::Add(const std::string& fetch_id, Source source) {
  std::string oldest;
  Source cut;
  {
    MutexLock lock(&mu_);
    std::map<uint64_t, std::string>& of_node = nodes_[source.node];
    of_node.emplace(++last_number_, fetch_id);
    const size_t count = of_node.size();
    fetches_.emplace(fetch_id, Fetch{std::move(source), last_number_});
    if (count > kUploadsMax) {
      oldest = MostReadLocked(of_node);
      cut = TakeLocked(fetches_.find(oldest));
    }
  }
  if (cut.pipe == nullptr) return;
  cut.pipe->EndSource(oldest, absl::ResourceExhaustedError(absl::StrCat(
                                  "readers of logs of node ", cut.node, ": ", kUploadsMax + 1,
                                  ": at most ", kUploadsMax,
                                  " at one time, and a newer one took the place of this one; "
                                  "end another, or name ranks of other nodes")));
}

std::optional<LogRelay::Source> LogRelay::Find(const std::string& fetch_id) const {
  MutexLock lock(&mu_);
  const auto it = fetches_.find(fetch_id);
  if (it == fetches_.end()) return std::nullopt;
  return it->second.source;
}

void LogRelay::End(const std::string& fetch_id, const absl::Status& status) {
  Source source;
  {
    MutexLock lock(&mu_);
    const auto it = fetches_.find(fetch_id);
    if (it == fetches_.end()) return;
    source = TakeLocked(it);
  }
  source.pipe->EndSource(fetch_id, status);
}

void LogRelay::Remove(const LogPipe* pipe) {
  std::vector<Source> held;  // destroyed outside the lock
  MutexLock lock(&mu_);
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    const auto next = std::next(it);
    if (it->second.source.pipe.get() == pipe) held.push_back(TakeLocked(it));
    it = next;
  }
}

size_t LogRelay::size() const {
  MutexLock lock(&mu_);
  return fetches_.size();
}

}  // namespace phalanx::coordinator
