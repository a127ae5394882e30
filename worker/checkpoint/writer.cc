#include "worker/checkpoint/writer.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::checkpoint {
namespace {

// Training and loading come first.
constexpr int kNice = 10;

}  // namespace

Writer::Writer(Snapshot& snapshot, WriterOptions options, OnWritten on_written,
               OnPublished on_published)
    : snapshot_(snapshot),
      options_(std::move(options)),
      on_written_(std::move(on_written)),
      on_published_(std::move(on_published)),
      thread_([this](const std::stop_token& stop) {
        Run(stop);
        const MutexLock lock(&mu_);
        ended_ = true;
      }) {}

Writer::~Writer() { Leave(); }

void Writer::Leave() {
  thread_.request_stop();
  const MutexLock lock(&mu_);
  stopping_ = true;
  changed_.SignalAll();
  while (uses_snapshot_) changed_.Wait(&mu_);
}

bool Writer::ended() const {
  const MutexLock lock(&mu_);
  return ended_;
}

bool Writer::Begin(const CheckpointName& name) {
  {
    const MutexLock lock(&mu_);
    if (writing_.has_value()) return false;
  }
  const absl::Status begun = snapshot_.Begin();
  const MutexLock lock(&mu_);
  begun_ = begun;
  writing_ = name;
  changed_.SignalAll();
  return true;
}

bool Writer::writing() const {
  const MutexLock lock(&mu_);
  return writing_.has_value();
}

void Writer::Publish(Publication publication) {
  const MutexLock lock(&mu_);
  publications_.push_back(std::move(publication));
  if (publications_.size() > kPublicationsMax) publications_.pop_front();
  changed_.SignalAll();
}

bool Writer::AwaitWritten(std::chrono::steady_clock::time_point deadline) {
  const MutexLock lock(&mu_);
  while (writing_.has_value()) {
    if (changed_.WaitUntil(&mu_, deadline)) return !writing_.has_value();
  }
  return true;
}

void Writer::Run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "checkpoints");
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  while (true) {
    std::optional<CheckpointName> name;
    {
      const MutexLock lock(&mu_);
      while (!stopping_ && !writing_.has_value() && publications_.empty()) changed_.Wait(&mu_);
      if (stopping_) return;
      name = writing_;
    }
    PublishWaiting(stop);
    if (!name.has_value()) continue;
    {
      const MutexLock lock(&mu_);
      if (stopping_) return;
      uses_snapshot_ = true;
    }
    WriteOne(*name, stop);
  }
}

void Writer::PublishWaiting(const std::stop_token& stop) {
  while (true) {
    Publication publication;
    {
      const MutexLock lock(&mu_);
      if (publications_.empty()) return;
      publication = std::move(publications_.front());
      publications_.pop_front();
    }
    const CheckpointName name{.step = publication.manifest.step,
                              .epoch = publication.manifest.epoch};
    absl::StatusOr<Published> published = checkpoint::Publish(publication, stop);
    // Then what is missing there says nothing of the folder.
    if (!published.ok() && name <= given_up_) {
      const absl::Status& why = published.status();
      published = absl::Status(
          why.code(), absl::StrCat(why.message(), "; rank ", options_.rank,
                                   " has given it up: it was told to publish it after ", kDraftsMax,
                                   " later ones were begun"));
    }
    on_published_(name, published);
  }
}

void Writer::WriteOne(const CheckpointName& name, const std::stop_token& stop) {
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<PartWrite> write = TakeEntries(stop);
  {
    const MutexLock lock(&mu_);
    uses_snapshot_ = false;
    changed_.SignalAll();
  }
  const absl::StatusOr<std::optional<PartFile>> part =
      write.ok() ? WritePart(name, *std::move(write), stop) : write.status();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // Told before it counts as written: who waits for that then knows what came of it.
  on_written_({.name = name, .part = part, .seconds = took.count()});
  const MutexLock lock(&mu_);
  writing_ = std::nullopt;
  changed_.SignalAll();
}

absl::StatusOr<PartWrite> Writer::TakeEntries(const std::stop_token& stop) {
  {
    const MutexLock lock(&mu_);
    RETURN_IF_ERROR(begun_);
  }
  RETURN_IF_ERROR(snapshot_.Await(stop));
  return snapshot_.Entries();
}

absl::StatusOr<std::optional<PartFile>> Writer::WritePart(const CheckpointName& name,
                                                          PartWrite write,
                                                          const std::stop_token& stop) {
  if (write.entries.empty()) return std::nullopt;
  // Those before may be whole and about to be published. Older ones are published or will never be;
  // where the disk is full, they hold what this one needs.
  written_.push_back(name);
  for (; written_.size() > kDraftsMax; written_.pop_front()) {
    given_up_ = written_.front();
    RemovePartFile(DraftOf(given_up_), options_.rank, options_.folders);
  }
  write.draft = DraftOf(name);
  write.folders = options_.folders;
  write.info = {.store = options_.store,
                .job = options_.job,
                .epoch = name.epoch,
                .step = name.step,
                .rank = options_.rank};
  write.before_block = [&]() -> absl::Status {
    if (stop.stop_requested()) return absl::CancelledError("asked to stop");
    // What is whole is not held up by what is not.
    PublishWaiting(stop);
    return options_.before_block == nullptr ? absl::OkStatus() : options_.before_block(name.step);
  };
  absl::StatusOr<PartFile> part = WritePartFile(std::move(write));
  if (!part.ok()) {
    RemovePartFile(DraftOf(name), options_.rank, options_.folders);
    return part.status();
  }
  return *std::move(part);
}

std::string Writer::DraftOf(const CheckpointName& name) const {
  return absl::StrCat(options_.directory, "/", DraftName(name, options_.store, options_.job));
}

}  // namespace phalanx::checkpoint
