// Any request of JobService and of JoinService that is more than a name: its translation and what
// is asked of it before anything is done.
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/job_filter.h"
#include "coordinator/rpc/join_tokens.h"
#include "coordinator/runtime/board.h"
#include "coordinator/runtime/planning.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/store/token_file.h"
#include "coordinator/wire/common_codec.h"
#include "core/job/injected_fault.h"
#include "core/wire/fault_codec.h"
#include "core/wire/layout_codec.h"
#include "phalanx/v1/job_service.pb.h"
#include "phalanx/v1/join_service.pb.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/messages.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "transport/issuance.h"

namespace phalanx::fuzz {
namespace {

constexpr int kJobs = 5;
template <typename Request>
bool Parse(absl::string_view bytes, Request& request) {
  return request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

std::string Refused(const absl::Status& status) {
  return status.ok() || !status.message().empty() ? "" : "refused without a word";
}

std::string CheckSubmit(const v1::SubmitJobRequest& request) {
  auto read = coordinator::ReadDocument(coordinator::FromProto(request.document()),
                                        wire::RanksOf(request.lost()));
  if (!read.ok()) return Refused(read.status());
  // A search takes seconds.
  if (read->NeedsSearch()) return "";
  return Refused(coordinator::RequestOf(*std::move(read)).status());
}

const coordinator::Board& ABoard() {
  static const coordinator::Board& board = *[] {
    auto* made = new coordinator::Board;
    made->Connect(
        coordinator::MemoryBackend(std::make_shared<coordinator::MemoryDisk>()).ended_jobs());
    for (int64_t id = 1; id <= kJobs; ++id) {
      coordinator::JobView view{.id = JobId{id},
                                .request = std::make_shared<const coordinator::JobRequest>(
                                    coordinator::JobRequest{.name = absl::StrCat("job", id)})};
      view.placement = coordinator::Placement{{"n", {0}}};
      made->Publish(
          coordinator::PublishJob{std::make_shared<const coordinator::JobView>(std::move(view))});
    }
    return made;
  }();
  return board;
}

std::string CheckList(const v1::ListJobsRequest& request) {
  v1::ListJobsResponse response;
  const absl::Status listed = coordinator::ListJobs(ABoard(), request, &response);
  if (!listed.ok()) return Refused(listed);
  if (response.jobs_size() > kJobs) return "more jobs than there are";
  if (request.page_size() > 0 && response.jobs_size() > request.page_size())
    return "more jobs than were asked for";
  return "";
}

std::string CheckEvents(const v1::ListEventsRequest& request) {
  const std::vector<coordinator::JobEvent> events(3);
  v1::ListEventsResponse response;
  const absl::Status selected = coordinator::SelectEvents(events, request, &response);
  if (!selected.ok()) return Refused(selected);
  return response.events_size() > 3 ? "more events than there are" : "";
}

std::string CheckFault(const v1::InjectFaultRequest& request) {
  job::InjectedFault fault = wire::FromProto(request.fault());
  const auto violations = job::CheckFault(fault, job::kFaultMessage);
  if (!violations.empty()) return "";
  if (fault.kind != job::FaultKind::kSlow) fault.factor = 0;  // nobody looks at it
  if (std::isnan(fault.factor) || fault.rank < 0 || fault.at_step < 0) return "a fault of no rank";
  v1::Fault written;
  wire::ToProto(fault, &written);
  return wire::FromProto(written) == fault ? "" : "a fault is another one once it is written";
}

coordinator::JoinTokens& SomeTokens() {
  static coordinator::JoinTokens& tokens =
      *coordinator::JoinTokens::Open(
           std::make_shared<coordinator::TokenFile>(support::MakeFolder("fuzz") + "/join-tokens"))
           ->release();
  return tokens;
}

// Whoever has no token gets none, whatever they say.
std::string CheckJoin(const v1::JoinRequest& request) {
  const absl::StatusOr<std::string> key = transport::KeyOfRequest(request.certificate_request());
  if (key.ok() && key->size() != 32) return "a digest of another length";
  const auto joined = SomeTokens().Check(
      {.token = request.token(), .node = request.node(), .key_sha256 = key.value_or("")},
      absl::UnixEpoch());
  return joined.ok() ? "joined without a token" : Refused(joined.status());
}

std::string CheckCreate(const v1::CreateTokenRequest& request) {
  // Each time so late that those of before are forgotten.
  static absl::Time now = absl::UnixEpoch();
  now += 2 * coordinator::JoinTokens::kTtlMax;
  const auto made = SomeTokens().Create(request, "", now);
  if (!made.ok()) return Refused(made.status());
  const auto used = SomeTokens().Check({.token = made->token(),
                                        .node = request.node().empty() ? "a" : request.node(),
                                        .key_sha256 = std::string(32, 'k')},
                                       now);
  return used.ok() ? "" : "a token that was made is refused: " + used.status().ToString();
}

}  // namespace

// The first byte says which request the others are.
std::string Check(absl::string_view bytes) {
  if (bytes.empty()) return "";
  const absl::string_view rest = bytes.substr(1);
  switch (static_cast<unsigned char>(bytes[0]) % 6) {
    case 0: {
      v1::SubmitJobRequest request;
      return Parse(rest, request) ? CheckSubmit(request) : "";
    }
    case 1: {
      v1::ListJobsRequest request;
      return Parse(rest, request) ? CheckList(request) : "";
    }
    case 2: {
      v1::ListEventsRequest request;
      return Parse(rest, request) ? CheckEvents(request) : "";
    }
    case 3: {
      v1::InjectFaultRequest request;
      return Parse(rest, request) ? CheckFault(request) : "";
    }
    case 4: {
      v1::JoinRequest request;
      return Parse(rest, request) ? CheckJoin(request) : "";
    }
    default: {
      v1::CreateTokenRequest request;
      return Parse(rest, request) ? CheckCreate(request) : "";
    }
  }
}

std::vector<std::string> Corpus() {
  v1::SubmitJobRequest submit;
  std::stringstream text;
  text << std::ifstream(tests::SourceDir() + "/examples/language-tp3.yaml").rdbuf();
  submit.mutable_document()->set_text(text.str());
  submit.mutable_document()->set_directory("/data");
  submit.add_lost(0);
  std::vector<std::string> corpus = {
      absl::StrCat(std::string(1, '\0'), submit.SerializeAsString())};
  const auto add = [&corpus](char kind, const std::vector<std::string>& requests) {
    for (const std::string& request : requests)
      corpus.push_back(absl::StrCat(std::string(1, kind), request));
  };
  add(0, Serialized<v1::SubmitJobRequest>(10));
  add(1, Serialized<v1::ListJobsRequest>(30));
  add(2, Serialized<v1::ListEventsRequest>(30));
  add(3, Serialized<v1::InjectFaultRequest>(30));
  v1::JoinRequest join;
  join.set_token("phx_0123456789abcdef_" + std::string(64, '0'));
  join.set_node("a");
  join.set_certificate_request(transport::MakeKeyAndRequest()->request);
  add(4, {join.SerializeAsString()});
  add(4, Serialized<v1::JoinRequest>(10));
  v1::CreateTokenRequest create;
  create.mutable_ttl()->set_seconds(60);
  add(5, {create.SerializeAsString()});
  add(5, Serialized<v1::CreateTokenRequest>(10));
  return corpus;
}

}  // namespace phalanx::fuzz
