// transport/http/byte_stream.h: a connection that is read and written as bytes, in plaintext or
// over TLS.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "core/posix/unique_fd.h"
#include "transport/server_tls.h"

namespace phalanx::transport {

// Of a socket that does not block. Not thread-safe.
class ByteStream {
 public:
  explicit ByteStream(UniqueFd fd, std::unique_ptr<TlsStream> tls = nullptr)
      : fd_(std::move(fd)), tls_(std::move(tls)) {}

  // As recv and send: how many bytes, 0 at the end, or below 0 with errno, EAGAIN where it has to
  // wait for what wants() says.
  ssize_t Read(char* to, size_t bytes);
  ssize_t Write(const char* from, size_t bytes);

  // POLLIN or POLLOUT: what the last Read or Write waits for. TLS may have to write before it can
  // read, and to read before it can write.
  short wants() const { return wants_; }
  int fd() const { return fd_.get(); }
  // Nothing shown in plaintext. Once something was read.
  ShownCertificate peer() const { return tls_ == nullptr ? ShownCertificate() : tls_->peer(); }

 private:
  UniqueFd fd_;
  std::unique_ptr<TlsStream> tls_;  // ends before its descriptor
  short wants_ = 0;
};

}  // namespace phalanx::transport
