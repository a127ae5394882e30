// worker/agent/machine/report_buffer.h: what ranks said and the coordinator may not have heard.
//
// The wire has no acknowledgement of reports: one that was written just before a stream broke, or
// that a coordinator took and lost with its process, would be gone. So reports stay here after they
// were written, until their epoch is over, and a new session starts again from the oldest. Only
// events (kEvent), which the coordinator cannot recognise when they come twice, leave when written.
//
// Bounds: of step reports the newest kStepReportsMax stay; of the others kReportsMax, beyond which
// the oldest leaves. A report that was handed out and not yet confirmed is never the one to leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "worker/agent/machine/actions.h"

namespace phalanx::agent {

// Not thread-safe.
class ReportBuffer {
 public:
  static constexpr size_t kStepReportsMax = 1024;
  static constexpr size_t kReportsMax = 16384;

  void Add(SendReport report, ReportKind kind);
  // The oldest report that this session was not handed yet; nullopt: none.
  std::optional<SendReport> Next();
  // The oldest report that was handed out and not confirmed has been written.
  void ConfirmWritten();
  // The session broke: everything is to be handed out again.
  void Rewind();
  // The epochs of `job` up to `epoch` are over: written reports leave now, the others when written.
  void Retire(JobId job, Epoch epoch);

  size_t size() const { return reports_.size(); }
  // Reports not yet written to the present session.
  size_t unwritten() const { return reports_.size() - written_; }

 private:
  struct Stored {
    SendReport report;
    ReportKind kind;
    bool retired = false;
  };
  void Erase(size_t index);
  void EraseOldest(bool steps);

  // [0, written_) written, [written_, handed_) handed out, [handed_, size) waiting.
  std::deque<Stored> reports_;
  size_t written_ = 0;
  size_t handed_ = 0;
  size_t step_count_ = 0;
};

}  // namespace phalanx::agent
