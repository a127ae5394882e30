#include "tests/fuzz/http/exchange.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace phalanx::fuzz {
namespace {

constexpr int kWaiting = 64;          // connections that are not accepted yet
constexpr int kPatienceSeconds = 60;  // nothing takes as long on a machine that works

constexpr absl::string_view kStreamBegins =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";

void Must(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

// Behind the head of a stream stands when to connect again; then events, each with its end.
bool HasEvent(absl::string_view answer) {
  const size_t retry = answer.find("\n\n");
  return retry != absl::string_view::npos && absl::StrContains(answer.substr(retry + 2), "\n\n");
}

}  // namespace

LocalHttp::LocalHttp(transport::HttpOptions options)
    : listening_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  Must(listening_.is_open(), "socket");
  address_.sun_family = AF_UNIX;
  // The kernel gives it a name that is no file.
  auto* const address = reinterpret_cast<sockaddr*>(&address_);
  Must(bind(listening_.get(), address, sizeof(sa_family_t)) == 0, "bind");
  address_bytes_ = sizeof(address_);
  Must(getsockname(listening_.get(), address, &address_bytes_) == 0, "getsockname");
  Must(listen(listening_.get(), kWaiting) == 0, "listen");
  options.listening = listening_.get();
  auto server = transport::HttpServer::Start(std::move(options));
  Must(server.ok(), "no server");
  server_ = *std::move(server);
}

UniqueFd LocalHttp::Connect() const {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Must(fd.is_open(), "socket");
  const timeval patience{.tv_sec = kPatienceSeconds, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  Must(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), address_bytes_) == 0,
       "connect");
  return fd;
}

void Send(const UniqueFd& to, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

absl::StatusOr<std::string> ReadAnswer(const UniqueFd& from) {
  std::string answer;
  char bytes[4096];
  while (!IsStream(answer) || !HasEvent(answer)) {
    const ssize_t n = recv(from.get(), bytes, sizeof(bytes), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      return absl::DeadlineExceededError(
          absl::StrCat("neither more nor an end behind \"", answer, "\""));
    }
    // The end, also where it has not read all that was sent.
    if (n <= 0) break;
    answer.append(bytes, static_cast<size_t>(n));
  }
  return answer;
}

bool IsStream(absl::string_view answer) { return absl::StartsWith(answer, kStreamBegins); }

absl::StatusOr<Answer> TakeApart(absl::string_view answer, bool with_body) {
  const auto wrong = [answer](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", answer.substr(0, 1000)));
  };
  const size_t end = answer.find("\r\n\r\n");
  if (end == absl::string_view::npos) return wrong("an answer without a whole head");
  const std::vector<absl::string_view> lines = absl::StrSplit(answer.substr(0, end), "\r\n");
  const std::vector<absl::string_view> words = absl::StrSplit(lines[0], absl::MaxSplits(' ', 2));
  Answer apart;
  if (words.size() != 3 || words[0] != "HTTP/1.1" || words[1].size() != 3 ||
      !absl::SimpleAtoi(words[1], &apart.code) || words[2].empty())
    return wrong("an answer without a status");
  bool closes = false, has_length = false;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (std::any_of(lines[i].begin(), lines[i].end(),
                    [](unsigned char c) { return c < ' ' || c >= 0x7F; }))
      return wrong("a head with bytes that are none of a line");
    const std::vector<absl::string_view> field = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    if (field.size() != 2) return wrong("a head with a line that is no field");
    if (field[0] == "Content-Type") apart.type = std::string(field[1]);
    if (field[0] == "Connection") closes = field[1] == "close";
    if (field[0] == "Content-Length") has_length = absl::SimpleAtoi(field[1], &apart.length);
  }
  if (!closes || !has_length || apart.type.empty())
    return wrong("a head without type, length or the end of the connection");
  apart.body = std::string(answer.substr(end + 4));
  if (apart.body.size() != (with_body ? apart.length : 0))
    return wrong("a body of another length than its head says, or more than one answer");
  return apart;
}

}  // namespace phalanx::fuzz
