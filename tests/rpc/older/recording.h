// tests/rpc/older/recording.h: sessions of daemons of the release before, as they were recorded.
//
// A file of frames in the order in which they came by, over all sessions: one byte of the session's
// number, one of the kind, four of the length, least significant first, then so many bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/support/shards.h"

namespace phalanx::older {

enum class Kind : char {
  kRequest = 'r',   // OpenSessionRequest, of the daemon
  kResponse = 'c',  // OpenSessionResponse, of the coordinator
  kEnd = 'e',       // the daemon's stream has ended; no bytes
  kSubmit = 's',    // SubmitJobRequest, of a client: of no session
  kCancel = 'x',    // CancelJobRequest, of a client: of no session
};

struct Frame {
  uint8_t session = 0;  // from 0, in the order of their hellos
  Kind kind = Kind::kEnd;
  std::string bytes;
};

std::string EncodeFrame(const Frame& frame);
// What is cut short ends the test.
std::vector<Frame> DecodeFrames(absl::string_view bytes);

// Of the data of all jobs that were recorded: text alone.
support::ShardOptions DataOptions();

// The file or folder of that name beside this header.
std::string PathOf(const std::string& name);
std::vector<Frame> RecordedFrames();

}  // namespace phalanx::older
