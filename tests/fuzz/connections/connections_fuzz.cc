// Any bytes on several connections at a time to the port of the pages: in pieces, one request
// behind another, too long, cut off, and from clients that go before they are answered. Each
// connection is answered once, by its first request, or not at all where that is not whole.
//
// An input is what is sent. A few bytes of it are not, and say how: see `Mark`.
#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"
#include "tests/fuzz/http/exchange.h"
#include "tests/fuzz/support/fuzz.h"
#include "transport/http/http_request.h"

namespace phalanx::fuzz {
namespace {

using transport::HttpOptions;
using transport::HttpRequest;
using transport::HttpResponse;

namespace mark {
constexpr char kRepeat = '\x1C';      // the byte before it, 128 times the byte behind it
constexpr char kConnection = '\x1D';  // what follows is sent over another connection
constexpr char kPiece = '\x1E';       // what follows is sent by itself
constexpr char kGo = '\x1F';          // here the client goes, without reading
}  // namespace mark

constexpr size_t kConnectionsMax = 6;
constexpr size_t kSentBytesMax = 64 << 10;  // over one connection

// A page that anybody can work out.
HttpResponse PageOf(const std::string& target) {
  return {.code = target.size() % 2 == 0 ? 200 : 404, .body = absl::StrCat("page of ", target)};
}

// Makes every third page at once, and the others on a thread of its own.
class Pages {
 public:
  Pages()
      : thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            waker_.Wait(absl::Minutes(1));
            for (auto& [target, answer] : TakeAll()) answer(PageOf(target));
          }
        }) {}
  ~Pages() {
    thread_.request_stop();
    waker_.Wake();
  }
  void Ask(const std::string& target, transport::HttpAnswer answer) ABSL_LOCKS_EXCLUDED(mu_) {
    if (target.size() % 3 == 0) return answer(PageOf(target));
    {
      MutexLock lock(&mu_);
      asked_.emplace_back(target, std::move(answer));
    }
    waker_.Wake();
  }

 private:
  using Asked = std::deque<std::pair<std::string, transport::HttpAnswer>>;
  Asked TakeAll() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return std::exchange(asked_, {});
  }

  Waker waker_;
  Mutex mu_;
  Asked asked_ ABSL_GUARDED_BY(mu_);
  std::jthread thread_;  // last member: joins before the rest ends
};

const LocalHttp& TheServer() {
  static Pages pages;
  static const LocalHttp server(
      {.unread = [](const transport::ShownCertificate&, const absl::Status&) {},
       .metrics = [] { return std::string("figures\n"); },
       .ready =
           [] {
             return Health{{"store", absl::UnavailableError("it is full")}};
           },
       .pages = [](const std::string& target,
                   transport::HttpAnswer answer) { pages.Ask(target, std::move(answer)); },
       .streams = {.interval = absl::Milliseconds(10)}});
  return server;
}

struct Visit {
  std::vector<std::string> pieces;
  bool goes = false;
  std::string all() const { return absl::StrJoin(pieces, ""); }
};

Visit VisitOf(absl::string_view bytes) {
  Visit visit{.pieces = {""}};
  size_t size = 0;
  for (size_t i = 0; i < bytes.size() && size < kSentBytesMax; ++i) {
    std::string& piece = visit.pieces.back();
    if (bytes[i] == mark::kGo) {
      visit.goes = true;
      break;
    }
    if (bytes[i] == mark::kPiece) {
      visit.pieces.emplace_back();
    } else if (bytes[i] == mark::kRepeat && i + 1 < bytes.size() && !piece.empty()) {
      const size_t times = 128 * static_cast<size_t>(static_cast<unsigned char>(bytes[++i]));
      piece.append(std::min(times, kSentBytesMax - size), piece.back());
      size += std::min(times, kSentBytesMax - size);
    } else {
      piece.push_back(bytes[i]);
      ++size;
    }
  }
  return visit;
}

std::string CheckIs(const std::string& got, int code, const std::string& body, bool with_body) {
  const absl::StatusOr<Answer> answer = TakeApart(got, with_body);
  if (!answer.ok()) return std::string(answer.status().message());
  if (answer->code != code) return absl::StrCat("not the code ", code, ": ", got);
  if (answer->length != body.size() || (with_body && answer->body != body))
    return absl::StrCat("not the body \"", body, "\": ", got);
  return "";
}

// `more`: there are bytes behind the request, which are no reader's and end the stream.
std::string CheckStream(const HttpRequest& request, const std::string& got, bool more) {
  if (!absl::StartsWith(request.query(), "?/api/"))
    return CheckIs(got, 400, "/api/stream?PATH: PATH begins with /api/\n", true);
  if (got.empty() && more) return "";
  if (!IsStream(got)) return "no stream of events: " + got;
  const HttpResponse page = PageOf(std::string(request.query().substr(1)));
  const std::string event = page.code == 200 ? absl::StrCat("event: page\ndata: ", page.body)
                                             : std::string("event: gone\ndata: gone");
  if (!more && !absl::StrContains(got, absl::StrCat("\n\n", event, "\n\n")))
    return absl::StrCat("not the event \"", event, "\": ", got);
  return "";
}

std::string CheckAnswered(const std::string& sent, const std::string& got, bool more) {
  const absl::StatusOr<HttpRequest> request = transport::ReadHttpRequest(sent);
  if (!request.ok()) {
    return CheckIs(got, absl::IsUnimplemented(request.status()) ? 405 : 400,
                   absl::StrCat(request.status().message(), "\n"), true);
  }
  const absl::string_view path = request->path();
  if (path == "/api/stream" && !request->head) return CheckStream(*request, got, more);
  if (path == "/metrics") return CheckIs(got, 200, "figures\n", !request->head);
  const bool verbose = request->query() == "?verbose" || request->query() == "?verbose=1";
  if (path == "/livez" || path == "/healthz")
    return CheckIs(got, 200, verbose ? "livez check passed\n" : "ok\n", !request->head);
  if (path == "/readyz") {
    return CheckIs(
        got, 503,
        verbose ? "[-]store failed: it is full\nreadyz check failed\n" : "not ready: it is full\n",
        !request->head);
  }
  const HttpResponse page = PageOf(request->target);
  return CheckIs(got, page.code, page.body, !request->head);
}

// Where the first request in `sent` ends; npos: it does not.
size_t EndOf(const std::string& sent) {
  const size_t end = sent.find("\r\n\r\n");
  return end == std::string::npos ? end : end + 4;
}

bool WantsAnswer(const std::string& sent) {
  return EndOf(sent) != std::string::npos || sent.size() > HttpOptions::kRequestBytesMax;
}

std::string CheckVisit(const std::string& sent, const std::string& got) {
  constexpr size_t kMax = HttpOptions::kRequestBytesMax;
  const size_t end = EndOf(sent);
  if (!WantsAnswer(sent)) return got.empty() ? "" : "an answer to half a request: " + got;
  if (end <= kMax) return CheckAnswered(sent, got, end < sent.size());
  if (absl::StartsWith(got, "HTTP/1.1 431 ")) return CheckIs(got, 431, "", false);
  // The server may have read a little more than it has to take.
  if (end > 2 * kMax) return "a request that is too large is taken: " + got.substr(0, 1000);
  return CheckAnswered(sent, got, end < sent.size());
}

}  // namespace

std::string Check(absl::string_view bytes) {
  const SteadyTime start = SteadyNow();
  std::vector<Visit> visits;
  for (absl::string_view part : absl::StrSplit(bytes, mark::kConnection)) {
    if (visits.size() < kConnectionsMax) visits.push_back(VisitOf(part));
  }
  std::vector<UniqueFd> open;
  size_t rounds = 0;
  for (const Visit& visit : visits) {
    open.push_back(TheServer().Connect());
    rounds = std::max(rounds, visit.pieces.size());
  }
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < visits.size(); ++i) {
      const Visit& visit = visits[i];
      if (round < visit.pieces.size()) Send(open[i], visit.pieces[round]);
      if (round + 1 == visit.pieces.size() && visit.goes) open[i].reset();
    }
  }
  for (size_t i = 0; i < visits.size(); ++i) {
    if (visits[i].goes) continue;
    const std::string sent = visits[i].all();
    // Who waits for no answer says that there is no more, or the server waits for it.
    if (!WantsAnswer(sent)) shutdown(open[i].get(), SHUT_WR);
    const absl::StatusOr<std::string> got = ReadAnswer(open[i]);
    if (!got.ok()) return std::string(got.status().message());
    // On a machine that stood still its time may have been over.
    if (Since(start) > HttpOptions::kLife / 2) return "";
    if (std::string wrong = CheckVisit(sent, *got); !wrong.empty()) return wrong;
  }
  return "";
}

std::vector<std::string> Corpus() {
  const std::string end = " HTTP/1.1\r\n\r\n", piece(1, mark::kPiece), other(1, mark::kConnection),
                    go(1, mark::kGo), many = {mark::kRepeat, '\x7F'},
                    most = {mark::kRepeat, '\xFF'};
  return {absl::StrCat("GET /metrics", end),
          absl::StrCat("GET /me", piece, "trics HTTP/1.1\r", piece, "\n\r", piece, "\n"),
          absl::StrCat("GET /a", end, "GET /bb", end, piece, "GET /ccc", end),
          absl::StrCat("HEAD /a", end, piece, "HEAD /ab", end),
          absl::StrCat("GET /aaa", end, other, "GET /ab", piece, end, other, "GET /abc", end),
          absl::StrCat("GET /readyz?verbose", end, other, "GET /livez", end, other,
                       "HEAD /healthz?verbose=1", end),
          absl::StrCat("GET /api/stream?/api/overview", end),
          absl::StrCat("GET /api/stream?/api/jobs/1", end, other, "GET /api/stream?/api/jobs/1",
                       end, other, "GET /api/stream?/api/overview", end),
          absl::StrCat("GET /api/stream?/api/overview", end, piece, "GET /", end),
          absl::StrCat("GET /api/stream?/api/overview", end, go, other, "GET /api/stream?x", end),
          absl::StrCat("HEAD /api/stream?/api/overview", end),
          absl::StrCat("GET /page", end, go, other, "GET /pages", end, go, other, "GET /p", go),
          absl::StrCat("GET /a", many, end),
          absl::StrCat("GET /a", many, end, "a", most),
          absl::StrCat("GET /a HTTP/1.1\r\nX: a", many, piece, "\r\n\r\n"),
          absl::StrCat("GET /a HTTP/1.1\r\nX: a", many, many, piece, "a", piece, "\r\n\r\n"),
          absl::StrCat("GET /a", most, most, end),
          absl::StrCat("a", most),
          absl::StrCat("POST /", end, other, "GET a", end, other, "\r\n\r\n", other, "\r\n", piece),
          absl::StrCat("GET /\x80\xFF", end, other, std::string("\0\0\r\n\r\n", 6)),
          "GET / HTTP/1.1\r\n",
          ""};
}

}  // namespace phalanx::fuzz
