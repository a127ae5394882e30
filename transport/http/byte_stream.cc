#include "transport/http/byte_stream.h"

#include <poll.h>
#include <sys/socket.h>

namespace phalanx::transport {

ssize_t ByteStream::Read(char* to, size_t bytes) {
  const ssize_t n = tls_ == nullptr ? recv(fd_.get(), to, bytes, 0) : tls_->Read(to, bytes);
  wants_ = tls_ == nullptr || tls_->wants() == 0 ? short{POLLIN} : tls_->wants();
  return n;
}

ssize_t ByteStream::Write(const char* from, size_t bytes) {
  const ssize_t n =
      tls_ == nullptr ? send(fd_.get(), from, bytes, MSG_NOSIGNAL) : tls_->Write(from, bytes);
  wants_ = tls_ == nullptr || tls_->wants() == 0 ? short{POLLOUT} : tls_->wants();
  return n;
}

}  // namespace phalanx::transport
