#include "worker/comm/link_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace phalanx::comm {
namespace {

constexpr absl::string_view kMagic = "PHXLINK1";

void AppendRank(std::string& text, int32_t rank) {
  const auto bits = static_cast<uint32_t>(rank);
  for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>((bits >> shift) & 0xff);
}

int32_t RankAt(absl::string_view text) {
  uint32_t bits = 0;
  for (size_t i = 0; i < 4; ++i)
    bits |= static_cast<uint32_t>(static_cast<unsigned char>(text[i])) << (8 * i);
  return static_cast<int32_t>(bits);
}

}  // namespace

std::string DrawLinkWord() {
  std::string word(kLinkWordBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(word.data()), static_cast<int>(word.size())) == 1)
    return word;
  std::fputs("OpenSSL has no random bytes\n", stderr);
  std::abort();
}

std::string ToText(const LinkHello& hello) {
  std::string text(kMagic);
  AppendRank(text, hello.caller);
  AppendRank(text, hello.listener);
  return text + hello.drawn;
}

std::optional<LinkHello> ParseLinkHello(absl::string_view text) {
  if (text.size() != kLinkHelloBytes || !absl::StartsWith(text, kMagic)) return std::nullopt;
  text.remove_prefix(kMagic.size());
  return LinkHello{.caller = RankAt(text),
                   .listener = RankAt(text.substr(4)),
                   .drawn = std::string(text.substr(8))};
}

std::string LinkProof(absl::string_view secret, LinkEnd end, absl::string_view hello,
                      absl::string_view drawn) {
  const std::string said =
      absl::StrCat(end == LinkEnd::kListener ? "listener" : "caller", hello, drawn);
  std::string proof(kLinkWordBytes, '\0');
  unsigned int bytes = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                   reinterpret_cast<const unsigned char*>(said.data()), said.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &bytes);
  if (made != nullptr && bytes == proof.size()) return proof;
  std::fputs("OpenSSL has no HMAC of SHA-256\n", stderr);
  std::abort();
}

bool IsSameProof(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace phalanx::comm
