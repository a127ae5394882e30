// worker/comm/shared_segment.h: memory of one process that others of its host map.
//
// A memfd, so no file system limit applies and nothing is left when its last mapping ends, also
// when a process is killed. Who is to map it gets its handle by other means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::comm {

// Thread-safe, but for Close().
class SharedSegment {
 public:
  // Zeros. `bytes` are address space: pages exist once they are written. Errors: Unavailable where
  // the system gives no such memory.
  static absl::StatusOr<SharedSegment> Create(uint64_t bytes);
  // The segment of another process. Nothing where it is out of reach (another host, container or
  // user) or has another size.
  static std::optional<SharedSegment> Attach(absl::string_view handle, uint64_t bytes);
  ~SharedSegment();
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;

  // What another process needs to attach: process, descriptor and a random word that proves the
  // match.
  std::string Handle() const;
  // From now on nobody can attach.
  void Close();
  // Begins with a page.
  char* data() const { return mapping_ + kHeadBytes; }

 private:
  static constexpr uint64_t kHeadBytes = 4096;  // holds the random word
  SharedSegment(char* mapping, uint64_t bytes, int descriptor, uint64_t nonce)
      : mapping_(mapping), bytes_(bytes), descriptor_(descriptor), nonce_(nonce) {}

  char* mapping_;
  uint64_t bytes_;  // of the mapping
  int descriptor_;  // -1: of another process, or closed
  uint64_t nonce_;
};

}  // namespace phalanx::comm
