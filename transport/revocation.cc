#include "transport/revocation.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/posix/file.h"
#include "transport/openssl.h"

namespace phalanx::transport {
namespace {

// Some hundred thousand certificates.
constexpr int64_t kListBytesMax = 16 << 20;

// All that `read` finds in the text, one after another, up to what is spoilt.
template <typename Thing>
struct Found {
  std::vector<Thing> things;
  bool whole = false;  // nothing is spoilt
};
template <typename Thing, typename Read>
Found<Thing> All(absl::string_view text, Read read) {
  const Bio from = Reader(text);
  Found<Thing> found;
  while (Thing thing{read(from.get(), nullptr, NoPassword, nullptr)})
    found.things.push_back(std::move(thing));
  found.whole = IsEndOfPem();
  return found;
}

bool IsSignedBy(X509_CRL& list, const std::vector<Certificate>& authorities) {
  for (const Certificate& authority : authorities) {
    if (X509_NAME_cmp(X509_CRL_get_issuer(&list), X509_get_subject_name(authority.get())) == 0 &&
        X509_CRL_verify(&list, X509_get0_pubkey(authority.get())) == 1) {
      return true;
    }
  }
  ERR_clear_error();
  return false;
}

}  // namespace

struct Revocations::Lists {
  std::vector<CertificateList> all;
  int count = 0;  // of certificates in them
};

absl::StatusOr<std::unique_ptr<Revocations>> Revocations::Open(RevocationOptions options) {
  auto opened = std::unique_ptr<Revocations>(new Revocations(std::move(options)));
  RETURN_IF_ERROR(opened->Refresh());
  opened->thread_ = std::jthread([raw = opened.get()] { raw->Run(); });
  return opened;
}

Revocations::~Revocations() {
  MutexLock lock(&mu_);
  stop_ = true;
  stop_changed_.SignalAll();
}

bool Revocations::Has(absl::string_view certificates) const {
  std::shared_ptr<const Lists> lists;
  {
    MutexLock lock(&mu_);
    lists = lists_;
  }
  if (lists->count == 0) return false;
  for (const Certificate& certificate : All<Certificate>(certificates, PEM_read_bio_X509).things) {
    for (const CertificateList& list : lists->all) {
      X509_REVOKED* entry = nullptr;
      if (X509_NAME_cmp(X509_CRL_get_issuer(list.get()), X509_get_issuer_name(certificate.get())) ==
              0 &&
          X509_CRL_get0_by_serial(list.get(), &entry, X509_get0_serialNumber(certificate.get())) ==
              1) {
        return true;
      }
    }
  }
  return false;
}

absl::Status Revocations::Refresh() {
  const auto fault = [this](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(options_.name, ": ", options_.file, ": ", what));
  };
  absl::StatusOr<std::string> text = ReadWholeFile(options_.file, kListBytesMax);
  if (!text.ok()) return fault(text.status().message());
  if (*text == text_) return absl::OkStatus();
  auto lists = std::make_shared<Lists>();
  Found<CertificateList> found = All<CertificateList>(*text, PEM_read_bio_X509_CRL);
  if (found.things.empty()) return fault("must begin with a certificate revocation list in PEM");
  // Whoever is in the rest would get in again.
  if (!found.whole)
    return fault(absl::StrCat("list ", found.things.size() + 1, " of it must be one in PEM"));
  lists->all = std::move(found.things);
  ASSIGN_OR_RETURN(const std::string ca, ReadWholeFile(options_.ca, kListBytesMax));
  const std::vector<Certificate> authorities = All<Certificate>(ca, PEM_read_bio_X509).things;
  for (const CertificateList& list : lists->all) {
    if (!IsSignedBy(*list, authorities))
      return fault(absl::StrCat("a list in it is signed by no authority of ", options_.ca));
    lists->count += std::max(0, sk_X509_REVOKED_num(X509_CRL_get_REVOKED(list.get())));
  }
  options_.log(absl::StrCat("certificates revoked=", lists->count, " file=", options_.file));
  text_ = *std::move(text);
  {
    MutexLock lock(&mu_);
    lists_ = std::move(lists);
  }
  changes_ = 2;
  return absl::OkStatus();
}

void Revocations::Run() {
  pthread_setname_np(pthread_self(), "revocations");
  std::string told;
  while (true) {
    // Twice: also for calls that were asked about before the change and counted as open after it.
    if (changes_ > 0) options_.changed();
    changes_ = std::max(0, changes_ - 1);
    {
      const auto next =
          std::chrono::steady_clock::now() + std::chrono::seconds(options_.refresh_seconds);
      MutexLock lock(&mu_);
      while (!stop_ && !stop_changed_.WaitUntil(&mu_, next)) continue;
      if (stop_) return;
    }
    std::string fault(Refresh().message());
    if (!fault.empty() && fault != told)
      options_.warn(absl::StrCat(fault, "; what was read before holds"));
    told = std::move(fault);
  }
}

}  // namespace phalanx::transport
