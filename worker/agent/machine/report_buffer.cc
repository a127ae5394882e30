#include "worker/agent/machine/report_buffer.h"

#include <utility>

namespace phalanx::agent {

void ReportBuffer::Add(SendReport report, ReportKind kind) {
  const bool is_step = kind == ReportKind::kStep;
  const size_t others = reports_.size() - step_count_;
  if (is_step ? step_count_ >= kStepReportsMax : others >= kReportsMax) EraseOldest(is_step);
  reports_.push_back({.report = std::move(report), .kind = kind});
  if (is_step) ++step_count_;
}

std::optional<SendReport> ReportBuffer::Next() {
  if (handed_ == reports_.size()) return std::nullopt;
  return reports_[handed_++].report;
}

void ReportBuffer::ConfirmWritten() {
  if (written_ == handed_) return;
  const Stored& stored = reports_[written_];
  if (stored.retired || stored.kind == ReportKind::kEvent) {
    Erase(written_);
  } else {
    ++written_;
  }
}

void ReportBuffer::Rewind() { written_ = handed_ = 0; }

void ReportBuffer::Retire(JobId job, Epoch epoch) {
  for (Stored& stored : reports_) {
    if (stored.report.job == job && stored.report.epoch <= epoch) stored.retired = true;
  }
  for (size_t i = written_; i > 0; --i) {
    if (reports_[i - 1].retired) Erase(i - 1);
  }
}

void ReportBuffer::Erase(size_t index) {
  if (reports_[index].kind == ReportKind::kStep) --step_count_;
  reports_.erase(reports_.begin() + static_cast<std::ptrdiff_t>(index));
  if (index < written_) --written_;
  if (index < handed_) --handed_;
}

void ReportBuffer::EraseOldest(bool steps) {
  for (size_t i = 0; i < reports_.size(); ++i) {
    const bool on_its_way = i >= written_ && i < handed_;
    if (on_its_way || (reports_[i].kind == ReportKind::kStep) != steps) continue;
    Erase(i);
    return;
  }
}

}  // namespace phalanx::agent
