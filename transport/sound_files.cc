#include "transport/sound_files.h"

#include <fcntl.h>
#include <grpc/support/log.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/posix/file.h"
#include "core/posix/unique_fd.h"
#include "core/posix/waker.h"
#include "transport/openssl.h"

namespace phalanx::transport {
namespace {

constexpr int64_t kWatchedFileBytesMax = 16 << 20;
// Copies cost nothing to look at: what gRPC adds to the time of the files is little.
constexpr int kCopyRefreshSeconds = 1;

std::string PathOf(const UniqueFd& file) { return absl::StrCat("/proc/self/fd/", file.get()); }

// In memory; none: there is no room.
std::optional<UniqueFd> FileOf(absl::string_view text) {
  UniqueFd file(memfd_create("certificates", MFD_CLOEXEC));
  while (file.get() >= 0 && !text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (file.get() < 0) return std::nullopt;
  return file;
}

struct Texts {
  std::string ca, certificate, key;
  friend bool operator==(const Texts&, const Texts&) = default;
};
std::optional<Texts> TextsOf(const TlsFiles& files) {
  const absl::StatusOr<std::string> ca = ReadWholeFile(files.ca, kWatchedFileBytesMax);
  const absl::StatusOr<std::string> certificate =
      ReadWholeFile(files.certificate, kWatchedFileBytesMax);
  const absl::StatusOr<std::string> key = ReadWholeFile(files.key, kWatchedFileBytesMax);
  if (!ca.ok() || !certificate.ok() || !key.ok()) return std::nullopt;
  return Texts{*ca, *certificate, *key};
}

// As gRPC reads them.
bool AreSound(const TlsFiles& files) {
  const std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return false;
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassword);
  const bool sound =
      CheckTlsFiles(files, "--tls-").ok() &&
      SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) == 1 &&
      SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_check_private_key(context.get()) == 1 &&
      SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr) == 1;
  ERR_clear_error();
  return sound;
}

// Of one set. Certificate and key are one file, so that they change at once. Not thread-safe.
class Copies {
 public:
  // nullptr: the files are not sound.
  static std::unique_ptr<Copies> Make(const TlsFiles& files) {
    std::unique_ptr<Copies> made(new Copies(files));
    made->Look();
    return made->ca_.has_value() ? std::move(made) : nullptr;
  }
  const TlsFiles& files() const { return files_; }
  TlsFiles paths() const {
    return {.ca = PathOf(*ca_),
            .certificate = PathOf(*identity_),
            .key = PathOf(*identity_),
            .refresh_seconds = kCopyRefreshSeconds};
  }
  void LookIfItIsTime(SteadyTime now) {
    if (now >= look_at_) Look();
  }
  void Look() {
    look_at_ = SteadyNow() + std::chrono::seconds(files_.refresh_seconds);
    std::optional<Texts> texts = TextsOf(files_);
    if (!texts.has_value() || texts == seen_) return;
    std::optional<UniqueFd> ca = FileOf(texts->ca);
    std::optional<UniqueFd> identity = FileOf(absl::StrCat(texts->certificate, "\n", texts->key));
    if (!ca.has_value() || !identity.has_value()) return;
    seen_ = std::move(texts);
    if (!AreSound(
            {.ca = PathOf(*ca), .certificate = PathOf(*identity), .key = PathOf(*identity)})) {
      // At the start whoever serves says what is wrong.
      if (ca_.has_value()) {
        gpr_log(GPR_ERROR, "%s, %s and %s are not sound together; what was read before holds",
                files_.ca.c_str(), files_.certificate.c_str(), files_.key.c_str());
      }
      return;
    }
    if (!ca_.has_value()) {
      ca_ = std::move(ca);
      identity_ = std::move(identity);
      return;
    }
    // The paths stay; what they lead to is another file from one moment to the next.
    if (dup3(ca->get(), ca_->get(), O_CLOEXEC) < 0 ||
        dup3(identity->get(), identity_->get(), O_CLOEXEC) < 0) {
      seen_.reset();  // at the next look
    }
  }

 private:
  explicit Copies(TlsFiles files) : files_(std::move(files)) {}

  const TlsFiles files_;
  std::optional<Texts> seen_;  // whatever became of it
  std::optional<UniqueFd> ca_, identity_;
  SteadyTime look_at_;
};

// Of all sets. Never destroyed: gRPC may look at the paths as long as the process lives.
class Keeper {
 public:
  TlsFiles CopyOf(const TlsFiles& files) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    for (const std::unique_ptr<Copies>& copies : all_) {
      const TlsFiles& known = copies->files();
      if (known.ca != files.ca || known.certificate != files.certificate ||
          known.key != files.key || known.refresh_seconds != files.refresh_seconds) {
        continue;
      }
      copies->Look();
      return copies->paths();
    }
    std::unique_ptr<Copies> made = Copies::Make(files);
    if (made == nullptr) return files;
    all_.push_back(std::move(made));
    if (!thread_.joinable()) thread_ = std::jthread([this] { Run(); });
    return all_.back()->paths();
  }

 private:
  [[noreturn]] void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (true) {
      changed_.WaitUntil(&mu_, SteadyNow() + std::chrono::seconds(1));
      for (const std::unique_ptr<Copies>& copies : all_) copies->LookIfItIsTime(SteadyNow());
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<std::unique_ptr<Copies>> all_ ABSL_GUARDED_BY(mu_);
  std::jthread thread_;
};

}  // namespace

TlsFiles SoundCopyOf(const TlsFiles& files) {
  static auto& keeper = *new Keeper();
  return keeper.CopyOf(files);
}

}  // namespace phalanx::transport
