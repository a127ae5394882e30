#include "worker/rank/metrics_writer.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"
#include "tensorboard/event.pb.h"

namespace phalanx::rank {
namespace {

absl::Status FileError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

// CRC-32C, bit by bit from a table; TensorBoard's records carry it "masked".
uint32_t MaskedCrc(absl::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> values{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit)
        value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
      values[i] = value;
    }
    return values;
  }();
  uint32_t crc = ~0u;
  for (char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <typename T>
void AppendRaw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Keeps the lines of steps before `first_step`.
absl::Status KeepLinesBefore(const std::string& path, int64_t first_step) {
  std::ifstream in(path);
  if (!in) return absl::OkStatus();
  std::string kept, line;
  while (std::getline(in, line)) {
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (entry.is_object() && entry.value("step", int64_t{0}) < first_step &&
        entry.contains("step")) {
      absl::StrAppend(&kept, line, "\n");
    }
  }
  const std::string aside = absl::StrCat(path, ".new");
  std::ofstream(aside, std::ios::trunc) << kept;
  if (std::rename(aside.c_str(), path.c_str()) != 0) return FileError("rename to", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(const std::string& folder,
                                                                   int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat("make ", folder, ": ", error.message()));
  const std::string lines_path = absl::StrCat(folder, "/metrics.jsonl");
  RETURN_IF_ERROR(KeepLinesBefore(lines_path, first_step));
  std::FILE* lines = std::fopen(lines_path.c_str(), "a");
  if (lines == nullptr) return FileError("open", lines_path);
  const std::string events_path = absl::StrCat(
      folder, "/events.out.tfevents.", absl::ToUnixSeconds(absl::Now()), ".phalanx.", getpid());
  std::FILE* events = std::fopen(events_path.c_str(), "w");
  if (events == nullptr) {
    const absl::Status status = FileError("open", events_path);
    std::fclose(lines);
    return status;
  }
  std::unique_ptr<MetricsWriter> writer(new MetricsWriter(lines, events));
  tensorboard::Event version;
  version.set_wall_time(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  version.set_file_version("brain.Event:2");
  RETURN_IF_ERROR(writer->WriteEvent(version.SerializeAsString()));
  return writer;
}

MetricsWriter::~MetricsWriter() {
  std::fclose(lines_);
  std::fclose(events_);
}

absl::Status MetricsWriter::WriteEvent(absl::string_view event) {
  std::string record;
  AppendRaw(record, static_cast<uint64_t>(event.size()));
  AppendRaw(record, MaskedCrc(record));
  record.append(event.data(), event.size());
  AppendRaw(record, MaskedCrc(event));
  if (std::fwrite(record.data(), 1, record.size(), events_) != record.size() ||
      std::fflush(events_) != 0) {
    return FileError("write", "the TensorBoard event file");
  }
  return absl::OkStatus();
}

absl::Status MetricsWriter::Write(const train::StepSummary& step, int64_t epoch) {
  nlohmann::ordered_json line;
  line["step"] = step.step;
  line["loss"] = step.loss;
  line["gradient_norm"] = step.gradient_norm;
  line["learning_rate"] = step.learning_rate;
  line["tokens"] = step.tokens;
  line["items"] = step.items;
  line["step_seconds"] = step.seconds;
  line["epoch"] = epoch;
  if (step.skipped) line["skipped"] = true;
  if (step.corrupt_samples > 0) line["corrupt_samples"] = step.corrupt_samples;
  const std::string text = absl::StrCat(line.dump(), "\n");
  if (std::fwrite(text.data(), 1, text.size(), lines_) != text.size() || std::fflush(lines_) != 0) {
    return FileError("write", "metrics.jsonl");
  }
  tensorboard::Event event;
  event.set_wall_time(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  event.set_step(step.step);
  const std::vector<std::pair<const char*, double>> figures = {
      {"train/loss", step.loss},
      {"train/gradient_norm", step.gradient_norm},
      {"train/learning_rate", step.learning_rate},
      {"train/tokens_per_second",
       step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : 0}};
  for (const auto& [tag, value] : figures) {
    auto* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(tag);
    scalar->set_simple_value(static_cast<float>(value));
  }
  return WriteEvent(event.SerializeAsString());
}

}  // namespace phalanx::rank
