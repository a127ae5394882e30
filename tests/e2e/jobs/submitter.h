// tests/e2e/jobs/submitter.h: a stream of changes that kills of coordinators cut into.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "transport/tls.h"

namespace phalanx::e2e {

// That a node is cordoned or drained; without a reason it is neither.
struct Mark {
  std::string reason;
  bool drains = false;
  friend bool operator==(const Mark&, const Mark&) = default;
};

// What somebody was told is done, and what of it they did not find again.
struct Acknowledged {
  std::map<std::string, int64_t> submits;  // by request id, which is the job's name too
  // Names of such jobs. All that are deleted were cancelled, and all that are resumed suspended.
  std::set<std::string> cancels, suspends, resumes, deletes;
  // Names of cancelled jobs that were not there when a delete that was cut off was asked for again:
  // deleted, or lost. They are not there later either.
  std::set<std::string> deletes_unsure;
  // Those that were to be resumed or deleted, which nobody has answered: it may be done or not.
  std::set<std::string> unsure;
  // Answers that a change cannot be made, though by what was acknowledged before it can.
  int64_t refused = 0;
  std::string node;
  // Cordons, drains and uncordons of the node, and how many of them are drains. Each was looked for
  // before the next one, which takes its place, and is missing as well where there is no such node
  // for that one. None is missing twice.
  int64_t marks = 0, drains = 0, marks_missing = 0;
  std::optional<Mark> mark;  // the last one's; absent: it may be there or not, or is missing
  // The same of the reserve: that the node is put into it, and taken out again.
  int64_t reserves = 0, reserves_missing = 0;
  // The last one's reason; empty: the node was taken out. Absent: as of `mark`.
  std::optional<std::string> reserve;
  struct Token {
    bool joined = false;  // a node has got a certificate for it
    bool revoked = false;
  };
  std::map<std::string, Token> tokens;  // join tokens by id

  // Of another stream; of two, one has a node.
  void Add(Acknowledged other);
};

struct SubmitterOptions {
  int32_t number = 0;  // tells its jobs from others'
  // It also cancels jobs, suspends others and resumes some of those, and deletes some that it has
  // cancelled, by turns.
  bool changes = false;
  // With changes: which it also cordons, drains and uncordons, and puts into the reserve and takes
  // out again. No other may do so. Empty: none.
  std::string node;
  // With changes: it also makes join tokens, has a node join with one of three, and revokes another
  // one of three.
  bool tokens = false;
  transport::TlsFiles tls = {};  // of somebody who may do all that
};

// Submits jobs that no node can take, one after the other, and remembers what was acknowledged.
// Calls that a kill cuts off are repeated, a submit under the same request id.
class Submitter {
 public:
  // `servers`: HOST:PORT, of several between commas. `data` outlives it.
  Submitter(const std::string& servers, const DataFolder& data, SubmitterOptions options);
  // Ends the stream; what was acknowledged. Call once.
  Acknowledged Finish();

 private:
  struct Server {
    std::unique_ptr<v1::JobService::Stub> jobs;
    std::unique_ptr<v1::JoinService::Stub> join;
  };
  // kNone: the stream ends. kNotFound: there is no such thing. kGone: nor is there, and an attempt
  // before was cut off, so that it may be gone because of that. kRefused: for another reason.
  enum class Answer : uint8_t { kNone, kDone, kNotFound, kGone, kRefused };

  static std::vector<Server> ServersOf(const std::string& servers, const transport::TlsFiles& tls);
  bool stopping();
  void Work();
  void Submit(const std::string& name);
  // Of a job that was submitted.
  void Change(const std::string& name, int64_t count);
  bool Cancel(const std::string& name);
  bool Suspend(const std::string& name);
  void Resume(const std::string& name);
  void Delete(const std::string& name);
  // Whether the node's mark and its reserve are still the last ones that were acknowledged.
  void LookForMarks();
  void SetMark(const Mark& mark);
  void SetReserve(const std::string& reason);
  // Of a change of the node: what the answer says of the mark and the reserve that were
  // acknowledged before it.
  void LookAtAnswer(Answer answer);
  // Its secret; empty: it is not there.
  std::string CreateToken();
  // As a node that nobody has, whose name is that of a job.
  void JoinWith(const std::string& secret, const std::string& node);
  void RevokeToken();
  template <typename Service>
  static Service& StubOf(const Server& server);
  // Until it is answered by somebody who serves.
  template <typename Service, typename Request, typename Response>
  Answer Call(grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Response*),
              const Request& request, Response* response);
  // The same; whether it is done. An answer that it cannot be is counted.
  template <typename Request, typename Response>
  bool Do(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                       Response*),
          const Request& request, Response* response);

  const SubmitterOptions options_;
  const std::vector<Server> servers_;
  const DataFolder& data_;
  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string last_token_;     // that was made and not revoked: its id, of the thread
  Acknowledged acknowledged_;  // of the thread, then of Finish
  std::thread thread_;         // last: begins when all else is there
};

// What became of changes that were acknowledged.
struct Kept {
  int64_t missing = 0, doubled = 0;  // jobs
  int64_t cancels_missing = 0, suspends_missing = 0, resumes_missing = 0, deletes_missing = 0;
  int64_t marks_missing = 0, reserves_missing = 0, tokens_missing = 0;
  int64_t refused = 0;

  bool all() const {
    return missing + doubled + cancels_missing + suspends_missing + resumes_missing +
               deletes_missing + marks_missing + reserves_missing + tokens_missing + refused ==
           0;
  }
};
Kept LookFor(const Acknowledged& acknowledged, Cluster& cluster);

}  // namespace phalanx::e2e
