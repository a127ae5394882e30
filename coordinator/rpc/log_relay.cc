#include "coordinator/rpc/log_relay.h"

#include <utility>

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
      if (sealed_ && sources_.empty()) end = status_;
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

void LogRelay::Add(const std::string& fetch_id, Source source) {
  MutexLock lock(&mu_);
  sources_.emplace(fetch_id, std::move(source));
}

std::optional<LogRelay::Source> LogRelay::Find(const std::string& fetch_id) const {
  MutexLock lock(&mu_);
  const auto it = sources_.find(fetch_id);
  if (it == sources_.end()) return std::nullopt;
  return it->second;
}

void LogRelay::End(const std::string& fetch_id, const absl::Status& status) {
  std::shared_ptr<LogPipe> pipe;
  {
    MutexLock lock(&mu_);
    const auto it = sources_.find(fetch_id);
    if (it == sources_.end()) return;
    pipe = std::move(it->second.pipe);
    sources_.erase(it);
  }
  pipe->EndSource(fetch_id, status);
}

void LogRelay::Remove(const LogPipe* pipe) {
  MutexLock lock(&mu_);
  std::erase_if(sources_, [pipe](const auto& entry) { return entry.second.pipe.get() == pipe; });
}

size_t LogRelay::size() const {
  MutexLock lock(&mu_);
  return sources_.size();
}

}  // namespace phalanx::coordinator
